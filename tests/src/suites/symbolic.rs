//! Tests of symbolic sizes: a graph is compiled once and run at ten sizes, and each run agrees with
//! the reference.

use std::collections::BTreeMap;

use crate::{SuiteTest, executors};
use tercet_ir::ops::{
    Coordinates, FftNorm, NearestRounding, Pool, PoolFn, Resize, ResizeMode, Window,
};
use tercet_ir::{
    Bindings, CompileOptions, DType, Dim, EvalCtx, Graph, OpError, Tensor, TensorType, Type, Value,
    evaluate,
};

type Failure = Box<dyn std::error::Error>;

/// A graph over the symbols `s` and `t`, and the sizes of its runs.
pub struct SymbolicGraph {
    /// Its name.
    pub name: &'static str,
    build: fn(&mut Graph) -> Result<Vec<Value>, OpError>,
    /// The sizes of `s` and `t` in each run.
    pub sizes: [[usize; 2]; 10],
}

/// The sizes of windows and resized axes: odd, even, prime and small.
const SIZES: [[usize; 2]; 10] = [
    [9, 12],
    [16, 7],
    [5, 5],
    [23, 31],
    [8, 8],
    [31, 9],
    [6, 25],
    [13, 13],
    [32, 32],
    [17, 6],
];

/// Lengths with three factors each, so that all runs have the same passes.
const LENGTHS: [[usize; 2]; 10] = [
    [30, 64],
    [64, 45],
    [27, 36],
    [48, 125],
    [63, 27],
    [105, 75],
    [36, 30],
    [75, 105],
    [125, 48],
    [45, 63],
];

/// The upper bound of both symbols.
pub const BOUND: usize = 128;

/// The graphs.
pub const GRAPHS: &[SymbolicGraph] = &[
    SymbolicGraph {
        name: "windows",
        build: windows,
        sizes: SIZES,
    },
    SymbolicGraph {
        name: "gradients_of_windows",
        build: gradients,
        sizes: SIZES,
    },
    SymbolicGraph {
        name: "resizes",
        build: resizes,
        sizes: SIZES,
    },
    SymbolicGraph {
        name: "transforms",
        build: transforms,
        sizes: LENGTHS,
    },
];

fn dims(known: &[usize], symbols: &[&str]) -> Vec<Dim> {
    let known = known.iter().map(|n| Dim::Known(*n));
    known.chain(symbols.iter().map(|s| Dim::sym(s))).collect()
}

/// A constant with varied values.
fn constant(g: &mut Graph, shape: &[usize]) -> Result<Value, OpError> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| (i * 37 % 19) as f32 / 19.0 - 0.5)
        .collect();
    g.constant(Tensor::from_slice(shape, &values).expect("as many values as elements"))
}

fn windows(g: &mut Graph) -> Result<Vec<Value>, OpError> {
    let x = g.input("x", Type::new(DType::F32, dims(&[2, 4], &["s", "t"])))?;
    let w = constant(g, &[6, 4, 3, 3])?;
    let halving = Window::new(2)
        .with_stride(&[2, 2])
        .with_pads(&[1, 1], &[1, 1]);
    let first = g.conv(x, w, None, halving.clone(), 1)?;
    let w = constant(g, &[5, 6, 3, 3])?;
    let second = g.conv(first, w, None, halving.clone(), 1)?;
    let most = g.pool(x, PoolFn::Max, &[3, 2], halving)?;
    let thirds = Window::new(2)
        .with_stride(&[3, 2])
        .with_pads(&[1, 0], &[0, 1]);
    let mean = Pool::new(PoolFn::Mean, &[3, 3], thirds.clone()).with_ceil();
    let mean = g.add(mean.counting_pad(), &[x])?;
    let product = g.add(Pool::new(PoolFn::Prod, &[2, 2], thirds).with_ceil(), &[x])?;
    let kept = g.slice(x, &[0, 0, 1, 0], &[2, 4, i64::MAX, -1], &[1, 1, 3, 2])?;
    let w = constant(g, &[5, 3, 2, 2])?;
    let grown = g.conv_transpose(
        second,
        w,
        None,
        Window::new(2).with_stride(&[2, 2]),
        &[0, 0],
        1,
    )?;
    Ok(vec![first, second, most, mean, product, kept, grown])
}

fn gradients(g: &mut Graph) -> Result<Vec<Value>, OpError> {
    let x = g.input("x", Type::new(DType::F32, dims(&[1, 2], &["s", "t"])))?;
    let w = constant(g, &[3, 2, 3, 3])?;
    let strided = Window::new(2)
        .with_stride(&[2, 3])
        .with_pads(&[1, 1], &[1, 0]);
    let y = g.conv(x, w, None, strided.clone(), 1)?;
    let mut all = Vec::new();
    let mut differentiate = |g: &mut Graph, y: Value| {
        let dy = g.exp(y)?;
        let found = g.vjp(&[(y, dy)], &[x, w]);
        all.extend(
            found
                .expect("windows of symbols have gradients")
                .into_iter()
                .flatten(),
        );
        Ok::<(), OpError>(())
    };
    differentiate(g, y)?;
    for f in [PoolFn::Max, PoolFn::Mean, PoolFn::Prod] {
        for ceil in [false, true] {
            let pool = Pool::new(f, &[2, 3], strided.clone());
            let pool = if ceil { pool.with_ceil() } else { pool };
            let y = g.add(pool, &[x])?;
            differentiate(g, y)?;
        }
    }
    Ok(all)
}

fn resizes(g: &mut Graph) -> Result<Vec<Value>, OpError> {
    let x = g.input("x", Type::new(DType::F32, dims(&[2, 3], &["s", "t"])))?;
    let (s, t) = (Dim::sym("s"), Dim::sym("t"));
    let twice = |n: &Dim| n.checked_mul(&Dim::Known(2)).expect("a small factor");
    let half = |n: &Dim| n.div_floor(2).expect("2 is not 0");
    let mut all = Vec::new();
    for mode in [ResizeMode::Nearest, ResizeMode::Linear, ResizeMode::Cubic] {
        for coordinates in Coordinates::ALL {
            let sizes = [2usize.into(), 3usize.into(), twice(&s), half(&t)];
            let how = Resize {
                coordinates: *coordinates,
                rounding: NearestRounding::RoundPreferCeil,
                exclude_outside: mode == ResizeMode::Cubic,
                ..Resize::to_sizes(sizes, mode)
            };
            all.push(g.add(how, &[x])?);
        }
        let swapped = [2usize.into(), 3usize.into(), t.clone(), s.clone()];
        all.push(g.resize(x, swapped, mode)?);
        let how = Resize {
            coordinates: Coordinates::HalfPixelSymmetric,
            ..Resize::to_sizes([0usize; 0], mode)
        };
        all.push(g.resize_by(x, &[1.0, 1.0, 1.7, f64::from(0.6f32)], how)?);
    }
    let x = g.input("bytes", Type::new(DType::U8, dims(&[3], &["s"])))?;
    let shape = [Dim::Known(7), twice(&s)];
    all.push(g.resize(x, shape, ResizeMode::Nearest)?);
    Ok(all)
}

fn transforms(g: &mut Graph) -> Result<Vec<Value>, OpError> {
    let pairs = [Dim::Known(3), Dim::sym("s"), Dim::Known(2)];
    let x = g.input("x", Type::new(DType::F32, pairs))?;
    let reals = g.input("reals", Type::new(DType::F32, dims(&[2], &["t"])))?;
    let mut all = Vec::new();
    for norm in FftNorm::ALL {
        let y = g.fft(x, false, *norm)?;
        all.push(y);
        all.push(g.fft(y, true, *norm)?);
        all.push(g.rfft(reals, *norm)?);
    }
    let window = constant(g, &[16])?;
    all.push(g.stft(reals, window, 16, 5)?);
    let y = all[2];
    let dy = g.exp(y)?;
    let found = g.vjp(&[(y, dy)], &[reals]);
    all.extend(
        found
            .expect("transforms have gradients")
            .into_iter()
            .flatten(),
    );
    Ok(all)
}

impl SymbolicGraph {
    /// The graph.
    ///
    /// # Panics
    /// If an operator rejects symbols.
    pub fn graph(&self) -> Graph {
        let mut g = Graph::new();
        let results = (self.build)(&mut g).unwrap_or_else(|e| panic!("{}", tercet::one_line(&e)));
        for (i, value) in results.into_iter().enumerate() {
            g.output(&format!("out{i}"), value)
                .expect("the name is fresh");
        }
        g
    }

    /// The inputs of the run at these sizes.
    ///
    /// # Errors
    /// If a type is invalid at these sizes.
    pub fn inputs(graph: &Graph, [s, t]: [usize; 2]) -> Result<BTreeMap<String, Tensor>, Failure> {
        let sizes = Bindings::new().with("s", s).with("t", t);
        let mut inputs = BTreeMap::new();
        for (id, node) in graph.nodes() {
            let tercet_ir::Op::Input(input) = &node.op else {
                continue;
            };
            let ty: TensorType = graph.ty(Value { node: id, port: 0 }).eval(&sizes)?;
            let value = |i: usize| ((i * 7919 + s * 31 + t) % 1009) as f64 / 504.5 - 1.0;
            let values: Vec<f64> = match ty.dtype {
                DType::F32 => (0..ty.numel()).map(value).collect(),
                _ => (0..ty.numel()).map(|i| (i % 200) as f64).collect(),
            };
            inputs.insert(input.name.clone(), Tensor::from_f64s(ty, &values)?);
        }
        Ok(inputs)
    }

    /// The options to compile the graph once for all sizes.
    pub fn options() -> CompileOptions {
        CompileOptions::new().bound("s", BOUND).bound("t", BOUND)
    }
}

/// Checks the outputs of a run against the reference.
///
/// # Errors
/// The first output that differs.
pub fn compare(
    graph: &Graph,
    inputs: &BTreeMap<String, Tensor>,
    outputs: &[Tensor],
) -> Result<(), Failure> {
    let reference = evaluate(graph, &EvalCtx::default(), inputs)?;
    for (i, (found, output)) in outputs.iter().zip(graph.outputs()).enumerate() {
        let expected = reference.get(output.value);
        if found.ty() != expected.ty() {
            return Err(format!("output {i} is {}, not {}", found.ty(), expected.ty()).into());
        }
        let pairs = found.to_f64s().into_iter().zip(expected.to_f64s());
        let largest = expected
            .to_f64s()
            .iter()
            .fold(1.0, |m: f64, v| m.max(v.abs()));
        for (at, (a, b)) in pairs.enumerate() {
            if (a - b).abs() > 2e-5 * largest {
                return Err(format!("output {i} at {at}: {a}, expected {b}").into());
            }
        }
    }
    Ok(())
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = Vec::new();
    for executor in executors() {
        for of in GRAPHS {
            let name = format!("symbolic/{}_at_ten_sizes", of.name);
            tests.push(SuiteTest::on(executor, name, move |device| {
                let graph = of.graph();
                let mut exe = device
                    .compile(&graph, &SymbolicGraph::options())
                    .map_err(|e| tercet::one_line(&e))?;
                for sizes in of.sizes {
                    let mut run = || -> Result<(), Failure> {
                        let inputs = SymbolicGraph::inputs(&graph, sizes)?;
                        let given: Vec<(&str, &Tensor)> =
                            inputs.iter().map(|(n, t)| (n.as_str(), t)).collect();
                        compare(&graph, &inputs, &exe.run(&given)?)
                    };
                    run().map_err(|e| format!("{sizes:?}: {}", tercet::one_line(&*e)))?;
                }
                Ok(())
            }));
        }
    }
    tests
}
