//! Operators on rows that contain one or two special values among ordinary numbers.

use std::cmp::Ordering;

use libtest_mimic::Failed;
use tercet::Device;
use tercet_ir::ops::{CumSum, ReduceFn, ScanFn};
use tercet_ir::{DType, Graph, OpError, OpKind, Tensor, Type, Value};

use super::expected::{extreme, wrapped};
use super::values::{Special, elements, rounded, specials, tensor};
use super::{SIZES, compile, everywhere, is_gpu, run};
use crate::SuiteTest;

/// The operators that this file tests.
pub(super) const KINDS: &[OpKind] = &[
    OpKind::TopK,
    OpKind::Sort,
    OpKind::ArgMax,
    OpKind::ArgMin,
    OpKind::Softmax,
    OpKind::LogSoftmax,
    OpKind::CumSum,
    OpKind::Reduce,
    OpKind::LayerNorm,
    OpKind::RmsNorm,
];

const EPS: f64 = 1e-5;
/// Elements that `top_k` selects, at most the size of the row.
const TOP: usize = 5;

/// A function of a row.
#[derive(Clone, Copy, PartialEq)]
enum RowFunction {
    Reduce(ReduceFn),
    Scan(ScanFn),
    Softmax,
    LogSoftmax,
    LayerNorm,
    RmsNorm,
    /// Sorted values and their indices; in descending order if true.
    Sort(bool),
    /// Selected values and their indices; the largest values if true, else the smallest.
    TopK(bool),
    /// Index of the maximum if true, else of the minimum.
    Argument(bool),
}

impl RowFunction {
    fn all() -> Vec<RowFunction> {
        let reductions = ReduceFn::ALL.iter().map(|&f| RowFunction::Reduce(f));
        let scans = ScanFn::ALL.iter().map(|&f| RowFunction::Scan(f));
        let mut all: Vec<RowFunction> = reductions.chain(scans).collect();
        all.extend([
            RowFunction::Softmax,
            RowFunction::LogSoftmax,
            RowFunction::LayerNorm,
            RowFunction::RmsNorm,
        ]);
        for flag in [false, true] {
            all.extend([
                RowFunction::Sort(flag),
                RowFunction::TopK(flag),
                RowFunction::Argument(flag),
            ]);
        }
        all
    }

    fn name(self) -> String {
        let pick = |flag: bool, names: [&str; 2]| names[usize::from(flag)].to_string();
        match self {
            RowFunction::Reduce(f) => format!("reduce_{}", f.name()),
            RowFunction::Scan(f) => format!("scan_{}", f.name()),
            RowFunction::Softmax => "softmax".to_string(),
            RowFunction::LogSoftmax => "log_softmax".to_string(),
            RowFunction::LayerNorm => "layer_norm".to_string(),
            RowFunction::RmsNorm => "rms_norm".to_string(),
            RowFunction::Sort(down) => pick(down, ["sort_up", "sort_down"]),
            RowFunction::TopK(largest) => pick(largest, ["top_k_least", "top_k_largest"]),
            RowFunction::Argument(greatest) => pick(greatest, ["arg_min", "arg_max"]),
        }
    }

    /// Whether the function squares its elements: a square of the greatest F64 overflows.
    fn squares(self) -> bool {
        matches!(self, RowFunction::LayerNorm | RowFunction::RmsNorm)
    }

    fn build(self, g: &mut Graph, x: Value, n: usize, axis: usize) -> Result<Vec<Value>, OpError> {
        let dtype = g.ty(x).dtype;
        Ok(match self {
            RowFunction::Reduce(f) => vec![g.reduce(f, x, &[axis], false)?],
            RowFunction::Scan(f) => {
                let (exclusive, reverse) = (false, false);
                let scan = CumSum {
                    axis,
                    f,
                    exclusive,
                    reverse,
                };
                vec![g.scan(x, scan)?]
            }
            RowFunction::Softmax => vec![g.softmax(x, axis)?],
            RowFunction::LogSoftmax => vec![g.log_softmax(x, axis)?],
            RowFunction::LayerNorm | RowFunction::RmsNorm => {
                let gamma = tensor(dtype, &[n], &vec![Special::F(1.0); n]);
                let gamma = g.constant(gamma)?;
                vec![match self {
                    RowFunction::LayerNorm => g.layer_norm(x, gamma, None, 1, EPS)?,
                    _ => g.rms_norm(x, gamma, None, EPS)?,
                }]
            }
            RowFunction::Sort(descending) => {
                let y = g.sort(x, axis, descending)?;
                vec![y, y.port(1)]
            }
            RowFunction::TopK(largest) => {
                let y = g.top_k(x, n.min(TOP), axis, largest)?;
                vec![y, y.port(1)]
            }
            RowFunction::Argument(true) => vec![g.arg_max(x, axis, false)?],
            RowFunction::Argument(false) => vec![g.arg_min(x, axis, false)?],
        })
    }

    /// The expected elements of each result for a row.
    fn expected(self, dtype: DType, row: &[Special]) -> Vec<Vec<Special>> {
        match self {
            RowFunction::Reduce(f) => vec![vec![reduced(f, dtype, row)]],
            RowFunction::Scan(f) => {
                let f = match f {
                    ScanFn::Sum => ReduceFn::Sum,
                    ScanFn::Prod => ReduceFn::Prod,
                    ScanFn::Max => ReduceFn::Max,
                    ScanFn::Min => ReduceFn::Min,
                };
                vec![scanned(f, dtype, row)]
            }
            RowFunction::Softmax | RowFunction::LogSoftmax => {
                let row: Vec<f64> = row.iter().map(|x| x.as_f64()).collect();
                vec![softmax(self == RowFunction::LogSoftmax, dtype, &row)]
            }
            RowFunction::LayerNorm | RowFunction::RmsNorm => {
                let row: Vec<f64> = row.iter().map(|x| x.as_f64()).collect();
                vec![normalized(self == RowFunction::LayerNorm, dtype, &row)]
            }
            RowFunction::Sort(descending) => {
                let order = ordered(row, |a, b| match descending {
                    true => by_size(b, a, true),
                    false => by_size(a, b, true),
                });
                picked(row, &order)
            }
            RowFunction::TopK(largest) => {
                let order = extremes(row, largest);
                picked(row, &order[..row.len().min(TOP)])
            }
            RowFunction::Argument(greatest) => {
                vec![vec![Special::I(extremes(row, greatest)[0] as i128)]]
            }
        }
    }

    /// The permitted error of a finite result. The row has `len` elements, and `magnitude` is the
    /// sum of the absolute values of its finite elements.
    fn tolerance(self, dtype: DType, len: usize, magnitude: f64, want: f64) -> f64 {
        let unit = match dtype {
            DType::F64 => f64::EPSILON,
            DType::F32 => f64::from(f32::EPSILON),
            DType::F16 => 9.8e-4,
            _ => 7.9e-3,
        };
        let size = match self {
            RowFunction::Reduce(ReduceFn::Sum) | RowFunction::Scan(ScanFn::Sum) => magnitude,
            RowFunction::Reduce(ReduceFn::Mean) => magnitude / len as f64,
            RowFunction::Reduce(ReduceFn::Prod) | RowFunction::Scan(ScanFn::Prod) => want.abs(),
            RowFunction::Softmax | RowFunction::LogSoftmax => 1.0 + want.abs(),
            RowFunction::LayerNorm | RowFunction::RmsNorm => want.abs() + (len as f64).sqrt(),
            _ => return 0.0,
        };
        let least = rounded(f64::MIN_POSITIVE, dtype).max(match dtype {
            DType::F64 => 5e-324,
            DType::F32 => 1.5e-45,
            DType::F16 => 6e-8,
            _ => 9.2e-41,
        });
        8.0 * unit * size + least
    }
}

/// NaN above every number.
fn by_size(a: Special, b: Special, nan_above: bool) -> Ordering {
    match (a, b) {
        (Special::I(a), Special::I(b)) => a.cmp(&b),
        (a, b) => {
            let (a, b) = (a.as_f64(), b.as_f64());
            let order = a.partial_cmp(&b);
            order.unwrap_or(match nan_above {
                true => a.is_nan().cmp(&b.is_nan()),
                false => b.is_nan().cmp(&a.is_nan()),
            })
        }
    }
}

/// The indices of a row in a stable order.
fn ordered(row: &[Special], order: impl Fn(Special, Special) -> Ordering) -> Vec<usize> {
    let mut all: Vec<usize> = (0..row.len()).collect();
    all.sort_by(|&a, &b| order(row[a], row[b]));
    all
}

/// The indices of a row, the most extreme element first; NaN is the most extreme.
fn extremes(row: &[Special], greatest: bool) -> Vec<usize> {
    ordered(row, |a, b| match greatest {
        true => by_size(b, a, true),
        false => by_size(a, b, false),
    })
}

fn picked(row: &[Special], order: &[usize]) -> Vec<Vec<Special>> {
    let values = order.iter().map(|&i| row[i]).collect();
    vec![
        values,
        order.iter().map(|&i| Special::I(i as i128)).collect(),
    ]
}

fn reduced(f: ReduceFn, dtype: DType, row: &[Special]) -> Special {
    let last = scanned(f, dtype, row).pop();
    match (f, last) {
        (ReduceFn::Mean, Some(Special::F(_))) => {
            let sum: f64 = row.iter().map(|x| x.as_f64()).sum();
            Special::F(rounded(sum / row.len() as f64, dtype))
        }
        (_, last) => last.expect("a row has elements"),
    }
}

/// The reductions of all starts of a row.
fn scanned(f: ReduceFn, dtype: DType, row: &[Special]) -> Vec<Special> {
    if let Special::F(_) = row[0] {
        let combine = |a: f64, b: f64| match f {
            ReduceFn::Sum | ReduceFn::Mean => a + b,
            ReduceFn::Prod => a * b,
            ReduceFn::Max => extreme(a, b, true),
            ReduceFn::Min => extreme(a, b, false),
        };
        // The sum of no elements is -0, so that -0 stays.
        let first = match f {
            ReduceFn::Sum | ReduceFn::Mean => -0.0,
            ReduceFn::Prod => 1.0,
            ReduceFn::Max => f64::NEG_INFINITY,
            ReduceFn::Min => f64::INFINITY,
        };
        return row
            .iter()
            .scan(first, |so_far, x| {
                *so_far = combine(*so_far, x.as_f64());
                Some(Special::F(rounded(*so_far, dtype)))
            })
            .collect();
    }
    let combine = |a: i128, b: i128| match f {
        ReduceFn::Sum | ReduceFn::Mean => wrapped(a + b, dtype),
        ReduceFn::Prod => wrapped(a * b, dtype),
        ReduceFn::Max => a.max(b),
        ReduceFn::Min => a.min(b),
    };
    let first = match f {
        ReduceFn::Sum | ReduceFn::Mean => 0,
        ReduceFn::Prod => 1,
        ReduceFn::Max => i128::MIN,
        ReduceFn::Min => i128::MAX,
    };
    row.iter()
        .scan(first, |so_far, x| {
            let x = match x {
                Special::I(i) => *i,
                Special::F(x) => *x as i128,
            };
            *so_far = combine(*so_far, x);
            Some(Special::I(*so_far))
        })
        .collect()
}

/// The softmax of a row: NaN or infinity in a row makes all of its results NaN. A row of only
/// `-inf` has the softmax 0.
fn softmax(log: bool, dtype: DType, row: &[f64]) -> Vec<Special> {
    let greatest = row
        .iter()
        .fold(f64::NEG_INFINITY, |a, &b| extreme(a, b, true));
    let sum: f64 = row.iter().map(|x| libm::exp(x - greatest)).sum();
    let one = |&x: &f64| match (greatest == f64::NEG_INFINITY, log) {
        (true, true) => f64::NEG_INFINITY,
        (true, false) => 0.0,
        (false, true) => x - greatest - libm::log(sum),
        (false, false) => libm::exp(x - greatest) / sum,
    };
    row.iter()
        .map(|x| Special::F(rounded(one(x), dtype)))
        .collect()
}

fn normalized(centered: bool, dtype: DType, row: &[f64]) -> Vec<Special> {
    let n = row.len() as f64;
    let mean = match centered {
        true => row.iter().sum::<f64>() / n,
        false => 0.0,
    };
    let square: f64 = row.iter().map(|x| (x - mean) * (x - mean)).sum();
    let root = libm::sqrt(square / n + EPS);
    row.iter()
        .map(|x| Special::F(rounded((x - mean) / root, dtype)))
        .collect()
}

/// The tests of this file.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = Vec::new();
    for f in RowFunction::all() {
        for &dtype in DType::ALL {
            let is_typed = graph(f, dtype, 1).is_ok();
            if !is_typed || f.squares() && dtype == DType::F64 {
                continue;
            }
            for axis in [1, 0] {
                if axis == 0 && f.squares() {
                    continue;
                }
                let name = format!("special/{}_axis_{axis}/{dtype}", f.name());
                tests.extend(everywhere(&name, move |device| {
                    check(device, f, dtype, axis)
                }));
            }
        }
    }
    tests
}

/// Rows of ordinary numbers with one or two special values.
fn rows(f: RowFunction, dtype: DType, n: usize) -> Vec<Vec<Special>> {
    let all = specials(dtype);
    let ordinary = |i: usize| match (dtype, f) {
        (_, RowFunction::Reduce(ReduceFn::Prod) | RowFunction::Scan(ScanFn::Prod)) => 1.0,
        (DType::Bool, _) => (i % 2) as f64,
        (DType::U8 | DType::U32, _) => (i * 7 % 5) as f64,
        (d, _) if d.is_float() => [1.0, -0.5, 0.25, 2.0, -1.5][i * 7 % 5],
        (_, _) => (i * 7 % 5) as f64 - 2.0,
    };
    let number = |i: usize| match dtype.is_float() {
        true => Special::F(ordinary(i)),
        false => Special::I(ordinary(i) as i128),
    };
    let is_huge = |x: Special| matches!(x, Special::F(x) if x.is_finite() && x.abs() > 30000.0);
    let row = |r: usize| {
        let mut row: Vec<Special> = (0..n).map(|i| number(i + r)).collect();
        let first = all[r % all.len()];
        row[r * 5 % n] = first;
        let second = all[(r * 3 + r / all.len()) % all.len()];
        // Do not put two huge numbers into a row, because the overflow of sums would depend on the
        // order.
        if r >= all.len() && n > 1 && !(is_huge(first) && is_huge(second)) {
            row[(r * 5 + 1 + r % (n - 1)) % n] = second;
        }
        row
    };
    (0..3 * all.len()).map(row).collect()
}

/// The operands of a graph for rows of `n` elements along `axis`.
fn operand(rows: &[Vec<Special>], dtype: DType, axis: usize) -> Tensor {
    let (count, n) = (rows.len(), rows[0].len());
    match axis {
        1 => tensor(dtype, &[count, n], &rows.concat()),
        _ => {
            let columns = (0..n).flat_map(|i| rows.iter().map(move |row| row[i]));
            tensor(dtype, &[n, count], &columns.collect::<Vec<_>>())
        }
    }
}

/// The function at each size; the outputs are ordered by size.
fn graph(f: RowFunction, dtype: DType, axis: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    for n in SIZES {
        let count = rows(f, dtype, n).len();
        let shape = if axis == 1 { [count, n] } else { [n, count] };
        let x = g.input(&format!("x{n}"), Type::new(dtype, shape))?;
        for (i, y) in f.build(&mut g, x, n, axis)?.into_iter().enumerate() {
            g.output(&format!("y{i}_{n}"), y)?;
        }
    }
    Ok(g)
}

fn check(device: &Device, f: RowFunction, dtype: DType, axis: usize) -> Result<(), Failed> {
    if is_gpu(device) && matches!(dtype, DType::F64 | DType::I64) {
        return Ok(());
    }
    let graph = graph(f, dtype, axis).map_err(|e| tercet::one_line(&e))?;
    let mut executable = compile(device, &graph)?;
    let all = SIZES.map(|n| rows(f, dtype, n));
    let inputs = SIZES.iter().zip(&all);
    let inputs: Vec<(String, Tensor)> = inputs
        .map(|(n, rows)| (format!("x{n}"), operand(rows, dtype, axis)))
        .collect();
    let inputs: Vec<_> = inputs.iter().map(|(name, t)| (name.as_str(), t)).collect();
    let mut outputs = run(&mut *executable, &inputs)?.into_iter();
    let mut wrong = Vec::new();
    for rows in &all {
        let expected: Vec<Vec<Vec<Special>>> =
            rows.iter().map(|row| f.expected(dtype, row)).collect();
        for (result, first) in expected[0].iter().enumerate() {
            let got = outputs.next().ok_or("a result is missing")?;
            let got = elements(&got);
            let len = first.len();
            for (r, row) in rows.iter().enumerate() {
                // Once for a row, because a scan has as many results as elements.
                let magnitude = magnitude(row);
                for (i, &want) in expected[r][result].iter().enumerate() {
                    let at = if axis == 1 {
                        r * len + i
                    } else {
                        i * rows.len() + r
                    };
                    let allowed = |want| f.tolerance(dtype, row.len(), magnitude, want);
                    if !is_right(allowed, got[at], want) {
                        let shown = &row[..row.len().min(6)];
                        wrong.push(format!(
                            "{} elements, row {r} {shown:?}, result {result}, element {i}: {:?}, not {want:?}",
                            row.len(),
                            got[at]
                        ));
                    }
                }
            }
        }
    }
    match wrong.len() {
        0 => Ok(()),
        count => {
            wrong.truncate(12);
            Err(format!("{count} wrong, such as\n{}", wrong.join("\n")).into())
        }
    }
}

/// The sum of the absolute values of the finite elements.
fn magnitude(row: &[Special]) -> f64 {
    let magnitudes = row.iter().map(|x| x.as_f64().abs());
    magnitudes.filter(|x| x.is_finite()).sum()
}

/// Whether a result is the expected one, up to the error `allowed` for a finite result.
fn is_right(allowed: impl Fn(f64) -> f64, got: Special, want: Special) -> bool {
    let (Special::F(g), Special::F(w)) = (got, want) else {
        return got.is_same(want);
    };
    match (g.is_finite() && w.is_finite(), allowed(w)) {
        (false, _) | (true, 0.0) => got.is_same(want),
        (true, allowed) => (g - w).abs() <= allowed,
    }
}
