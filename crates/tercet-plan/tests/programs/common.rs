//! The programs that the tests look at.

use tercet_ir::case::CaseGraph;
use tercet_ir::{CompileError, CompileOptions, DType, OpKind, Tier};
use tercet_plan::{Caps, Program, compile};

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

pub(crate) fn profiles() -> [(&'static str, Caps); 4] {
    [
        ("h200", Caps::h200()),
        ("laptop", Caps::laptop()),
        ("lavapipe", Caps::lavapipe()),
        ("browser", Caps::browser()),
    ]
}

/// Calls `f` with the program of each case of each operator in each dtype of GPUs.
pub(crate) fn for_each_case(caps: &Caps, mut f: impl FnMut(Planned)) {
    for &kind in OpKind::ALL {
        for case in kind.cases() {
            let dtypes = kind.doc().dtypes.iter().filter(|d| case.runs_with(**d));
            for &dtype in dtypes.filter(|d| GPU_DTYPES.contains(d)) {
                let name = format!("{}/{}/{dtype}", kind.doc().name, case.name);
                let case = case.build(dtype).expect("cases build");
                let program = compile(&case.graph, &options(&case), caps);
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
