//! Updates of one element are combined in their order: every run gives the same bits, on every executor.

use crate::{Test, executors};
use tercet_ir::ops::ScatterReduce;
use tercet_ir::{CompileOptions, DType, Graph, Tensor, Type, Value};

/// Updates whose sum depends on the order: numbers of very different sizes, many to each row.
fn updates(count: usize) -> (Tensor, Tensor) {
    let value = |i: usize| {
        let size = 2f32.powi((i * 7 % 41) as i32 - 20);
        if i.is_multiple_of(3) { -size } else { size }
    };
    let values: Vec<f32> = (0..count).map(value).collect();
    let rows: Vec<i32> = (0..count).map(|i| (i * 7919 % 13) as i32).collect();
    let values = Tensor::from_slice(&[count], &values).expect("as many as elements");
    let rows = Tensor::from_slice(&[count], &rows).expect("as many as elements");
    (values, rows)
}

fn graph(count: usize) -> Graph {
    let mut g = Graph::new();
    let mut build = || -> Result<(Value, Value), tercet_ir::OpError> {
        let values = g.input("values", Type::new(DType::F32, [count]))?;
        let rows = g.input("rows", Type::new(DType::I32, [count]))?;
        let zeros = g.input("zeros", Type::new(DType::F32, [13]))?;
        let sums = g.scatter_add(values, rows, 13usize)?;
        let last = g.scatter_elements(zeros, rows, values, 0, ScatterReduce::Replace)?;
        Ok((sums, last))
    };
    let (sums, last) = build().expect("the graph is well typed");
    g.output("sums", sums).expect("the name is fresh");
    g.output("last", last).expect("the name is fresh");
    g
}

fn every_run_gives_the_same_bits() {
    let zeros = Tensor::from_slice(&[13], &[0f32; 13]).expect("as many as elements");
    for count in [900, 6000] {
        let (g, (values, rows)) = (graph(count), updates(count));
        for executor in executors() {
            let device = match executor.device() {
                Ok(device) => device,
                Err(reason) if executor.is_required() => panic!("{}: {reason}", executor.name),
                Err(_) => continue,
            };
            let exe = device.compile(&g, &CompileOptions::new());
            let mut exe = exe.unwrap_or_else(|e| panic!("{}: {e}", executor.name));
            let inputs = [("values", &values), ("rows", &rows), ("zeros", &zeros)];
            let mut run = || {
                exe.run(&inputs)
                    .unwrap_or_else(|e| panic!("{}: {e}", executor.name))
            };
            let first = run();
            for _ in 0..3 {
                assert_eq!(run(), first, "{} with {count} updates", executor.name);
            }
        }
    }
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<Test> {
    vec![Test::asserting(
        "scatter/every_run_gives_the_same_bits",
        every_run_gives_the_same_bits,
    )]
}
