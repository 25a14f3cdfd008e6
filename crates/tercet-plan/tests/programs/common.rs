//! The programs that the tests look at.

use std::sync::Mutex;
use std::thread;

use tercet_ir::case::CaseGraph;
use tercet_ir::{Bindings, CompileError, CompileOptions, DType, OpKind, Tier};
use tercet_plan::{Caps, Launch, Program, Work, compile};

/// The dtypes that GPUs compute in; I64 is narrowed.
pub(crate) const GPU_DTYPES: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::U32,
    DType::I64,
    DType::I8,
    DType::U8,
    DType::Bool,
];

/// A case in one dtype.
pub(crate) struct Planned {
    pub(crate) name: String,
    pub(crate) case: CaseGraph,
    pub(crate) program: Result<Program, CompileError>,
}

pub(crate) fn profiles() -> Vec<(&'static str, Caps)> {
    vec![
        ("h200", Caps::h200()),
        ("laptop", Caps::laptop()),
        ("lavapipe", Caps::lavapipe()),
        ("browser", Caps::browser()),
        ("rdna3_wave32", Caps::rdna3(32)),
        ("rdna3_wave64", Caps::rdna3(64)),
        ("arc", Caps::arc()),
        ("apple", Caps::apple()),
        ("adreno", Caps::adreno()),
        ("mali", Caps::mali()),
    ]
}

/// What `f` makes of each of `items`, in their order; several at a time.
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

/// Calls `f` with the program of each case of each operator in each dtype of GPUs.
pub(crate) fn for_each_case(caps: &Caps, f: impl FnMut(Planned)) {
    for_each_case_with(caps, GPU_DTYPES, None, f);
}

/// Calls `f` with the program of each case of each operator in each of these dtypes, whose products may round their rows.
pub(crate) fn for_each_case_with(
    caps: &Caps,
    of: &[DType],
    products: Option<DType>,
    mut f: impl FnMut(Planned),
) {
    for &kind in OpKind::ALL {
        for case in kind.cases() {
            let dtypes = kind.doc().dtypes.iter().filter(|d| case.runs_with(**d));
            for &dtype in dtypes.filter(|d| of.contains(d)) {
                let name = format!("{}/{}/{dtype}", kind.doc().name, case.name);
                let case = case.build(dtype).expect("cases build");
                let options = options(&case).products_in(products);
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

/// True if the case needs what no GPU has: f64, i64 beyond i32, operators of the host.
pub(crate) fn is_beyond_gpus(e: &CompileError) -> bool {
    match e {
        CompileError::Narrow { .. } => true,
        CompileError::Unsupported { nodes, .. } => nodes
            .iter()
            .all(|n| n.reason.contains("GPUs compute in f32") || is_of_host(n.op)),
        _ => false,
    }
}

/// True for an operator that only the CPU has.
pub(crate) fn is_of_host(op: &str) -> bool {
    let mut docs = OpKind::ALL.iter().map(|kind| kind.doc());
    docs.any(|d| d.name == op && d.tier == Tier::Host)
}

/// The kernels of a run of size `s`, without their constants.
pub(crate) fn played(program: &Program, s: usize) -> Vec<String> {
    let mut launch = Launch::default();
    let sizes = Bindings::new().with("s", s);
    let done = launch.compute(program, &sizes, tercet_ir::random::Random::default());
    done.expect("sizes within bounds");
    let steps = program.played(&program.steps, &launch.chosen);
    let kernels = steps
        .iter()
        .filter_map(|p| match &program.steps[p.step].work {
            Work::Dispatch(d) => Some(&program.kernels[d.kernel.0 as usize].name),
            Work::Copy { .. } | Work::Fill { .. } => None,
        });
    let first = |name: &String| name.split(' ').next().unwrap_or_default().to_string();
    kernels.map(first).collect()
}
