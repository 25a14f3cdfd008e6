//! Tests that every case plans on every profile, that every shader is valid, and that every kernel
//! is used.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use naga::valid::{Capabilities, ValidationFlags, Validator};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{Bindings, CompileOptions, DType, Graph, Scheme, Type};
use tercet_plan::{
    DeviceCaps, GpuProgram, KernelCode, KernelInstance, KernelSource, LaunchSizes, NativeOps,
    TuningTable, check_races, compile, kernels,
};

use crate::common::{
    GPU_DTYPES, for_each_case, for_each_case_with, in_parallel, is_beyond_gpus, profiles,
};

/// Findings over all cases on one device.
#[derive(Default)]
struct Survey {
    /// Cases that do not plan, or whose programs race.
    wrong: Vec<String>,
    /// Kernels that exceed the limits of the profile.
    beyond: Vec<String>,
    /// Names of the kernels in use.
    used: BTreeSet<String>,
}

/// The findings for every operator case on every device profile, computed once for all tests. Two
/// more devices cover kernels that the profiles do not use; matmuls with rows cast to 16 bits are
/// included.
fn surveys() -> &'static [Survey] {
    static ALL: OnceLock<Vec<Survey>> = OnceLock::new();
    ALL.get_or_init(|| {
        // Workgroup-scope matrices are selected only by an autotuning table.
        let tuned = DeviceCaps::h200().tuned(TuningTable::always("64x64x64/block128"));
        // A device that cannot convert cooperative matrices to another dtype.
        let plain = DeviceCaps {
            coop_converts: false,
            ..DeviceCaps::h200()
        };
        let others = [("tuned", tuned), ("plain", plain)];
        let all = profiles().into_iter().chain(others);
        let exact = all.map(|(profile, caps)| (profile, caps, None));
        let rounded = ("rounded", DeviceCaps::h200(), Some(DType::F16));
        let all = exact.chain([rounded]).collect();
        in_parallel(all, |(profile, caps, products)| {
            survey(profile, &caps, products)
        })
    })
}

/// Plans all operator cases for a device. With `products`, plans only F32 cases, whose matmul rows
/// may be cast to that dtype.
fn survey(profile: &str, caps: &DeviceCaps, products: Option<DType>) -> Survey {
    let mut found = Survey::default();
    let mut seen = BTreeSet::new();
    let dtypes: &[DType] = match products {
        Some(_) => &[DType::F32],
        None => GPU_DTYPES,
    };
    for_each_case_with(caps, dtypes, products, |p| {
        let program = match p.program {
            Ok(program) => program,
            Err(e) if is_beyond_gpus(&e) => return,
            Err(e) => {
                found.wrong.push(format!("{profile} {}: {e}", p.name));
                return;
            }
        };
        if let Err(race) = check_races(&program) {
            found.wrong.push(format!("{profile} {}: {race}", p.name));
        }
        for kernel in &program.kernels {
            if seen.insert(kernel.name.clone())
                && let Err(why) = keeps_to(caps, kernel)
            {
                let beyond = format!("{profile} {}: {kernel}: {why}", p.name);
                found.beyond.push(beyond);
            }
            let name = kernel.name.split(' ').next().unwrap_or_default();
            found.used.insert(name.to_string());
        }
    });
    found
}

#[test]
fn every_case_plans_without_races_on_every_profile() {
    let wrong: Vec<&str> = surveys()
        .iter()
        .flat_map(|s| &s.wrong)
        .map(String::as_str)
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Kernels respect the workgroup limits of the device, and cooperative-matrix kernels have SPIR-V
/// modules.
#[test]
fn kernels_keep_to_the_limits_of_every_profile() {
    let beyond = surveys().iter().flat_map(|s| &s.beyond);
    let beyond: Vec<&str> = beyond.map(String::as_str).collect();
    assert!(beyond.is_empty(), "{}", beyond.join("\n"));
}

/// Checks without compilation: the number of arguments, and constants for threads, subgroups and
/// the activation.
fn keeps_to(caps: &DeviceCaps, kernel: &KernelInstance) -> Result<(), String> {
    let most = match kernel.name.starts_with("map ") {
        true => caps.max_storage_buffers.max(caps.max_batch_buffers),
        false => caps.max_storage_buffers,
    };
    if kernel.args.len() > most as usize {
        return Err(format!("{} arguments", kernel.args.len()));
    }
    let constant = |name: &str| {
        let value = kernel
            .name
            .split(' ')
            .find_map(|c| c.strip_prefix(name)?.strip_prefix('='));
        value.and_then(|v| v.parse::<u32>().ok())
    };
    if constant("THREADS").is_some_and(|threads| threads > caps.max_workgroup) {
        return Err("too many invocations".to_string());
    }
    // Kernels with all functions have no identity: 0 would be ReLU6, also of partial sums.
    let own_name = kernel.name.split(' ').next().unwrap_or_default();
    if own_name.contains("_activated") && constant("ACTIVATION") == Some(0) {
        return Err("has all functions and applies none".to_string());
    }
    match kernel.source {
        KernelSource::SpirV { .. } if !caps.spirv => Err("is SPIR-V".to_string()),
        KernelSource::SpirV { .. }
            if constant("SUBGROUP").is_some_and(|n| Some(n) != caps.subgroup) =>
        {
            Err("has other subgroups".to_string())
        }
        KernelSource::SpirV { .. } | KernelSource::Wgsl(_) | KernelSource::UserWgsl { .. } => {
            Ok(())
        }
    }
}

#[test]
fn a_leaf_that_is_too_large_is_named() {
    let mut g = Graph::new();
    let small = g.input("small", Type::new(DType::F32, [8])).unwrap();
    g.output("y", small).unwrap();
    let large = g.state("large", Type::new(DType::F32, [1 << 30, 8]));
    let sums = g.cum_sum(large.unwrap(), 0).unwrap();
    g.output("z", sums).unwrap();
    let error = compile(&g, &CompileOptions::new(), &DeviceCaps::h200()).unwrap_err();
    assert!(error.to_string().starts_with("%1 (state) takes"), "{error}");
}

#[test]
fn every_shader_is_valid_wgsl_within_browser_limits() {
    valid_kernels(
        &DeviceCaps::browser(),
        PORTABLE,
        &mut BTreeSet::new(),
        |_| true,
    );
}

/// Plans for the smallest subgroup size of 4, the largest of 128, and 16. With 16, some kernels
/// combine clusters in one step and others in two. Shaders without subgroups are those of browsers,
/// which [`every_shader_is_valid_wgsl_within_browser_limits`] validates.
#[test]
fn every_shader_with_shuffles_is_valid_wgsl() {
    let mut valid = BTreeSet::new();
    for size in [4, 16, 128] {
        let caps = DeviceCaps {
            subgroup: Some(size),
            shuffles: true,
            natives: NativeOps {
                shuffles: true,
                ..NativeOps::default()
            },
            ..DeviceCaps::browser()
        };
        let capabilities = PORTABLE | Capabilities::SUBGROUP;
        let texts = valid_kernels(&caps, capabilities, &mut valid, |t| t.contains("subgroup"));
        let own = format!("const CLUSTER: u32 = {size}u;");
        let with_shuffles = texts.iter().filter(|t| t.contains("subgroupShuffleXor"));
        assert!(with_shuffles.clone().count() > 100);
        assert!(with_shuffles.clone().all(|t| t.contains(&own)));
    }
}

/// If a cluster contains all lanes of a column, they exchange sums by shuffles. Kernels for devices
/// without shuffles must not contain shuffles.
#[test]
fn lanes_of_a_gated_delta_net_meet_by_shuffles() {
    let mut g = Graph::new();
    let of = |shape: &[usize]| Type::new(DType::F32, shape);
    let rows = ["q", "k", "v"].map(|name| g.input(name, of(&[1, 64, 4, 128])).unwrap());
    let gates = ["g", "beta"].map(|name| g.input(name, of(&[1, 64, 4])).unwrap());
    let operands = [rows[0], rows[1], rows[2], gates[0], gates[1]];
    let o = g.gated_delta_net(operands, None, false).unwrap();
    g.output("o", o).unwrap();
    for shuffles in [false, true] {
        let mut caps = DeviceCaps::h200();
        caps.shuffles = shuffles;
        caps.natives.shuffles = shuffles;
        let program = compile(&g, &CompileOptions::new(), &caps).unwrap();
        let [kernel] = &program.kernels[..] else {
            panic!("{program}")
        };
        let KernelSource::Wgsl(text) = &kernel.source else {
            panic!("{kernel} is not WGSL")
        };
        assert!(text.contains("over_lanes(by_k[j])"));
        assert_eq!(text.contains("subgroupShuffleXor"), shuffles);
    }
}

const PORTABLE: Capabilities = Capabilities::SHADER_FLOAT16_IN_FLOAT32;

/// The WGSL kernels of all cases, after validation of those that `is_checked` selects. Texts in
/// `valid` have been validated with these capabilities before; new ones are added.
fn valid_kernels(
    caps: &DeviceCaps,
    capabilities: Capabilities,
    valid: &mut BTreeSet<Arc<str>>,
    is_checked: fn(&str) -> bool,
) -> BTreeSet<Arc<str>> {
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for_each_case(caps, |p| {
        let Ok(program) = p.program else { return };
        for kernel in &program.kernels {
            let (text, entry) = match &kernel.source {
                KernelSource::Wgsl(text) => (text, "main"),
                KernelSource::UserWgsl { text, entry } => (text, &**entry),
                KernelSource::SpirV { .. } => {
                    wrong.push(format!("{}: {kernel} is not WGSL", p.name));
                    continue;
                }
            };
            if !seen.insert(text.clone()) || !is_checked(text) || !valid.insert(text.clone()) {
                continue;
            }
            if let Err(e) = check_wgsl(text, entry, kernel.args.len(), capabilities) {
                wrong.push(format!("{}: {kernel}: {e}", p.name));
            }
        }
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    seen
}

fn check_wgsl(
    text: &str,
    entry_point: &str,
    args: usize,
    capabilities: Capabilities,
) -> Result<(), String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string(text))?;
    let info = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    info.map_err(|e| e.emit_to_string(text))?;
    if let Some((_, open)) = module.overrides.iter().next() {
        return Err(format!("constant {:?} has no value", open.name));
    }
    let storage = module.global_variables.iter();
    let storage = storage.filter(|(_, v)| matches!(v.space, naga::AddressSpace::Storage { .. }));
    let storage = storage.count();
    if storage != args || storage > DeviceCaps::browser().max_storage_buffers as usize {
        return Err(format!("{storage} storage buffers for {args} arguments"));
    }
    let entry = &module.entry_points[0];
    let invocations: u32 = entry.workgroup_size.iter().product();
    if entry.name != entry_point || invocations > DeviceCaps::browser().max_workgroup {
        return Err(format!("entry {} of {invocations} invocations", entry.name));
    }
    let mut layouter = naga::proc::Layouter::default();
    layouter
        .update(module.to_ctx())
        .map_err(|e| e.to_string())?;
    let shared = module.global_variables.iter();
    let shared = shared.filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup);
    let shared: u32 = shared.map(|(_, v)| layouter[v.ty].size).sum();
    match shared <= DeviceCaps::browser().workgroup_bytes {
        true => Ok(()),
        false => Err(format!("{shared} bytes of workgroup memory")),
    }
}

#[test]
fn every_kernel_is_planned_in_some_case() {
    let together = norms_before_one_row();
    let chained = links_of_chains();
    let coded = codebooks_on_matrices();
    let joined = rows_of_two_operands();
    let is_used = |name: &&str| {
        let of_cases = surveys().iter().any(|s| s.used.contains(*name));
        of_cases
            || [&together, &chained, &coded, &joined]
                .iter()
                .any(|all| all.contains(*name))
    };
    let unused: Vec<&str> = kernels()
        .map(|k| k.name)
        .filter(|name| !is_used(name))
        .collect();
    assert!(unused.is_empty(), "no case plans {unused:?}");
}

/// Kernels of F16 rows and weights in a format with a codebook, for too few rows to dequantize the
/// weights first. The rows of all operator cases with such weights are fewer or F32.
#[allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]
fn codebooks_on_matrices() -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for caps in [DeviceCaps::apple(), DeviceCaps::h200_without_passthrough()] {
        for kernel in coded_product(&caps).kernels {
            used.extend(kernel.name.split(' ').next().map(str::to_owned));
        }
    }
    used
}

/// A matmul of F16 rows and weights in a format with a codebook.
#[allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]
pub(crate) fn coded_product(caps: &DeviceCaps) -> GpuProgram {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F16, [CODED_ROWS, 256]));
    let bytes = Scheme::Iq2S.row_bytes(256).unwrap();
    let w = g.param("w", Type::new(DType::U8, [136, bytes]));
    let y = g.dequant_matmul(x.unwrap(), w.unwrap(), Scheme::Iq2S);
    g.output("y", y.unwrap()).unwrap();
    compile(&g, &CompileOptions::new(), caps).unwrap()
}

/// More rows than kernels for few rows take, and fewer than weights are dequantized for.
const CODED_ROWS: usize = 40;

/// Kernels of GEMV with fused norms. These kernels replace several nodes, so no single-operator
/// case uses them.
#[allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]
fn norms_before_one_row() -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for f in [None, Some(UnaryFn::Gelu)] {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [1, 64])).unwrap();
        let gamma = g.param("gamma", Type::new(DType::F32, [64])).unwrap();
        let w = g.param("w", Type::new(DType::F32, [64, 16])).unwrap();
        let normed = g.layer_norm(x, gamma, None, 1, 1e-5).unwrap();
        let y = g.linear(normed, w, None, f).unwrap();
        g.output("y", y).unwrap();
        let program = compile(&g, &CompileOptions::new(), &DeviceCaps::h200()).unwrap();
        check_races(&program).unwrap();
        let names = program.kernels.iter().map(|k| k.name.split(' ').next());
        used.extend(names.flatten().map(str::to_owned));
    }
    used
}

/// Kernels of a gather from two joined operands, which replaces two nodes.
#[allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]
fn rows_of_two_operands() -> BTreeSet<String> {
    let mut g = Graph::new();
    let [x, more] =
        ["x", "more"].map(|name| g.input(name, Type::new(DType::F32, [3, 64])).unwrap());
    let rows = g.input("rows", Type::new(DType::I32, [5])).unwrap();
    let all = g.concat(&[x, more], 0).unwrap();
    let y = g.gather(all, rows, 0).unwrap();
    g.output("y", y).unwrap();
    let program = compile(&g, &CompileOptions::new(), &DeviceCaps::h200()).unwrap();
    check_races(&program).unwrap();
    let names = program.kernels.iter().map(|k| k.name.split(' ').next());
    names.flatten().map(str::to_owned).collect()
}

/// Kernels with dependent launch, which only graphs with several matmuls use.
#[allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]
fn links_of_chains() -> BTreeSet<String> {
    let mut used = BTreeSet::new();
    for packed_dots in [false, true] {
        let caps = DeviceCaps {
            packed_dots,
            ..DeviceCaps::h200()
        };
        let mut g = Graph::new();
        let (width, inner) = (2048, 5632);
        let mut x = g.input("x", Type::new(DType::F32, [1, width])).unwrap();
        for layer in 0..2 {
            let product = |g: &mut Graph, x, name: &str, [k, n]: [usize; 2]| {
                let bytes = Scheme::Q4K.row_bytes(k).unwrap();
                let ty = Type::new(DType::U8, [n, bytes]);
                let w = g.param(&format!("{name}{layer}"), ty).unwrap();
                g.dequant_matmul(x, w, Scheme::Q4K).unwrap()
            };
            let gate = product(&mut g, x, "gate", [width, inner]);
            let up = product(&mut g, x, "up", [width, inner]);
            let gate = g.silu(gate).unwrap();
            let a = g.mul(gate, up).unwrap();
            let y = product(&mut g, a, "down", [inner, width]);
            x = g.plus(x, y).unwrap();
        }
        g.output("y", x).unwrap();
        let program = compile(&g, &CompileOptions::new(), &caps).unwrap();
        check_races(&program).unwrap();
        let names = program.kernels.iter().map(|k| k.name.split(' ').next());
        used.extend(names.flatten().map(str::to_owned));
    }
    used.extend(crate::tokens::kernels());
    used
}

#[test]
fn kernel_names_are_unique() {
    let mut names = BTreeSet::new();
    for kernel in kernels() {
        assert!(names.insert(kernel.name), "two kernels `{}`", kernel.name);
        assert!(matches!(
            kernel.code,
            KernelCode::Wgsl(_) | KernelCode::SpirV(_)
        ));
    }
}

#[test]
fn new_sizes_change_numbers_only() {
    let mut symbolic = 0;
    for_each_case(&DeviceCaps::h200(), |p| {
        let Ok(program) = p.program else { return };
        // Cases that must fail have invalid sizes.
        if program.symbols.is_empty() || p.case.expected_fault.is_some() {
            return;
        }
        symbolic += 1;
        let ones = program.symbols.iter();
        let ones = ones.fold(Bindings::new(), |b, (s, _)| b.with(s.name(), 1));
        let (mut own, mut bound, mut small) = (
            LaunchSizes::default(),
            LaunchSizes::default(),
            LaunchSizes::default(),
        );
        own.compute(
            &program,
            &p.case.sizes,
            tercet_ir::random::RngState::default(),
        )
        .expect("the case's sizes");
        bound
            .compute(
                &program,
                &p.case.bounds,
                tercet_ir::random::RngState::default(),
            )
            .expect("the bounds");
        assert_eq!(own.params.len(), bound.params.len(), "{}", p.name);
        assert_eq!(own.grids.len(), program.steps.len(), "{}", p.name);
        for (own, bound) in own.grids.iter().zip(&bound.grids) {
            // Two variants of a contraction are switched by size: one of them has an empty grid.
            let switched = bound.contains(&0) || own.contains(&0);
            let within = own.iter().zip(bound).all(|(a, b)| a <= b);
            assert!(within || switched, "{}: {own:?} above {bound:?}", p.name);
        }
        // In some cases a size of one is invalid, which is an expected error.
        let _ = small.compute(&program, &ones, tercet_ir::random::RngState::default());
    });
    assert!(symbolic > 10, "cases with symbols: {symbolic}");
}
