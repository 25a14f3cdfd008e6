//! The list of operators that reference implementations run, in the module docs of that kernel.

use std::collections::BTreeMap;

use tercet_cpu::CpuTarget;
use tercet_ir::{OpKind, Tier};

/// The kernel that runs reference implementations.
const REFERENCE_EVAL: &str = "reference_eval";

/// The line `//! - op: dtypes` of each operator that uses this kernel, found by lowering the
/// test cases of all operators.
fn listed() -> Vec<String> {
    let mut lines = Vec::new();
    for &kind in OpKind::ALL
        .iter()
        .filter(|k| k.doc().tier != Tier::Composite)
    {
        let mut dtypes: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for case in tercet_cases::cases(kind) {
            for &dtype in kind.doc().dtypes.iter().filter(|d| case.runs_with(**d)) {
                let built = case.build(dtype).expect("the test case is valid");
                for (_, node) in built.graph.nodes().filter(|(_, n)| n.op.kind() == kind) {
                    let kernel = CpuTarget.kernel(&built.graph, node);
                    let (here, all) = dtypes.entry(dtype.to_string()).or_default();
                    *here += usize::from(kernel == Some(REFERENCE_EVAL));
                    *all += 1;
                }
            }
        }
        let names = dtypes.iter().filter(|(_, (here, _))| *here > 0);
        let names: Vec<String> = names
            .map(|(name, (here, all))| match here == all {
                true => name.clone(),
                false => format!("{name} (in part)"),
            })
            .collect();
        if !names.is_empty() {
            lines.push(format!("//! - `{}`: {}", kind.doc().name, names.join(", ")));
        }
    }
    lines
}

#[test]
#[cfg_attr(
    not(feature = "splat"),
    ignore = "the list requires the operators of all features"
)]
fn the_module_doc_lists_what_comes_here() {
    let written: Vec<&str> = include_str!("../../src/lower/reference_eval.rs")
        .lines()
        .filter(|line| line.starts_with("//! - `"))
        .collect();
    let listed = listed();
    assert_eq!(
        written,
        listed,
        "the module docs should list:\n{}",
        listed.join("\n")
    );
}
