//! Tests that all WGSL of matmuls is valid, and tests of the kernels selected per size.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashSet;

use tercet_ir::scalar::UnaryFn;
use tercet_ir::{CompileOptions, DType, Graph, OpKind, Scheme, Type};

use tercet_plan::{
    DeviceCaps, GpuProgram, KernelInstance, KernelSource, LaunchSizes, StepOp, compile,
};

fn validate(instance: &KernelInstance) {
    let KernelSource::Wgsl(text) = &instance.source else {
        return;
    };
    let fail = |e: String| -> ! { panic!("{instance}: {e}") };
    let module =
        naga::front::wgsl::parse_str(text).unwrap_or_else(|e| fail(e.emit_to_string(text)));
    naga::valid::Validator::new(
        naga::valid::ValidationFlags::all(),
        // `unpack2x16float` is core WGSL, but naga requires a flag for it, because OpenGL may lack
        // it.
        naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32 | naga::valid::Capabilities::SUBGROUP,
    )
    .validate(&module)
    .unwrap_or_else(|e| fail(e.emit_to_string(text)));
}

#[test]
fn texts_of_all_cases_are_valid() {
    let mut seen = HashSet::new();
    let kinds = [
        OpKind::MatMul,
        OpKind::Linear,
        OpKind::DotGeneral,
        OpKind::DequantMatMul,
        OpKind::Dequantize,
    ];
    for kind in kinds {
        for case in tercet_cases::cases(kind) {
            let wide = [DType::F64, DType::I64];
            let dtypes = kind.doc().dtypes.iter();
            for &dtype in dtypes.filter(|d| case.runs_with(**d) && !wide.contains(d)) {
                let built = case.build(dtype).unwrap();
                let options = CompileOptions {
                    bounds: built.bounds.clone(),
                    ..CompileOptions::new()
                };
                for caps in [
                    DeviceCaps::browser(),
                    DeviceCaps::h200(),
                    DeviceCaps::lavapipe(),
                ] {
                    let program = compile(&built.graph, &options, &caps)
                        .unwrap_or_else(|e| panic!("{kind:?} {} {dtype}: {e}", case.name));
                    let new = program
                        .kernels
                        .into_iter()
                        .filter(|i| seen.insert(i.clone()));
                    new.for_each(|i| validate(&i));
                }
            }
        }
    }
    assert!(seen.len() > 100, "{}", seen.len());
}

/// Names of the kernels with a nonempty grid in a run with this value of the symbol `m`.
fn running(program: &GpuProgram, m: usize) -> Vec<&str> {
    let mut launch = LaunchSizes::default();
    let sizes = tercet_ir::Bindings::new().with("m", m);
    launch
        .compute(program, &sizes, tercet_ir::random::RngState::default())
        .unwrap();
    let steps = program.steps.iter().zip(&launch.grids);
    let on = steps.filter_map(|(step, grid)| match &step.work {
        StepOp::Dispatch(d) if !grid.contains(&0) => Some(d.kernel),
        StepOp::Dispatch(_) | StepOp::Copy { .. } | StepOp::Fill { .. } => None,
    });
    on.map(|k| {
        let name = &program.kernels[k.0 as usize].name;
        name.split(' ').next().unwrap()
    })
    .collect()
}

#[test]
fn one_program_serves_one_row_few_and_many() {
    let mut g = Graph::new();
    let m = tercet_ir::Dim::sym("m");
    let x = g.input("x", Type::new(DType::F32, [m, 64.into()])).unwrap();
    let w = g.param("w", Type::new(DType::F32, [64, 96])).unwrap();
    let y = g.matmul(x, w).unwrap();
    g.output("y", y).unwrap();
    let row = Scheme::Q4_0.row_bytes(96).unwrap();
    let w = g.param("q", Type::new(DType::U8, [5, row])).unwrap();
    let z = g.dequant_matmul(y, w, Scheme::Q4_0).unwrap();
    g.output("z", z).unwrap();
    let options = CompileOptions::new().bound("m", 512);
    let program = compile(&g, &options, &DeviceCaps::laptop()).unwrap();
    for (m, names) in [
        (1, ["gemv_strips", "gemv_held"]),
        (8, ["gemv_across", "gemv_packed_wide"]),
        (9, ["gemm_quads", "gemv_packed_wide"]),
        (33, ["gemm_quads", "gemm_packed"]),
        (512, ["gemm_quads", "gemm_packed"]),
    ] {
        assert_eq!(running(&program, m), names, "{m}");
    }
}

#[test]
fn views_of_operands_cost_no_copy() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F16, [6, 4, 96])).unwrap();
    let q = g.slice(x, &[0, 0, 0], &[6, 4, 32], &[1, 1, 1]).unwrap();
    let k = g.slice(x, &[0, 0, 32], &[6, 4, 64], &[1, 1, 1]).unwrap();
    let k = g.transpose(k, &[0, 2, 1]).unwrap();
    let y = g.matmul(q, k).unwrap();
    g.output("y", y).unwrap();
    let program = compile(&g, &CompileOptions::new(), &DeviceCaps::laptop()).unwrap();
    let names: Vec<&str> = program.kernels.iter().map(|k| k.name.as_str()).collect();
    assert!(
        matches!(names[..], [one] if one.starts_with("gemv_along")),
        "{names:?}"
    );
    assert!(names[0].contains("B_WORDS=1"), "{names:?}");
}

/// Kernels of `[batch.., m, 768] x [768, 3072]` with bias and GELU, for a dtype.
fn linear_kernels(dtype: DType, caps: &DeviceCaps, m: usize) -> Vec<String> {
    let mut g = Graph::new();
    let rows = tercet_ir::Dim::sym("m");
    let x = g.input("x", Type::new(dtype, [2.into(), rows, 768.into()]));
    let w = g.param("w", Type::new(dtype, [768, 3072])).unwrap();
    let bias = g.param("bias", Type::new(dtype, [3072])).unwrap();
    let y = g.linear(x.unwrap(), w, Some(bias), Some(UnaryFn::Gelu));
    g.output("y", y.unwrap()).unwrap();
    let options = CompileOptions::new().bound("m", 512);
    let program = compile(&g, &options, caps).unwrap();
    let on = running(&program, m);
    let names = program.kernels.iter().map(|k| k.name.clone());
    names
        .filter(|n| on.iter().any(|on| n.starts_with(&format!("{on} "))))
        .collect()
}

#[test]
fn tiles_of_16_bit_floats_run_on_cooperative_matrices() {
    for (dtype, name) in [
        (DType::F16, "gemm_coop_f16"),
        (DType::BF16, "gemm_coop_bf16"),
    ] {
        let lying = DeviceCaps {
            coop_fragment_layout: false,
            ..DeviceCaps::h200()
        };
        let names = linear_kernels(dtype, &lying, 128);
        assert_eq!(names.len(), 1, "{names:?}");
        assert!(names[0].starts_with(name), "{names:?}");
        for constant in ["ALIGNED_A=1", "ALIGNED_B=1", "ACTIVATION=4", "HAS_BIAS=1"] {
            assert!(names[0].contains(constant), "{names:?}");
        }
        // Matmuls of few rows, and matmuls on devices without cooperative matrices of the dtype,
        // use portable kernels.
        let names = linear_kernels(dtype, &DeviceCaps::h200(), 2);
        assert!(names[0].starts_with("gemv_across_activated"), "{names:?}");
        let names = linear_kernels(dtype, &DeviceCaps::laptop(), 128);
        assert!(
            names[0].starts_with("gemm_quads_half_activated"),
            "{names:?}"
        );
    }
    // F32 uses split-F16.
    let names = linear_kernels(DType::F32, &DeviceCaps::h200(), 128);
    assert!(names[0].starts_with("gemm_pairs_f32"), "{names:?}");
    assert!(names[1].starts_with("gemm_rest_activated"), "{names:?}");
    let names = linear_kernels(DType::F32, &DeviceCaps::laptop(), 128);
    assert!(names[0].starts_with("gemm_quads_activated"), "{names:?}");
    // Constant weights are prepacked if the fragment layout is known.
    let names = linear_kernels(DType::F16, &DeviceCaps::h200(), 128);
    assert!(names[0].starts_with("gemm_laid_f16"), "{names:?}");
}

#[test]
fn products_of_few_tiles_sum_parts_of_k_side_by_side() {
    let kernels = |scheme: Option<Scheme>, caps: &DeviceCaps| -> Vec<String> {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [128, 3072])).unwrap();
        let y = match scheme {
            Some(scheme) => {
                let row = scheme.row_bytes(3072).unwrap();
                let w = g.param("w", Type::new(DType::U8, [768, row])).unwrap();
                g.dequant_matmul(x, w, scheme).unwrap()
            }
            None => {
                let w = g.param("w", Type::new(DType::F32, [3072, 768])).unwrap();
                let bias = g.param("bias", Type::new(DType::F32, [768])).unwrap();
                g.linear(x, w, Some(bias), Some(UnaryFn::Gelu)).unwrap()
            }
        };
        g.output("y", y).unwrap();
        let program = compile(&g, &CompileOptions::new(), caps).unwrap();
        program.kernels.into_iter().map(|k| k.name).collect()
    };
    let floats = kernels(None, &DeviceCaps::h200());
    let [tiles, sums] = &floats[..] else {
        panic!("{floats:?}");
    };
    // With split-K, the activation is applied after the partial sums are added.
    assert!(
        tiles.starts_with("gemm_quads ") && !tiles.contains("PARTS=1 "),
        "{floats:?}"
    );
    assert!(sums.starts_with("sum_parts_activated"), "{floats:?}");
    // Few tiles of small-M GEMM with prepacked rows are split along k, too.
    let laid = kernels(Some(Scheme::Q8_0), &DeviceCaps::h200());
    assert!(
        matches!(&laid[..], [rows, tiles, sums]
            if rows.starts_with("lay_rows ")
                && tiles.starts_with("few_rows_laid_q8_0 ")
                && sums.starts_with("sum_parts ")),
        "{laid:?}"
    );
    let without_lanes = DeviceCaps {
        coop_fragment_layout: false,
        ..DeviceCaps::h200()
    };
    let packed = kernels(Some(Scheme::Q8_0), &without_lanes);
    assert!(
        matches!(&packed[..], [.., tiles, sums]
            if tiles.starts_with("gemm_quads_packed") && sums.starts_with("sum_parts ")),
        "{packed:?}"
    );
}

#[test]
fn a_batch_of_heads_runs_on_cooperative_matrices_without_copies() {
    let mut g = Graph::new();
    let qkv = g
        .input("qkv", Type::new(DType::F16, [2, 64, 3, 4, 32]))
        .unwrap();
    let head = |g: &mut Graph, at: usize, perm: [usize; 4]| {
        let part = g.narrow(qkv, 2, at, 1).unwrap();
        let part = g.reshape(part, [2, 64, 4, 32]).unwrap();
        g.transpose(part, &perm).unwrap()
    };
    let q = head(&mut g, 0, [0, 2, 1, 3]);
    let k = head(&mut g, 1, [0, 2, 3, 1]);
    let y = g.matmul(q, k).unwrap();
    g.output("y", y).unwrap();
    let program = compile(&g, &CompileOptions::new(), &DeviceCaps::h200()).unwrap();
    let names: Vec<&str> = program.kernels.iter().map(|k| k.name.as_str()).collect();
    assert!(
        matches!(names[..], [one] if one.contains("B_TRANSPOSED=1")),
        "{names:?}"
    );
}

/// Shared memory in bytes and number of threads of a WGSL kernel.
fn workgroup_of(instance: &KernelInstance) -> (u32, u32) {
    let KernelSource::Wgsl(text) = &instance.source else {
        panic!("{instance} is no WGSL");
    };
    let module = naga::front::wgsl::parse_str(text).unwrap();
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).unwrap();
    let shared = (module.global_variables.iter())
        .filter(|(_, v)| v.space == naga::AddressSpace::WorkGroup)
        .map(|(_, v)| layouter[v.ty].size)
        .sum();
    let size = module.entry_points[0].workgroup_size;
    (shared, size.iter().product())
}

#[test]
fn a_row_in_registers_keeps_to_what_a_workgroup_has() {
    let ks = [32, 96, 768, 2048, 4096, 5632, 8192, 14336, 28672];
    let sizes = ks
        .iter()
        .flat_map(|k| [2, 7, 2048, 4000, 32000].map(|n| (*k, n)));
    let cases = sizes.flat_map(|size| [Scheme::Q8_0, Scheme::Q4_0].map(|s| (size, s)));
    for ((k, n), scheme) in cases {
        let row = scheme.row_bytes(k).unwrap();
        for caps in [
            DeviceCaps::browser(),
            DeviceCaps::laptop(),
            DeviceCaps::h200(),
            DeviceCaps::rdna3(64),
            DeviceCaps::mali(),
        ] {
            if (n * row) as u64 > caps.max_binding_bytes {
                continue;
            }
            let mut g = Graph::new();
            let x = g.input("x", Type::new(DType::F32, [1, k])).unwrap();
            let w = g.param("w", Type::new(DType::U8, [n, row])).unwrap();
            let y = g.dequant_matmul(x, w, scheme).unwrap();
            g.output("y", y).unwrap();
            let program = compile(&g, &CompileOptions::new(), &caps).unwrap();
            let [kernel] = &program.kernels[..] else {
                panic!("{program}");
            };
            let is_held = kernel.name.starts_with("gemv_held ");
            let has_dots = kernel.name.starts_with("gemv_dots ");
            assert!(is_held || has_dots, "{kernel}");
            assert!(!has_dots || caps.packed_dots && scheme == Scheme::Q4_0);
            let has_many =
                caps.device.units == Some(132) && n == 32000 && [2048, 4096].contains(&k);
            let must = has_many && scheme == Scheme::Q4_0;
            assert!(has_dots || !must, "{kernel}");
            let (shared, invocations) = workgroup_of(kernel);
            assert!(shared <= caps.workgroup_bytes, "{kernel}: {shared}");
            assert!(invocations <= caps.max_workgroup, "{kernel}: {invocations}");
        }
    }
}

#[test]
fn rows_of_prompts_are_rounded_where_that_was_asked_for() {
    let program = |scheme: Scheme, products: Option<DType>, caps: &DeviceCaps| {
        let mut g = Graph::new();
        let m = tercet_ir::Dim::sym("m");
        let x = g.input("x", Type::new(DType::F32, [m, 4096.into()]));
        let stored = scheme.stored_len(4096).unwrap();
        let w = g.param("w", Type::new(scheme.storage(), [4096, stored]));
        let y = g.dequant_matmul(x.unwrap(), w.unwrap(), scheme).unwrap();
        assert_eq!(g.ty(y).dtype, DType::F32);
        g.output("y", y).unwrap();
        let options = CompileOptions::new()
            .bound("m", 512)
            .with_matmul_precision(products);
        compile(&g, &options, caps).unwrap()
    };
    let has = |on: &[String], name: &str| on.iter().any(|kernel| kernel.starts_with(name));
    let h200 = DeviceCaps::h200();
    for (scheme, dtype) in [
        (Scheme::Q4K, DType::F16),
        (Scheme::Q8_0, DType::BF16),
        (Scheme::F16, DType::F16),
        (Scheme::BF16, DType::BF16),
    ] {
        let [exact, rounded] = [None, Some(dtype)].map(|p| program(scheme, p, &h200));
        // With at most eight rows, permission to round rows to 16 bits selects no other kernel.
        for m in [1, 2, 8] {
            assert_eq!(running(&exact, m), running(&rounded, m), "{scheme:?} {m}");
        }
        // For a single row, permission to round rows reduces the number of int8 limbs by one.
        let digits = |p: &GpuProgram| {
            let all = p.kernels.iter().map(|k| k.name.as_str());
            let all: Vec<&str> = all.filter(|k| k.starts_with("gemv_dots ")).collect();
            [2, 3].map(|n| all.iter().any(|k| k.contains(&format!(" DIGITS={n} "))))
        };
        let is_integers = scheme == Scheme::Q4K;
        assert_eq!(digits(&exact), [false, is_integers], "{scheme:?}");
        assert_eq!(digits(&rounded), [is_integers, false], "{scheme:?}");
        let (exact, rounded) = (running(&exact, 512), running(&rounded, 512));
        let exact: Vec<String> = exact.iter().map(ToString::to_string).collect();
        let rounded: Vec<String> = rounded.iter().map(ToString::to_string).collect();
        assert!(
            has(&rounded, "matmul_narrow_rows"),
            "{scheme:?}: {rounded:?}"
        );
        let matrices = ["gemm_coop", "gemm_laid"]
            .iter()
            .any(|name| has(&rounded, name));
        assert!(matrices, "{scheme:?}: {rounded:?}");
        assert!(!has(&exact, "matmul_narrow_rows"), "{scheme:?}: {exact:?}");
    }
    // Rows are not rounded if the weights have another 16-bit type, or if the device lacks
    // cooperative matrices.
    let other = program(Scheme::BF16, Some(DType::F16), &h200);
    let exact = program(Scheme::BF16, None, &h200);
    assert_eq!(other.to_string(), exact.to_string());
    let laptop = DeviceCaps::laptop();
    let without = program(Scheme::Q4K, Some(DType::F16), &laptop);
    let exact = program(Scheme::Q4K, None, &laptop);
    assert_eq!(without.to_string(), exact.to_string());
}

#[test]
fn two_dozen_rows_are_laid_out_or_taken_in_blocks_of_eight() {
    let kernel = |scheme: Scheme, caps: &DeviceCaps| {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [24, 4096])).unwrap();
        let row = scheme.row_bytes(4096).unwrap();
        let w = g
            .param("w", Type::new(scheme.storage(), [4096, row]))
            .unwrap();
        let y = g.dequant_matmul(x, w, scheme).unwrap();
        g.output("y", y).unwrap();
        let program = compile(&g, &CompileOptions::new(), caps).unwrap();
        let names = program.kernels.iter().map(|k| k.name.clone());
        names.collect::<Vec<_>>().join("; ")
    };
    let h200 = DeviceCaps::h200();
    assert!(kernel(Scheme::Q4K, &h200).contains("few_rows_laid_q4_k"));
    // These weight formats have no kernels with prepacked rows.
    let all = [
        (Scheme::Q5K, &h200),
        (Scheme::Q4K, &DeviceCaps::browser()),
        (Scheme::Q4K, &DeviceCaps::laptop()),
    ];
    for (scheme, caps) in all {
        let names = kernel(scheme, caps);
        assert!(names.starts_with("gemv_packed"), "{names}");
        assert!(names.contains("ROWS=8"), "{names}");
    }
}

/// Decode steps of one layer of an exported model: weights are stored along n, and the residual sum
/// is read later.
#[test]
fn products_of_one_row_take_norms_in() {
    let program = |caps: &DeviceCaps| {
        let mut g = Graph::new();
        let ty = |shape: &[usize]| Type::new(DType::F16, shape);
        let x = g.input("x", ty(&[1, 1, 768])).unwrap();
        let r = g.input("r", ty(&[1, 1, 768])).unwrap();
        let gamma = g.param("gamma", ty(&[768])).unwrap();
        let beta = g.param("beta", ty(&[768])).unwrap();
        let w = g.param("w", ty(&[768, 2304])).unwrap();
        let bias = g.param("bias", ty(&[2304])).unwrap();
        let (normed, sum) = g
            .residual_layer_norm(x, r, gamma, beta, None, 1e-5)
            .unwrap();
        let y = g.linear(normed, w, Some(bias), None).unwrap();
        g.output("y", y).unwrap();
        g.output("sum", sum).unwrap();
        let program = compile(&g, &CompileOptions::new(), caps).unwrap();
        program.kernels.iter().for_each(validate);
        let names = program.kernels.iter().map(|k| k.name.clone());
        names.filter(|n| !n.starts_with("copy")).collect::<Vec<_>>()
    };
    let names = program(&DeviceCaps::h200());
    let is_one = matches!(&names[..], [one] if one.starts_with("gemv_strips_normed "));
    assert!(is_one, "{names:?}");
    // On a device without subgroup shuffles, a norm in each workgroup would take longer than a
    // separate norm.
    let names = program(&DeviceCaps::browser());
    let are_two = names.iter().any(|n| n.starts_with("gemv_strips "));
    assert!(are_two && names.len() == 2, "{names:?}");
}
