//! Sums of more ones than F32 can count: a sequential F32 sum stops at 2^24. The expected results
//! are known, because the reference would take too long.

use crate::{SuiteTest, executors};
use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::{CompileOptions, DType, Graph, OpError, Tensor, Type};

fn graph(n: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [n]))?;
    let sum = g.reduce_sum(x, &[0], false)?;
    let mean = g.reduce_mean(x, &[0], false)?;
    g.output("sum", sum)?;
    g.output("mean", mean)?;
    Ok(g)
}

fn sums_of_more_ones_than_f32_counts() {
    let mut wrong = Vec::new();
    for n in [(1 << 24) + 1, (1 << 24) + 2] {
        let g = graph(n).expect("the graph is well typed");
        let ones = Tensor::from_slice(&[n], &vec![1f32; n])
            .expect("the list has the number of elements of its shape");
        for executor in executors() {
            let Ok(device) = executor.device() else {
                assert!(!executor.is_required(), "{} is missing", executor.name);
                continue;
            };
            let exe = device.compile(&g, &CompileOptions::new());
            let mut exe = exe.unwrap_or_else(|e| panic!("{}: {e}", executor.name));
            let got = exe.run(&[("x", &ones)]);
            let got = got.unwrap_or_else(|e| panic!("{}: {e}", executor.name));
            for (got, want) in got.iter().zip([n as f32, 1.0]) {
                let off = furthest(Accuracy::Reduction, got, &Tensor::scalar(want));
                if let Some(off) = off.filter(|f| f.units > 1.0) {
                    wrong.push(format!("{n}/{}: {off}", executor.name));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![SuiteTest::asserting(
        "ones/sums_of_more_ones_than_f32_counts",
        sums_of_more_ones_than_f32_counts,
    )]
}
