//! Tests of the cooperative-matrix GEMM against f64 sums: edges, layouts, offsets, batches and
//! epilogues.
//!
//! On a device without cooperative matrices, the test prints the reason and passes. If
//! `TERCET_REQUIRE` names `coop`, as in CI on the newer software device, the test fails instead.

#![allow(clippy::unwrap_used, reason = "helper failures fail the test")]

#[path = "../common/mod.rs"]
mod common;
mod data;

use common::{Builder, assert_silent, backend};
use data::{
    Case, Data, Elements, LARGE, ODD, OFFSET_BIAS, OFFSET_RESIDUAL, PLAIN, Places, SHAPES,
    UNTOUCHED, data,
};
use tercet_ir::accuracy::{Accuracy, tolerance};
use tercet_ir::{DType, Dim, Executable, NodeId, Tensor, TensorType};
use tercet_plan::gemm_coop::{
    self, ACTIVATIONS, CoopGemmOptions, CoopGemmTiling, CoopScope, GemmCoopParams,
};
use tercet_plan::{
    CoopType, KernelDispatch, KernelId, KernelInstance, ParamBlock, ProgramStep, StepOp, SymInt,
};
use tercet_vulkan::{VulkanBackend, VulkanDeviceKind};

fn block(c: &Case, p: &Places, len_c: usize) -> GemmCoopParams {
    let num = |n: usize| SymInt::Const(n as i64);
    GemmCoopParams {
        m: num(c.m),
        n: num(c.n),
        k: num(c.k),
        batches: num(c.outer * c.inner),
        batch_inner: num(c.inner),
        splits: num(1),
        split_k: num(c.k),
        lda: num(p.lda),
        ldb: num(p.ldb),
        ldc: num(p.ldc),
        ld_residual: num(p.ldr),
        offset_a: num(c.offset[0]),
        offset_b: num(c.offset[1]),
        offset_c: num(c.offset[2]),
        offset_bias: num(OFFSET_BIAS),
        offset_residual: num(OFFSET_RESIDUAL),
        outer_a: num(p.outer[0]),
        outer_b: num(p.outer[1]),
        outer_c: num(p.outer[2]),
        outer_residual: num(p.outer[3]),
        inner_a: num(p.inner[0]),
        inner_b: num(p.inner[1]),
        inner_c: num(p.inner[2]),
        inner_residual: num(p.inner[3]),
        split_c: num(0),
        len_c: num(len_c),
    }
}

/// Fills C, runs the matmul, and returns the words of C.
fn run(
    backend: &VulkanBackend,
    (c, p): (&Case, &Places),
    way: (CoopType, &CoopGemmTiling),
    data: &Data,
) -> Vec<u8> {
    run_with(backend, c, way, data, (&block(c, p, data.len_c), 1))
}

/// As [`run`], with these parameters and this number of split-K chunks.
fn run_with(
    backend: &VulkanBackend,
    c: &Case,
    (ty, tiling): (CoopType, &CoopGemmTiling),
    data: &Data,
    (params, splits): (&GemmCoopParams, usize),
) -> Vec<u8> {
    let element_words = |e: &Elements| (e.values.len() * e.dtype.size_bytes()).div_ceil(4);
    let operands = [&data.a, &data.b, &data.bias, &data.residual];
    let words = operands.map(element_words).into_iter().max().unwrap_or(0);
    let words = words.max(data.len_c) + 16;
    let mut builder = Builder::new(backend, Dim::Known(words), words);
    let names = ["a", "b", "bias", "residual"];
    let mut args: Vec<_> = names.map(|name| builder.input(name)).to_vec();
    let result = builder.output("c");
    args.push(result);
    builder.fill(result, UNTOUCHED, false);
    let constants = gemm_coop::constants(tiling, &c.options);
    let kernel = KernelInstance::new(&gemm_coop::kernel(ty, tiling.scope).def, &constants);
    builder.program.params = params.words();
    let rows = if c.folded_grid { 3 } else { 1 };
    let groups = tiling.groups(c.m, c.n).div_ceil(rows);
    let batches = c.outer * c.inner * splits;
    let depth = if c.folded_grid {
        batches.div_ceil(2)
    } else {
        batches
    };
    builder.program.kernels.push(kernel);
    builder.program.steps.push(ProgramStep {
        work: StepOp::Dispatch(KernelDispatch {
            kernel: KernelId(0),
            args: args.into_iter().collect(),
            block: 0,
            grid: [groups, rows, depth].map(|n| SymInt::Const(n as i64)),
        }),
        barrier: true,
        branches: Default::default(),
        node: NodeId(0),
        op: "test",
    });
    let inputs = operands.map(|e| e.words(words));
    let inputs: Vec<_> = names.into_iter().zip(&inputs).collect();
    let exe: &mut dyn Executable = &mut builder.load(backend);
    exe.run(&inputs).unwrap()[0].bytes().to_vec()
}

fn element_of(ty: CoopType) -> DType {
    match ty {
        CoopType::F16 => DType::F16,
        CoopType::BF16 => DType::BF16,
    }
}

fn check(backend: &VulkanBackend, c: &Case, ty: CoopType, tiling: &CoopGemmTiling) {
    let data = data(c, &Places::of(c), element_of(ty));
    check_data(backend, (c, &data), ty, tiling);
}

fn check_data(
    backend: &VulkanBackend,
    (c, data): (&Case, &Data),
    ty: CoopType,
    tiling: &CoopGemmTiling,
) {
    let element = element_of(ty);
    let bytes = run(backend, (c, &Places::of(c)), (ty, tiling), data);
    let what = format!("{element} {c:?} {tiling:?}");

    let out = if c.options.out_f32 {
        DType::F32
    } else {
        element
    };
    let size = out.size_bytes();
    let all = TensorType::new(out, &[bytes.len() / size]);
    let got = Tensor::from_bytes(all, &bytes).unwrap().to_f64s();
    let scale = data.wanted.iter().map(|w| w.1.abs()).fold(1e-30, f64::max);
    let allowed = tolerance(Accuracy::Contraction, out);
    let mut written = vec![false; got.len()];
    for &(at, wanted) in &data.wanted {
        written[at] = true;
        let units = allowed.error_in_tolerances(got[at], wanted, scale);
        assert!(units <= 1.0, "{what}: [{at}] is {}, not {wanted}", got[at]);
    }
    let untouched = UNTOUCHED.to_le_bytes();
    for (at, element) in bytes.chunks_exact(size).enumerate() {
        // The upper half of the last word is padding and must be 0.
        let padding = at == data.len_c && size == 2 && at % 2 == 1;
        let wanted = if padding { &[0, 0] } else { &untouched[..size] };
        assert!(
            written[at] || element == wanted,
            "{what}: [{at}] is touched"
        );
    }
}

/// The operand types that a device supports, with all tilings, the smallest last.
type Types = Vec<(CoopType, Vec<CoopGemmTiling>)>;

/// The device and the types that its cooperative matrices support.
fn device() -> Option<(&'static VulkanBackend, Types)> {
    let backend = backend()?;
    let types = [CoopType::F16, CoopType::BF16].map(|ty| {
        let mut tilings = CoopGemmTiling::candidates(backend.caps(), ty);
        tilings.sort_by_key(|t| std::cmp::Reverse((t.tile[0] * t.tile[1], t.stages)));
        (ty, tilings)
    });
    let types: Vec<_> = types.into_iter().filter(|(_, t)| !t.is_empty()).collect();
    if types.is_empty() {
        let reason = format!("{} has no cooperative matrices", backend.device().name);
        let required = std::env::var("TERCET_REQUIRE").unwrap_or_default();
        let required = required.split(',').any(|name| name.trim() == "coop");
        assert!(!required, "TERCET_REQUIRE names coop: {reason}");
        eprintln!("ignored: {reason}");
        return None;
    }
    Some((backend, types))
}

fn with_b(shape: &Case, b_transposed: bool) -> Case {
    Case {
        options: CoopGemmOptions {
            b_transposed,
            ..shape.options
        },
        ..*shape
    }
}

/// The smallest subgroup-scope tiling, which compiles several times faster on a CPU.
fn smallest(tilings: &[CoopGemmTiling]) -> &CoopGemmTiling {
    let of_subgroups = |t: &&CoopGemmTiling| t.scope == CoopScope::Subgroup;
    let last = tilings.iter().rfind(of_subgroups);
    last.expect("a device with cooperative matrices supports subgroup scope")
}

/// Returns the whole list on a GPU. On a CPU device, which takes many seconds to compile a kernel,
/// returns at most `n` of its elements.
fn some<'a, T>(backend: &VulkanBackend, all: &'a [T], n: usize) -> impl Iterator<Item = &'a T> {
    let every = match backend.device().kind {
        VulkanDeviceKind::Cpu => all.len().div_ceil(n),
        _ => 1,
    };
    all.iter().step_by(every.max(1))
}

#[test]
fn products_of_every_layout_agree_with_f64() {
    let Some((backend, types)) = device() else {
        return;
    };
    let is_slow = backend.device().kind == VulkanDeviceKind::Cpu;
    let shapes: Vec<&Case> = SHAPES.iter().chain([&LARGE]).collect();
    for (ty, tilings) in &types {
        for b_transposed in [false, true] {
            for (at, &&shape) in some(backend, &shapes, 8).enumerate() {
                // On slow devices, test each option set in one layout only, because each needs
                // another compiled kernel.
                if is_slow && (at % 2 == 1) == b_transposed && shape.options != PLAIN {
                    continue;
                }
                check(
                    backend,
                    &with_b(&shape, b_transposed),
                    *ty,
                    smallest(tilings),
                );
            }
        }
    }
    assert_silent(backend);
}

/// Tests each tiling once with one layout and alternating epilogues, on a matmul with inner and
/// edge tiles. Subgroup-scope tilings are also tested with odd sizes. A GPU takes a second to
/// compile each pipeline.
#[test]
fn every_tiling_agrees_with_f64() {
    let Some((backend, types)) = device() else {
        return;
    };
    for (ty, tilings) in &types {
        let cases: Vec<Case> = (0..4)
            .map(|at| {
                let plain = with_b(&LARGE, at % 2 == 1);
                let options = CoopGemmOptions {
                    activation: Some(ACTIVATIONS[at % ACTIVATIONS.len()]),
                    bias_f32: Some(at % 4 < 2),
                    residual_f32: (at % 3 < 2).then_some(at % 3 == 0),
                    out_f32: at % 4 == 1,
                    // There is one batch.
                    planes: false,
                    native_f16_conversions: at != 3,
                    ..plain.options
                };
                match at {
                    0 => plain,
                    _ => Case { options, ..plain },
                }
            })
            .chain([ODD])
            .collect();
        let element = element_of(*ty);
        let cases = cases.into_iter();
        let cases: Vec<(Case, Data)> = cases
            .map(|c| (c, data(&c, &Places::of(&c), element)))
            .collect();
        let (odd, large) = cases.split_last().unwrap();
        // A CPU device takes seconds to compile a large tile, so only small ones are tested there.
        let most = |t: &CoopGemmTiling| if t.stages == 2 { 64 } else { 32 };
        let small = |t: &CoopGemmTiling| {
            backend.device().kind != VulkanDeviceKind::Cpu || t.tile[0] <= most(t)
        };
        let small: Vec<CoopGemmTiling> = tilings.iter().filter(|t| small(t)).cloned().collect();
        for (at, tiling) in some(backend, &small, 3).enumerate() {
            let (case, data) = &large[at % large.len()];
            check_data(backend, (case, data), *ty, tiling);
            if tiling.scope == CoopScope::Subgroup {
                check_data(backend, (&odd.0, &odd.1), *ty, tiling);
            }
        }
    }
    assert_silent(backend);
}

/// Split-K chunks are stored one after the other, even if the last chunks are short or empty.
#[test]
fn parts_of_k_add_up() {
    let Some((backend, types)) = device() else {
        return;
    };
    for (ty, tilings) in &types {
        let tiling = smallest(tilings);
        for (k, split_k) in [(136, 64), (96, 32), (53, 32), (16, 32)] {
            let options = CoopGemmOptions {
                out_f32: true,
                aligned_a: k % 8 == 0,
                aligned_b: true,
                aligned_c: true,
                ..PLAIN
            };
            let case = Case {
                m: 37,
                n: 48,
                k,
                options,
                ..ODD
            };
            let p = Places::of(&case);
            let data = data(&case, &p, element_of(*ty));
            let len = case.m * case.n;
            let params = GemmCoopParams {
                splits: SymInt::Const(3),
                split_k: SymInt::Const(split_k),
                split_c: SymInt::Const(len as i64),
                len_c: SymInt::Const(3 * len as i64),
                ..block(&case, &p, 0)
            };
            let parts = Data {
                len_c: 3 * len,
                ..data
            };
            let bytes = run_with(backend, &case, (*ty, tiling), &parts, (&params, 3));
            let all = TensorType::new(DType::F32, &[bytes.len() / 4]);
            let got = Tensor::from_bytes(all, &bytes).unwrap().to_f64s();
            let allowed = tolerance(Accuracy::Contraction, DType::F32);
            for &(at, wanted) in &parts.wanted {
                let sum: f64 = (0..3).map(|part| got[part * len + at]).sum();
                let units = allowed.error_in_tolerances(sum, wanted, 1.0);
                assert!(
                    units <= 1.0,
                    "{case:?} {tiling}: [{at}] is {sum}, not {wanted}"
                );
            }
            assert!(
                bytes[12 * len..]
                    .chunks_exact(4)
                    .all(|w| w == UNTOUCHED.to_le_bytes())
            );
        }
    }
    assert_silent(backend);
}

#[test]
fn activations_agree_with_f64() {
    let Some((backend, types)) = device() else {
        return;
    };
    for (ty, tilings) in &types {
        for (at, &f) in some(backend, ACTIVATIONS, 3).enumerate() {
            let out_f32 = at % 2 == 0;
            let options = CoopGemmOptions {
                activation: Some(f),
                bias_f32: Some(out_f32),
                residual_f32: Some(!out_f32),
                out_f32,
                ..PLAIN
            };
            check(backend, &Case { options, ..ODD }, *ty, smallest(tilings));
        }
    }
    assert_silent(backend);
}
