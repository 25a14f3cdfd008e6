//! Programs and helpers shared by the tests.

use std::sync::Mutex;
use std::thread;

use tercet_cases::{CaseGraph, cases};
use tercet_ir::{Bindings, CompileError, CompileOptions, DType, OpKind};
use tercet_plan::{DeviceCaps, GpuProgram, LaunchSizes, StepOp, compile};

/// Dtypes that GPUs compute in; I64 is narrowed to I32.
pub(crate) const GPU_DTYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::I16,
    DType::I8,
    DType::U8,
    DType::Bool,
];

/// The program of an operator case in one dtype.
pub(crate) struct Planned {
    pub(crate) name: String,
    pub(crate) case: CaseGraph,
    pub(crate) program: Result<GpuProgram, CompileError>,
}

pub(crate) fn profiles() -> Vec<(&'static str, DeviceCaps)> {
    vec![
        ("h200", DeviceCaps::h200()),
        (
            "h200_without_passthrough",
            DeviceCaps::h200_without_passthrough(),
        ),
        ("laptop", DeviceCaps::laptop()),
        ("lavapipe", DeviceCaps::lavapipe()),
        ("browser", DeviceCaps::browser()),
        ("rdna3_wave32", DeviceCaps::rdna3(32)),
        ("rdna3_wave64", DeviceCaps::rdna3(64)),
        ("arc", DeviceCaps::arc()),
        ("apple", DeviceCaps::apple()),
        ("moltenvk", DeviceCaps::moltenvk()),
        ("adreno", DeviceCaps::adreno()),
        ("mali", DeviceCaps::mali()),
    ]
}

/// Applies `f` to all items on several threads; results keep the order of the items.
pub(crate) fn in_parallel<T: Send, R: Send>(items: Vec<T>, f: impl Fn(T) -> R + Sync) -> Vec<R> {
    let len = items.len();
    let items = Mutex::new(items.into_iter().enumerate());
    let made: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(len));
    let work = || {
        loop {
            let next = items.lock().expect("no thread panics here").next();
            let Some((at, item)) = next else { return };
            let result = f(item);
            made.lock()
                .expect("no thread panics here")
                .push((at, result));
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        (0..threads.min(len)).for_each(|_| drop(scope.spawn(work)));
    });
    let mut made = made.into_inner().expect("no thread panics here");
    made.sort_by_key(|(at, _)| *at);
    made.into_iter().map(|(_, result)| result).collect()
}

/// Calls `f` with the program of every case of every operator, in every GPU dtype.
pub(crate) fn for_each_case(caps: &DeviceCaps, f: impl FnMut(Planned)) {
    for_each_case_with(caps, GPU_DTYPES, None, f);
}

/// Calls `f` with the program of every case of every operator in each of these dtypes; matmuls may
/// cast their rows to `products`.
pub(crate) fn for_each_case_with(
    caps: &DeviceCaps,
    of: &[DType],
    products: Option<DType>,
    mut f: impl FnMut(Planned),
) {
    for &kind in OpKind::ALL {
        for case in cases(kind) {
            let dtypes = kind.doc().dtypes.iter().filter(|d| case.runs_with(**d));
            for &dtype in dtypes.filter(|d| of.contains(d)) {
                let name = format!("{}/{}/{dtype}", kind.doc().name, case.name);
                let case = case.build(dtype).expect("cases build");
                let options = options(&case).with_matmul_precision(products);
                let program = compile(&case.graph, &options, caps);
                f(Planned {
                    name,
                    case,
                    program,
                });
            }
        }
    }
}

pub(crate) fn options(case: &CaseGraph) -> CompileOptions {
    CompileOptions {
        bounds: case.bounds.clone(),
        ..CompileOptions::new()
    }
}

/// True if the case requires F64 or I64 values outside of I32.
pub(crate) fn is_beyond_gpus(e: &CompileError) -> bool {
    match e {
        CompileError::Narrow { .. } => true,
        CompileError::Unsupported { nodes, .. } => nodes
            .iter()
            .all(|n| n.reason.contains("GPUs compute in f32")),
        _ => false,
    }
}

/// Names of the kernels that a run with `s` rows executes, without constants.
pub(crate) fn played(program: &GpuProgram, s: usize) -> Vec<String> {
    let mut launch = LaunchSizes::default();
    let sizes = Bindings::new().with("s", s);
    let done = launch.compute(program, &sizes, tercet_ir::random::RngState::default());
    done.expect("sizes within bounds");
    let steps = program.active_steps(&program.steps, &launch.selected_branches);
    let kernels = steps
        .iter()
        .filter_map(|p| match &program.steps[p.step].work {
            StepOp::Dispatch(d) => Some(&program.kernels[d.kernel.0 as usize].name),
            StepOp::Copy { .. } | StepOp::Fill { .. } => None,
        });
    let first = |name: &String| name.split(' ').next().unwrap_or_default().to_string();
    kernels.map(first).collect()
}
