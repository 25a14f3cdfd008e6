//! Tests of softmax, norms, reductions, scans and min/max on every executor, with sizes, strides
//! and magnitudes that the operator cases lack. The tests cover rows larger than a workgroup's
//! memory, few long rows that are split, many short rows, columns, views, and numbers whose squares
//! overflow.

mod inputs;
mod products;

use crate::{SuiteTest, executors};
use inputs::{INPUTS, InputView, RowInput, looked, plain};
use tercet_cases::{CaseGraph, OpCase};
use tercet_cpu::ReferenceBackend;
use tercet_ir::accuracy::furthest;
use tercet_ir::fill::InputFill;
use tercet_ir::ops::{AttentionLayout, AttentionOptions, CumSum, ReduceFn, ScanFn};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{Backend, CompileOptions, DType, OpError, Tensor, Type, Value};

const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::BF16];
const NUMBERS: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::U32,
    DType::I16,
    DType::I8,
    DType::U8,
];

/// Checks that every executor agrees with the reference on the case in each dtype.
fn check(case: &OpCase, dtypes: &[DType], wrong: &mut Vec<String>) {
    check_on(case, dtypes, |_| true, wrong);
}

/// As [`check`], only on the named executors.
fn check_on(
    case: &OpCase,
    dtypes: &[DType],
    takes_part: fn(&str) -> bool,
    wrong: &mut Vec<String>,
) {
    for &dtype in dtypes {
        let built = case
            .build(dtype)
            .unwrap_or_else(|e| panic!("{}: {e}", case.name));
        let none = CompileOptions {
            bounds: built.bounds.clone(),
            ..CompileOptions::new().without_any_pass()
        };
        let want = run(&ReferenceBackend::new(), &built, &none).expect("the reference runs");
        for executor in executors().iter().filter(|e| takes_part(e.name)) {
            let Ok(device) = executor.device() else {
                assert!(!executor.is_required(), "{} is missing", executor.name);
                continue;
            };
            let found =
                run(device.backend(), &built, &none).and_then(|got| compare(&got, &want, &built));
            if let Err(e) = found {
                wrong.push(format!("{}/{dtype}/{}: {e}", case.name, executor.name));
            }
        }
    }
}

fn run(
    backend: &dyn Backend,
    case: &CaseGraph,
    options: &CompileOptions,
) -> Result<Vec<Tensor>, String> {
    let mut exe = backend
        .compile(&case.graph, options)
        .map_err(|e| e.to_string())?;
    for port in exe.signature().params.clone() {
        let tensor = case.tensors[&port.name].clone();
        exe.set_param(&port.name, tensor)
            .map_err(|e| e.to_string())?;
    }
    let inputs = exe.signature().inputs.clone();
    let inputs: Vec<(&str, &Tensor)> = inputs
        .iter()
        .map(|p| (p.name.as_str(), &case.tensors[&p.name]))
        .collect();
    exe.run(&inputs).map_err(|e| format!("{e:?}"))
}

fn compare(got: &[Tensor], want: &[Tensor], case: &CaseGraph) -> Result<(), String> {
    let classes = case.graph.nodes().map(|(_, n)| n.op.kind().doc().accuracy);
    let class = classes.max().expect("a graph has nodes");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        if got.ty() != want.ty() {
            return Err(format!("output {at} is {}", got.ty()));
        }
        if let Some(f) = furthest(class, got, want).filter(|f| f.units > 1.0) {
            return Err(format!("output {at}: {f}"));
        }
    }
    Ok(())
}

/// Runs `build` over every input and axis.
fn along_every_axis(
    dtypes: &[DType],
    build: impl Fn(&mut CaseGraph, Value, usize) -> Result<(), OpError> + Copy + Send + Sync + 'static,
    fill: &InputFill,
) {
    let mut wrong = Vec::new();
    for &(name, input, axes) in INPUTS {
        for &axis in axes {
            let fill = fill.clone();
            let case = OpCase::new(format!("{name}/{axis}"), move |c| {
                let x = input.value(c, "x", fill.clone())?;
                build(c, x, axis)
            });
            check(&case, dtypes, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn softmax() {
    along_every_axis(
        FLOATS,
        |c, x, axis| {
            let y = c.graph.softmax(x, axis)?;
            c.output(y)
        },
        &InputFill::Normal,
    );
}

fn log_softmax() {
    along_every_axis(
        FLOATS,
        |c, x, axis| {
            let y = c.graph.log_softmax(x, axis)?;
            c.output(y)
        },
        &InputFill::Uniform(-30.0, 30.0),
    );
}

fn reductions() {
    for f in [ReduceFn::Sum, ReduceFn::Max, ReduceFn::Min] {
        along_every_axis(
            NUMBERS,
            move |c, x, axis| {
                let y = c.graph.reduce(f, x, &[axis], false)?;
                c.output(y)
            },
            &InputFill::Uniform(-20.0, 100.0),
        );
    }
    along_every_axis(
        FLOATS,
        |c, x, axis| {
            let y = c.graph.reduce_mean(x, &[axis], true)?;
            c.output(y)
        },
        &InputFill::Normal,
    );
}

fn reductions_over_several_axes() {
    let mut wrong = Vec::new();
    let inputs: [(RowInput, &'static [usize]); 6] = [
        (plain(&[4, 33, 5, 70]), &[0, 2, 3]),
        (plain(&[4, 33, 5, 70]), &[1, 3]),
        (plain(&[4, 33, 5, 70]), &[0, 2]),
        (plain(&[2, 3, 2, 3, 2, 3, 2, 5]), &[0, 2, 4, 6]),
        (plain(&[64, 3, 5000]), &[0, 2]),
        (
            looked(&[9, 40, 30], InputView::Transposed(&[2, 0, 1])),
            &[0, 2],
        ),
    ];
    for (at, (input, axes)) in inputs.into_iter().enumerate() {
        for f in [ReduceFn::Sum, ReduceFn::Max] {
            let case = OpCase::new(format!("{at}/{}", f.name()), move |c| {
                let x = input.value(c, "x", InputFill::Uniform(-20.0, 100.0))?;
                let y = c.graph.reduce(f, x, axes, false)?;
                c.output(y)
            });
            check(&case, NUMBERS, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Means and variances per channel, as in batch norm training. The sizes are multiples of the
/// vector width or not, and need one or several strips.
fn statistics_of_channels() {
    let mut wrong = Vec::new();
    let shapes: [&'static [usize]; 4] = [
        &[2, 7, 7, 7],
        &[70, 2, 500],
        &[1, 300, 3, 2],
        &[2, 2, 3, 4, 5],
    ];
    for shape in shapes {
        let case = OpCase::new(format!("{shape:?}"), move |c| {
            let x = c.input("x", shape, InputFill::Uniform(0.0, 1.0))?;
            let dy = c.input("dy", shape, InputFill::Uniform(0.5, 1.5))?;
            let over: Vec<usize> = (0..shape.len()).filter(|axis| *axis != 1).collect();
            let (dtype, g) = (c.dtype, &mut c.graph);
            let x = g.cast(x, DType::F32)?;
            let dy = g.cast(dy, DType::F32)?;
            let mean = g.reduce_mean(x, &over, true)?;
            let centred = g.sub(x, mean)?;
            let squares = g.mul(centred, centred)?;
            let variance = g.reduce_mean(squares, &over, true)?;
            let products = g.mul(squares, dy)?;
            let gain = g.reduce_sum(products, &over, false)?;
            let bias = g.reduce_sum(dy, &over, false)?;
            let y = g.mul(centred, variance)?;
            let y = g.plus(y, dy)?;
            let y = g.cast(y, dtype)?;
            for value in [mean, variance, gain, bias, y] {
                c.output(value)?;
            }
            Ok(())
        });
        check(&case, FLOATS, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn sums_of_millions_are_accurate() {
    let mut wrong = Vec::new();
    for shape in [&[1 << 22][..], &[1 << 21, 2], &[3, 1 << 20]] {
        for axis in 0..shape.len() {
            let case = OpCase::new(format!("{shape:?}/{axis}"), move |c| {
                let x = c.input("x", shape, InputFill::Uniform(0.0, 1.0))?;
                let y = c.graph.reduce_sum(x, &[axis], false)?;
                c.output(y)
            });
            check(&case, &[DType::F32], &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn scans() {
    for (f, exclusive, reverse) in [
        (ScanFn::Sum, false, false),
        (ScanFn::Sum, true, true),
        (ScanFn::Max, true, false),
        (ScanFn::Max, false, true),
    ] {
        along_every_axis(
            NUMBERS,
            move |c, x, axis| {
                let scan = CumSum {
                    axis,
                    f,
                    exclusive,
                    reverse,
                };
                let y = c.graph.scan(x, scan)?;
                c.output(y)
            },
            &InputFill::Normal,
        );
    }
}

fn extremes() {
    let all: Vec<DType> = NUMBERS.iter().copied().chain([DType::Bool]).collect();
    along_every_axis(
        &all,
        |c, x, axis| {
            let most = c.graph.arg_max(x, axis, false)?;
            c.output(most)?;
            let least = c.graph.arg_min(x, axis, true)?;
            c.output(least)
        },
        &InputFill::Normal,
    );
}

/// Top-k of softmaxes, as in expert routing.
fn choices() {
    // If probabilities are nearly equal, their order is arbitrary.
    for (fill, is_apart) in [(InputFill::Normal, true), (InputFill::Special, false)] {
        along_every_axis(
            &[DType::F32],
            move |c, x, axis| {
                let len = c.graph.ty(x).shape[axis].known().expect("a size");
                let y = c.graph.softmax(x, axis)?;
                let top = c.graph.top_k(y, len.min(5), axis, true)?;
                let sum = c.graph.reduce_sum(top, &[axis], true)?;
                let shares = c.graph.div(top, sum)?;
                c.output(shares)?;
                match is_apart && len <= 256 {
                    true => c.output(top.port(1)),
                    false => Ok(()),
                }
            },
            &fill,
        );
    }
}

fn copies_of_views() {
    let mut wrong = Vec::new();
    let all: Vec<DType> = NUMBERS.iter().copied().chain([DType::Bool]).collect();
    let inputs: [RowInput; 9] = [
        looked(&[130, 100], InputView::Transposed(&[1, 0])),
        looked(&[33, 65], InputView::Transposed(&[1, 0])),
        looked(&[3, 40, 2, 36], InputView::Transposed(&[0, 3, 2, 1])),
        looked(&[3, 40, 2, 36], InputView::Transposed(&[2, 0, 1, 3])),
        looked(&[9, 20, 32], InputView::Transposed(&[1, 0, 2])),
        looked(&[5, 66, 40], InputView::Transposed(&[2, 0, 1])),
        looked(&[7, 60, 66], InputView::Cut),
        looked(&[7, 130], InputView::Backward),
        looked(&[6, 64], InputView::Repeated(3)),
    ];
    for (at, input) in inputs.into_iter().enumerate() {
        let case = OpCase::new(format!("{at}"), move |c| {
            let x = input.value(c, "x", InputFill::Uniform(-20.0, 100.0))?;
            c.output(x)
        });
        check(&case, &all, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Tests gathers from two joined operands: cast from 16 bits or not, with odd rows, views, an empty operand and
/// negative indices.
fn joined_rows() {
    let mut wrong = Vec::new();
    for (at, [first, second, inner]) in [[8, 5, 256], [3, 0, 64], [0, 4, 6], [2, 3, 7]]
        .into_iter()
        .enumerate()
    {
        for view in 0..3 {
            let case = OpCase::new(format!("{at}/{view}"), move |c| {
                let mut parts = Vec::new();
                for (name, rows) in [("x", first), ("more", second)] {
                    let shape = [2, rows + usize::from(view == 2), inner];
                    let x = c.input(name, shape, InputFill::Normal)?;
                    let x = match view {
                        2 => {
                            let ends = shape.map(|n| n as i64);
                            c.graph.slice(x, &[0, 1, 0], &ends, &[1, 1, 1])?
                        }
                        _ => x,
                    };
                    let x = match view {
                        0 => x,
                        _ => c.graph.cast(x, DType::F32)?,
                    };
                    parts.push(x);
                }
                let all = c.graph.concat(&parts, 1)?;
                let last = (first + second) as f64 - 1.0;
                let places = vec![0.0, last, -1.0, (first as f64).min(last), -last - 1.0];
                let ty = Type::new(DType::I32, [places.len()]);
                let rows = c.input_of("rows", ty, InputFill::Values(places))?;
                let y = c.graph.gather(all, rows, 1)?;
                c.output(y)
            });
            check(&case, FLOATS, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Tests sums and matmuls with subnormal, infinite, NaN or zero operands or results. One case has
/// rows of complete vectors, and one case has short rows of odd length.
fn sums_and_products_of_any_magnitude() {
    let mut wrong = Vec::new();
    let ranges = [(-1e-38, 1e-38), (-1e-19, 1e-19), (-1e38, 1e38), (-2.0, 2.0)];
    for (lo, hi) in ranges {
        for (rows, columns) in [(8, 64), (5, 7)] {
            let case = OpCase::new(format!("{lo:e}..{hi:e}/{columns}"), move |c| {
                let x = c.input("x", [rows, columns], InputFill::Uniform(lo, hi))?;
                let y = c.input("y", [rows, columns], InputFill::Special)?;
                let row = c.input("row", [columns], InputFill::Uniform(lo, hi))?;
                let column = c.input("column", [rows, 1], InputFill::Uniform(lo, hi))?;
                for other in [x, y, row, column] {
                    let sum = c.graph.plus(x, other)?;
                    c.output(sum)?;
                    let less = c.graph.sub(other, x)?;
                    c.output(less)?;
                    let product = c.graph.mul(x, other)?;
                    c.output(product)?;
                }
                Ok(())
            });
            check(&case, &[DType::F32, DType::BF16], &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Tests gate functions over their whole range, including the transition between their
/// approximations for small and large arguments.
fn gates_everywhere() {
    use UnaryFn::{Gelu, GeluTanh, Sigmoid, Silu};
    let mut wrong = Vec::new();
    let ranges = [
        (-3.5, 3.5),
        (-0.01, 0.01),
        (-16.0, 16.0),
        (-70.0, 70.0),
        (-1e-18, 1e-18),
    ];
    for f in [Gelu, GeluTanh, Silu, Sigmoid] {
        for (lo, hi) in ranges {
            let case = OpCase::new(format!("{} of {lo}..{hi}", f.name()), move |c| {
                let x = c.input("x", [64, 1024], InputFill::Uniform(lo, hi))?;
                let y = c.graph.unary(f, x)?;
                c.output(y)
            });
            let dtypes = &[DType::F32, DType::F16];
            check_on(&case, dtypes, |name| name != "cpu", &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The gamma or beta of a norm.
fn weight(c: &mut CaseGraph, name: &str, shape: &[usize]) -> Result<Value, OpError> {
    let ty = Type::new(c.dtype, shape);
    c.param_of(name, ty, InputFill::Uniform(0.5, 1.5))
}

fn norms() {
    let mut wrong = Vec::new();
    // Norms of three elements can be arbitrarily ill-conditioned.
    let wide = |(_, input, _): &&(_, RowInput, _)| input.shape[input.shape.len() - 1] > 3;
    for &(name, input, _) in INPUTS.iter().filter(wide) {
        let case = OpCase::new(name, move |c| {
            let x = input.value(c, "x", InputFill::Normal)?;
            let r = input.value(c, "r", InputFill::Normal)?;
            let shape = c.graph.ty(x).shape.clone();
            let n = shape[shape.len() - 1].known().expect("a size");
            let (gamma, beta) = (weight(c, "gamma", &[n])?, weight(c, "beta", &[n])?);
            let last = shape.len() - 1;
            let y = c.graph.layer_norm(x, gamma, Some(beta), last, 1e-5)?;
            c.output(y)?;
            let y = c.graph.rms_norm(x, gamma, None, 1e-6)?;
            c.output(y)?;
            let (y, sum) = c
                .graph
                .residual_layer_norm(x, r, gamma, beta, Some(beta), 1e-5)?;
            c.output(y)?;
            c.output(sum)?;
            let (y, sum) = c.graph.residual_rms_norm(x, r, gamma, None, 1e-5)?;
            c.output(y)?;
            c.output(sum)
        });
        check(&case, FLOATS, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn norms_of_any_magnitude() {
    let mut wrong = Vec::new();
    // Each row: the minimum and the maximum of the data, and eps of the norm.
    let ranges = [
        (1000.0, 1001.0, 1e-5),
        (-60000.0, 60000.0, 1e-5),
        (-1e30, 1e30, 1e-5),
        (1e25, 2e25, 0.0),
        (-1e-25, 1e-25, 0.0),
        (-3e-20, 3e-20, 1e-12),
    ];
    for (lo, hi, eps) in ranges {
        let case = OpCase::new(format!("{lo:e}..{hi:e}"), move |c| {
            for (name, n) in [("kept", 770), ("long", 9000)] {
                let x = c.input(name, [3, n], InputFill::Uniform(lo, hi))?;
                let gamma = weight(c, &format!("gamma_{name}"), &[n])?;
                let y = c.graph.layer_norm(x, gamma, None, 1, eps)?;
                c.output(y)?;
                let y = c.graph.rms_norm(x, gamma, None, eps)?;
                c.output(y)?;
            }
            Ok(())
        });
        let dtypes: &[DType] = match hi {
            2000.0.. if hi < 65000.0 => &[DType::F32, DType::F16],
            _ => &[DType::F32],
        };
        check(&case, dtypes, &mut wrong);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn attention_passes_infinities_on() {
    let mut wrong = Vec::new();
    let case = OpCase::new("attention/infinite_values_causal", |c| {
        let shape = [1, 40, 1, 8];
        let q = c.input("q", shape, InputFill::Normal)?;
        let k = c.input("k", shape, InputFill::Normal)?;
        let v = (0..40 * 8).map(|at| match (at / 8, at % 8) {
            (30, 2) => f64::INFINITY,
            (35, 2) => f64::NEG_INFINITY,
            (key, column) => (key * 8 + column) as f64 / 64.0 - 2.0,
        });
        let v = c.input("v", shape, InputFill::Values(v.collect()))?;
        let options = AttentionOptions::new(1, 1, AttentionLayout::Bshd).causal();
        let y = c.graph.attention(q, k, v, options)?;
        c.output(y)
    });
    check(&case, FLOATS, &mut wrong);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut all = vec![
        SuiteTest::asserting("rows/softmax", softmax),
        SuiteTest::asserting("rows/log_softmax", log_softmax),
        SuiteTest::asserting("rows/reductions", reductions),
        SuiteTest::asserting(
            "rows/reductions_over_several_axes",
            reductions_over_several_axes,
        ),
        SuiteTest::asserting("rows/statistics_of_channels", statistics_of_channels),
        SuiteTest::asserting(
            "rows/sums_of_millions_are_accurate",
            sums_of_millions_are_accurate,
        ),
        SuiteTest::asserting("rows/scans", scans),
        SuiteTest::asserting("rows/extremes", extremes),
        SuiteTest::asserting("rows/choices", choices),
        SuiteTest::asserting("rows/copies_of_views", copies_of_views),
        SuiteTest::asserting("rows/joined_rows", joined_rows),
        SuiteTest::asserting(
            "rows/sums_and_products_of_any_magnitude",
            sums_and_products_of_any_magnitude,
        ),
        SuiteTest::asserting("rows/gates_everywhere", gates_everywhere),
        SuiteTest::asserting("rows/norms", norms),
        SuiteTest::asserting("rows/norms_of_any_magnitude", norms_of_any_magnitude),
        SuiteTest::asserting(
            "rows/attention_passes_infinities_on",
            attention_passes_infinities_on,
        ),
    ];
    all.extend(products::tests());
    all
}
