//! Tests of reproducibility: every run gives bitwise identical results, on every executor. Scatter
//! updates of one element are combined in a fixed order, and so are the chunks of long sums.

use crate::{SuiteTest, executors};
use tercet_ir::ops::{ScatterReduce, Window};
use tercet_ir::{CompileOptions, DType, Graph, Tensor, TensorType, Type, Value};

/// Scatter updates whose sum depends on the order: numbers of very different magnitudes, many per
/// row.
fn updates(count: usize) -> (Tensor, Tensor) {
    let value = |i: usize| {
        let size = 2f32.powi((i * 7 % 41) as i32 - 20);
        if i.is_multiple_of(3) { -size } else { size }
    };
    let values: Vec<f32> = (0..count).map(value).collect();
    let rows: Vec<i32> = (0..count).map(|i| (i * 7919 % 13) as i32).collect();
    let values = Tensor::from_slice(&[count], &values)
        .expect("the list has the number of elements of its shape");
    let rows = Tensor::from_slice(&[count], &rows)
        .expect("the list has the number of elements of its shape");
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
    let zeros = Tensor::from_slice(&[13], &[0f32; 13])
        .expect("the list has the number of elements of its shape");
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

/// The gradients of a convolution, whose sums over the batch and all windows are split into chunks.
fn convolution(dtype: DType) -> Graph {
    let mut g = Graph::new();
    let mut build = || -> Result<Vec<Option<Value>>, tercet_ir::OpError> {
        let x = g.input("x", Type::new(dtype, [4, 16, 24, 20]))?;
        let w = g.input("w", Type::new(dtype, [32, 16, 3, 3]))?;
        let dy = g.input("dy", Type::new(dtype, [4, 32, 12, 10]))?;
        let window = Window::new(2).with_stride(&[2, 2]);
        let y = g.conv(x, w, None, window.with_pads(&[1, 1], &[1, 1]), 1)?;
        let gradients = g.vjp(&[(y, dy)], &[x, w]);
        Ok(gradients.expect("convolutions have gradients"))
    };
    let gradients = build().expect("the graph is well typed");
    for (i, gradient) in gradients.into_iter().flatten().enumerate() {
        g.output(&format!("gradient {i}"), gradient)
            .expect("the name is fresh");
    }
    g
}

fn gradients_of_convolutions_have_the_same_bits() {
    for dtype in [DType::F32, DType::F16] {
        let g = convolution(dtype);
        let data = |shape: &[usize], seed: usize| {
            let count: usize = shape.iter().product();
            let value = |i: usize| ((i * 7919 + seed) % 1009) as f64 / 504.5 - 1.0;
            let values: Vec<f64> = (0..count).map(value).collect();
            let ty = TensorType::new(dtype, shape);
            Tensor::from_f64s(ty, &values)
                .expect("the list has the number of elements of its shape")
        };
        let x = data(&[4, 16, 24, 20], 1);
        let w = data(&[32, 16, 3, 3], 2);
        let dy = data(&[4, 32, 12, 10], 3);
        for executor in executors() {
            let device = match executor.device() {
                Ok(device) => device,
                Err(reason) if executor.is_required() => panic!("{}: {reason}", executor.name),
                Err(_) => continue,
            };
            let exe = device.compile(&g, &CompileOptions::new());
            let mut exe = exe.unwrap_or_else(|e| panic!("{}: {e}", executor.name));
            let mut run = || {
                exe.run(&[("x", &x), ("w", &w), ("dy", &dy)])
                    .unwrap_or_else(|e| panic!("{}: {e}", executor.name))
            };
            let first = run();
            for _ in 0..3 {
                assert_eq!(run(), first, "{} in {dtype}", executor.name);
            }
        }
    }
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::asserting(
            "scatter/every_run_gives_the_same_bits",
            every_run_gives_the_same_bits,
        ),
        SuiteTest::asserting(
            "scatter/gradients_of_convolutions_have_the_same_bits",
            gradients_of_convolutions_have_the_same_bits,
        ),
    ]
}
