//! Tests of data checks: few dispatches, with a separate fault record for each value.

use std::collections::BTreeSet;

use tercet_ir::{CompileOptions, DType, Graph, OpError, Type};
use tercet_plan::{DeviceCaps, GpuProgram, StepOp, check_races, compile};

/// A graph that gathers rows of `count` inputs, each with its own indices.
fn gathers(count: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    for at in 0..count {
        let x = g.input(&format!("x{at}"), Type::new(DType::F32, [at + 2, 2]))?;
        let idx = g.input(&format!("idx{at}"), Type::new(DType::I32, [3]))?;
        let y = g.gather(x, idx, 0)?;
        g.output(&format!("y{at}"), y)?;
    }
    Ok(g)
}

/// Number of workgroups of each dispatch that runs data checks.
fn checks(program: &GpuProgram) -> Vec<u64> {
    let dispatches = program.steps.iter().filter_map(|step| match &step.work {
        StepOp::Dispatch(d) => Some(d),
        StepOp::Copy { .. } | StepOp::Fill { .. } => None,
    });
    dispatches
        .filter(|d| {
            program.kernels[d.kernel.0 as usize]
                .name
                .starts_with("check ")
        })
        .map(|d| d.grid[0].known().expect("as many as there are values") as u64)
        .collect()
}

#[test]
fn values_are_checked_together() {
    for (count, want) in [(1, vec![1]), (4, vec![4]), (6, vec![4, 2])] {
        let graph = gathers(count).expect("a graph");
        let program =
            compile(&graph, &CompileOptions::new(), &DeviceCaps::h200()).expect("a program");
        assert_eq!(checks(&program), want, "of {count}");
        assert_eq!(program.data_checks.len(), count);
        let records = program.data_checks.iter();
        let records = records.map(|check| program.slot(check.record).offset_bytes);
        assert_eq!(records.collect::<BTreeSet<u64>>().len(), count);
        assert_eq!(check_races(&program), Ok(()));
    }
}
