//! Elementwise functions: of inputs, of one input twice, and of an input and constants.
//!
//! Compilers may simplify `f(x, x)` and `f(x, 0)` by rules that hold for finite numbers only.

use libtest_mimic::Failed;
use tercet::Device;
use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use tercet_ir::{DType, Graph, OpError, OpKind, RunError, Type, Value};

use super::expected::{self, is_exact, is_exact_binary};
use super::values::{Special, elements, specials, tensor};
use super::{SIZES, compile, everywhere, is_gpu, run};
use crate::SuiteTest;

/// The operators that this file tests.
pub(super) const KINDS: &[OpKind] = &[
    OpKind::Unary,
    OpKind::Binary,
    OpKind::Compare,
    OpKind::Where,
    OpKind::Fma,
    OpKind::Clamp,
    OpKind::Cast,
];

/// Runs per test. Each run has other operand values, so that small sizes are tested with many
/// values too.
const RUNS: usize = 48;
/// Distance, in the list of all operand combinations, between the combinations of adjacent
/// elements. The distance shares no factor with the numbers of special values, so all combinations
/// occur.
const STEP: usize = 7919;

/// Maximum number of runs with one element each.
const MAX_NARROWED: usize = 800;
/// The borders of I32.
const LEAST: i128 = i32::MIN as i128;
const GREATEST: i128 = i32::MAX as i128;

/// The constants in tests of functions with one constant operand.
const CONSTANTS: [f64; 7] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
];

/// An elementwise function.
#[derive(Clone, Copy)]
enum Function {
    Unary(UnaryFn),
    Binary(BinaryFn),
    /// `f(x, x)`.
    BinaryOfOne(BinaryFn),
    /// `f(x, c)`.
    BinaryWith(BinaryFn, f64),
    /// `f(c, x)`.
    BinaryFrom(BinaryFn, f64),
    Compare(CompareFn),
    CompareOfOne(CompareFn),
    Where,
    Fma,
    Clamp(f64, f64),
    Cast(DType),
}

impl Function {
    /// The number of inputs.
    fn arity(self) -> usize {
        match self {
            Function::Unary(_)
            | Function::BinaryOfOne(_)
            | Function::BinaryWith(..)
            | Function::BinaryFrom(..)
            | Function::CompareOfOne(_)
            | Function::Clamp(..)
            | Function::Cast(_) => 1,
            Function::Binary(_) | Function::Compare(_) | Function::Where => 2,
            Function::Fma => 3,
        }
    }

    fn build(self, g: &mut Graph, dtype: DType, x: &[Value]) -> Result<Value, OpError> {
        match self {
            Function::Unary(f) => g.unary(f, x[0]),
            Function::Binary(f) => g.binary(f, x[0], x[1]),
            Function::BinaryOfOne(f) => g.binary(f, x[0], x[0]),
            Function::BinaryWith(f, c) => {
                let c = g.scalar(dtype, c)?;
                g.binary(f, x[0], c)
            }
            Function::BinaryFrom(f, c) => {
                let c = g.scalar(dtype, c)?;
                g.binary(f, c, x[0])
            }
            Function::Compare(f) => g.compare(f, x[0], x[1]),
            Function::CompareOfOne(f) => g.compare(f, x[0], x[0]),
            // The condition of the `where` depends on the second operand only.
            Function::Where => {
                let truth = g.compare(CompareFn::Eq, x[1], x[1])?;
                g.where_(truth, x[0], x[1])
            }
            Function::Fma => g.fma(x[0], x[1], x[2]),
            Function::Clamp(lo, hi) => g.clamp(x[0], lo, hi),
            Function::Cast(to) => g.cast(x[0], to),
        }
    }

    fn expected(self, dtype: DType, x: &[Special]) -> Special {
        let constant = |c: f64| match dtype.is_float() {
            true => Special::F(c),
            false => Special::I(c as i128),
        };
        match self {
            Function::Unary(f) => expected::unary(f, dtype, x[0]),
            Function::Binary(f) => expected::binary(f, dtype, x[0], x[1]),
            Function::BinaryOfOne(f) => expected::binary(f, dtype, x[0], x[0]),
            Function::BinaryWith(f, c) => expected::binary(f, dtype, x[0], constant(c)),
            Function::BinaryFrom(f, c) => expected::binary(f, dtype, constant(c), x[0]),
            Function::Compare(f) => expected::compare(f, x[0], x[1]),
            Function::CompareOfOne(f) => expected::compare(f, x[0], x[0]),
            Function::Where => match x[1].as_f64().is_nan() {
                true => x[1],
                false => x[0],
            },
            Function::Fma => expected::fma(dtype, [x[0], x[1], x[2]]),
            Function::Clamp(lo, hi) => match x[0] {
                Special::F(v) => {
                    let above = expected::extreme(v, lo, true);
                    Special::F(expected::extreme(above, hi, false))
                }
                Special::I(v) => Special::I(v.max(lo.ceil() as i128).min(hi.floor() as i128)),
            },
            Function::Cast(to) => expected::cast(x[0], to),
        }
    }

    /// Whether a device that computes I64 in I32 refuses the operands although the result fits:
    /// shifts by 32 and more, powers that wrap in I64, and sums with a product beyond I32.
    fn is_refused(self, x: &[Special]) -> bool {
        match (self, x) {
            (Function::Binary(f), &[Special::I(a), Special::I(b)]) => is_refused(f, a, b),
            (Function::BinaryOfOne(f), &[Special::I(a)]) => is_refused(f, a, a),
            (Function::Fma, &[Special::I(a), Special::I(b), _]) => i32::try_from(a * b).is_err(),
            (_, _) => false,
        }
    }

    /// Whether both values are zeros of a gate. GPUs return +0 for a gate of -0.
    fn is_zero_gate(self, got: Special, want: Special) -> bool {
        let is_zero = |x| matches!(x, Special::F(x) if x == 0.0);
        let gates = [UnaryFn::Gelu, UnaryFn::GeluTanh, UnaryFn::Silu];
        matches!(self, Function::Unary(f) if gates.contains(&f)) && is_zero(got) && is_zero(want)
    }

    /// Whether the result is correctly rounded in this dtype. In BF16, `fma` rounds to F32 first.
    fn is_exact(self, dtype: DType) -> bool {
        match self {
            Function::Fma => dtype != DType::BF16,
            Function::Unary(f) => is_exact(f),
            Function::Binary(f)
            | Function::BinaryOfOne(f)
            | Function::BinaryWith(f, _)
            | Function::BinaryFrom(f, _) => is_exact_binary(f),
            _ => true,
        }
    }
}

fn is_refused(f: BinaryFn, a: i128, b: i128) -> bool {
    match f {
        BinaryFn::Shl | BinaryFn::Shr => b.rem_euclid(64) >= 32,
        BinaryFn::Pow => {
            let power = u32::try_from(b).map(|b| a.checked_pow(b));
            power.is_ok_and(|power| power.is_none_or(|x| i64::try_from(x).is_err()))
        }
        _ => false,
    }
}

/// The tests of this file.
pub(super) fn tests() -> Vec<SuiteTest> {
    let mut tests = Vec::new();
    for &dtype in DType::ALL {
        for (name, functions) in groups(dtype) {
            let functions: Vec<Function> = functions
                .into_iter()
                .filter(|f| is_well_typed(*f, dtype))
                .collect();
            if functions.is_empty() {
                continue;
            }
            let name = format!("special/{name}/{dtype}");
            tests.extend(everywhere(&name, move |device| {
                check(device, dtype, &functions)
            }));
        }
    }
    tests
}

/// Functions that are outputs of one graph, with the name of their test.
fn groups(dtype: DType) -> Vec<(String, Vec<Function>)> {
    let mut groups = Vec::new();
    let mut add = |name: &str, functions: Vec<Function>| groups.push((name.to_string(), functions));
    for &f in UnaryFn::ALL {
        add(f.name(), vec![Function::Unary(f)]);
    }
    for &f in BinaryFn::ALL {
        add(f.name(), vec![Function::Binary(f)]);
        add(
            &format!("{}_of_one", f.name()),
            vec![Function::BinaryOfOne(f)],
        );
        if dtype.is_float() {
            let both = |c| [Function::BinaryWith(f, c), Function::BinaryFrom(f, c)];
            let all = CONSTANTS.iter().flat_map(|&c| both(c)).collect();
            add(&format!("{}_with_constants", f.name()), all);
        }
    }
    for &f in CompareFn::ALL {
        add(f.name(), vec![Function::Compare(f)]);
        add(
            &format!("{}_of_one", f.name()),
            vec![Function::CompareOfOne(f)],
        );
    }
    add("where", vec![Function::Where]);
    add("fma", vec![Function::Fma]);
    let bounds = [(-1.5, 2.5), (0.0, f64::INFINITY), (f64::NEG_INFINITY, -0.0)];
    add(
        "clamp",
        bounds.map(|(lo, hi)| Function::Clamp(lo, hi)).into(),
    );
    for &to in DType::ALL {
        add(&format!("cast_to_{to}"), vec![Function::Cast(to)]);
    }
    groups
}

fn is_well_typed(f: Function, dtype: DType) -> bool {
    let mut g = Graph::new();
    let names = ["a", "b", "c"];
    let x: Result<Vec<Value>, OpError> = names[..f.arity()]
        .iter()
        .map(|name| g.input(name, Type::new(dtype, [1])))
        .collect();
    x.and_then(|x| f.build(&mut g, dtype, &x)).is_ok()
}

/// Whether a function reads or writes a dtype.
fn uses(dtype: DType, functions: &[Function], wanted: DType) -> bool {
    let casts = |f: &Function| matches!(f, Function::Cast(to) if *to == wanted);
    dtype == wanted || functions.iter().any(casts)
}

/// The operands of element `at`: every combination of special values, in a scattered order.
fn operands(all: &[Special], arity: usize, at: usize) -> Vec<Special> {
    let count = all.len().pow(arity as u32);
    let mut index = (at * STEP) % count;
    let mut x = Vec::with_capacity(arity);
    for _ in 0..arity {
        x.push(all[index % all.len()]);
        index /= all.len();
    }
    x
}

fn check(device: &Device, dtype: DType, functions: &[Function]) -> Result<(), Failed> {
    if is_gpu(device) && uses(dtype, functions, DType::F64) {
        return Ok(());
    }
    if is_gpu(device) && uses(dtype, functions, DType::I64) {
        return functions
            .iter()
            .try_for_each(|f| check_narrowed(device, dtype, *f));
    }
    let arity = functions[0].arity();
    let graph = graph(dtype, functions).map_err(|e| tercet::one_line(&e))?;
    let all = specials(dtype);
    let mut executable = compile(device, &graph)?;
    let (mut wrong, mut count) = (Vec::new(), 0);
    for turn in 0..RUNS {
        let mut data = Vec::new();
        for n in SIZES {
            let rows: Vec<Vec<Special>> = (0..n)
                .map(|i| operands(&all, arity, turn * n + i))
                .collect();
            data.push(rows);
        }
        let mut inputs = Vec::new();
        for (n, rows) in SIZES.iter().zip(&data) {
            for operand in 0..arity {
                let values: Vec<Special> = rows.iter().map(|x| x[operand]).collect();
                inputs.push((input_name(*n, operand), tensor(dtype, &[*n], &values)));
            }
        }
        let inputs: Vec<_> = inputs.iter().map(|(name, t)| (name.as_str(), t)).collect();
        let outputs = run(&mut *executable, &inputs)?;
        let expected = data
            .iter()
            .flat_map(|rows| functions.iter().map(move |f| (f, rows)));
        for ((f, rows), output) in expected.zip(&outputs) {
            for (x, got) in rows.iter().zip(elements(output)) {
                let want = f.expected(dtype, x);
                let is_right = match f.is_exact(dtype) {
                    true => got.is_same(want),
                    false => got.is_near(want, dtype) || f.is_zero_gate(got, want),
                };
                if !is_right {
                    count += 1;
                    wrong.push(format!(
                        "{} elements: f({x:?}) = {got:?}, not {want:?}",
                        rows.len()
                    ));
                }
            }
        }
    }
    match count {
        0 => Ok(()),
        _ => {
            wrong.sort();
            wrong.dedup();
            wrong.truncate(12);
            Err(format!("{count} wrong, such as\n{}", wrong.join("\n")).into())
        }
    }
}

/// Checks a function of I64 on a device that computes it in I32: results are right if they fit into
/// I32, and the run fails otherwise.
fn check_narrowed(device: &Device, dtype: DType, f: Function) -> Result<(), Failed> {
    let mut g = Graph::new();
    let mut build = || -> Result<(), OpError> {
        let names = ["a", "b", "c"];
        let x: Result<Vec<Value>, OpError> = names[..f.arity()]
            .iter()
            .map(|name| g.input(name, Type::new(dtype, [1])))
            .collect();
        let y = f.build(&mut g, dtype, &x?)?;
        g.output("y", y)
    };
    build().map_err(|e| tercet::one_line(&e))?;
    let mut executable = compile(device, &g)?;
    let fits = |x: &Special| match x {
        Special::I(i) => i32::try_from(*i).is_ok(),
        Special::F(_) => true,
    };
    let mut all = specials(dtype);
    if dtype == DType::I64 {
        all.retain(fits);
    }
    let count = all.len().pow(f.arity() as u32).min(MAX_NARROWED);
    for at in 0..count {
        let x = operands(&all, f.arity(), at);
        let tensors: Vec<_> = x.iter().map(|x| tensor(dtype, &[1], &[*x])).collect();
        let inputs: Vec<_> = ["a", "b", "c"].into_iter().zip(&tensors).collect();
        let want = f.expected(dtype, &x);
        let shown = format!("f({x:?}), which is {want:?}");
        // Conversions of floats saturate at the borders of I32.
        let want = match want {
            Special::I(i) if dtype.is_float() => Special::I(i.clamp(LEAST, GREATEST)),
            other => other,
        };
        match executable.run(&inputs) {
            Ok(y)
                if elements(&y[0])[0].is_same(want)
                    && (y[0].dtype() != DType::I64 || fits(&want)) => {}
            Ok(y) => return Err(format!("{shown}, gave {:?}", elements(&y[0])[0]).into()),
            Err(RunError::Node { .. }) if !fits(&want) || f.is_refused(&x) => {}
            Err(e) => return Err(format!("{shown}: {}", tercet::one_line(&e)).into()),
        }
    }
    Ok(())
}

fn input_name(n: usize, operand: usize) -> String {
    format!("x{operand}_{n}")
}

/// The functions at each size; the outputs are ordered by size.
fn graph(dtype: DType, functions: &[Function]) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    for n in SIZES {
        let mut x = Vec::new();
        for operand in 0..functions[0].arity() {
            x.push(g.input(&input_name(n, operand), Type::new(dtype, [n]))?);
        }
        for (i, f) in functions.iter().enumerate() {
            let y = f.build(&mut g, dtype, &x)?;
            g.output(&format!("y{i}_{n}"), y)?;
        }
    }
    Ok(g)
}
