//! Pattern match that replaces the fifteen steps of the derivative of tanh-GELU by a single step.

use tercet_ir::DType;
use tercet_ir::ops::{Map, MapArg, MapStep};
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};

use self::DerivativePattern::{Const, OneMinus, Product, Sum, Tanh, X};

/// Expression tree to match.
enum DerivativePattern {
    /// The clamped operand x.
    X,
    Const(f64),
    Tanh(&'static DerivativePattern),
    Sum(&'static DerivativePattern, &'static DerivativePattern),
    Product(&'static DerivativePattern, &'static DerivativePattern),
    /// One minus the sub-pattern.
    OneMinus(&'static DerivativePattern),
}

const B: f64 = 0.044715;
const C: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

static SQUARE: DerivativePattern = Product(&X, &X);
static FACTOR: DerivativePattern = Sum(&Product(&SQUARE, &Const(B * C)), &Const(C));
static TANH: DerivativePattern = Tanh(&Product(&X, &FACTOR));
static STEEP: DerivativePattern = Sum(&Product(&SQUARE, &Const(3.0 * B * C)), &Const(C));
static CHANGE: DerivativePattern = Product(&OneMinus(&Product(&TANH, &TANH)), &STEEP);
static TWICE: DerivativePattern = Sum(&Sum(&Product(&X, &CHANGE), &TANH), &Const(1.0));
static WHOLE: DerivativePattern = Product(&TWICE, &Const(0.5));

/// A map in which derivatives of tanh-GELU are single steps, with the dtypes of its steps.
/// `derivatives` marks these steps; each is encoded as `GeluTanh` of the derivative's operand.
pub(super) struct FoldedDerivatives {
    pub(super) map: Map,
    pub(super) dtypes: Vec<DType>,
    pub(super) derivatives: Vec<bool>,
}

impl FoldedDerivatives {
    /// Replaces the derivatives in a map whose steps, apart from booleans and integers, are F32.
    pub(super) fn new(map: &Map, dtypes: &[DType]) -> FoldedDerivatives {
        let mut body = map.body.clone();
        let mut derivatives = vec![false; body.len()];
        for s in 0..body.len() {
            if let Some(operand) = derived(&body[..=s]) {
                body[s] = MapStep::new(ScalarOp::Unary(UnaryFn::GeluTanh), [operand]);
                derivatives[s] = true;
            }
        }
        let found = derivatives.contains(&true);
        let mut read = vec![!found; body.len()];
        map.results.iter().for_each(|&s| read[s] = true);
        for s in (0..body.len()).rev() {
            if !found || !read[s] {
                continue;
            }
            for arg in &body[s].args {
                if let MapArg::Step(of) = *arg {
                    read[of] = true;
                }
            }
        }
        let place = |s: usize| read[..s].iter().filter(|r| **r).count();
        for arg in body.iter_mut().flat_map(|step| &mut step.args) {
            if let MapArg::Step(of) = arg {
                *of = place(*of);
            }
        }
        let kept = |s: &usize| read[*s];
        let steps = || (0..body.len()).filter(kept);
        FoldedDerivatives {
            map: Map {
                body: steps().map(|s| body[s].clone()).collect(),
                results: map.results.iter().map(|&s| place(s)).collect(),
                ..map.clone()
            },
            dtypes: steps().map(|s| dtypes[s]).collect(),
            derivatives: steps().map(|s| derivatives[s]).collect(),
        }
    }
}

/// Operand x if the last step is the derivative of GELU at x.
fn derived(body: &[MapStep]) -> Option<MapArg> {
    let mut bounded = None;
    let last = MapArg::Step(body.len() - 1);
    if !is(body, last, &WHOLE, &mut bounded) {
        return None;
    }
    let MapArg::Step(x) = bounded? else {
        return None;
    };
    let reaches = |lo: f64, hi: f64| lo <= -20.0 && hi >= 20.0;
    match &body[x] {
        MapStep {
            op: ScalarOp::Clamp { lo, hi },
            args,
        } if reaches(lo.0, hi.0) => Some(args[0]),
        _ => None,
    }
}

/// True if the expression that computes `arg` matches the pattern. `x` is the operand that the
/// pattern's `X` matched first.
fn is(body: &[MapStep], arg: MapArg, pattern: &DerivativePattern, x: &mut Option<MapArg>) -> bool {
    if matches!(pattern, X) {
        return *x.get_or_insert(arg) == arg;
    }
    let MapArg::Step(s) = arg else {
        return false;
    };
    let MapStep { op, args } = &body[s];
    let mut either = |a: &DerivativePattern, b: &DerivativePattern| {
        let before = *x;
        if is(body, args[0], a, x) && is(body, args[1], b, x) {
            return true;
        }
        *x = before;
        is(body, args[1], a, x) && is(body, args[0], b, x)
    };
    match (pattern, op) {
        (Const(c), ScalarOp::Const(_, v)) => v.0 as f32 == *c as f32,
        (Tanh(a), ScalarOp::Unary(UnaryFn::Tanh)) => is(body, args[0], a, x),
        (Sum(a, b), ScalarOp::Binary(BinaryFn::Add)) => either(a, b),
        (Product(a, b), ScalarOp::Binary(BinaryFn::Mul)) => either(a, b),
        (OneMinus(a), ScalarOp::Binary(BinaryFn::Sub)) => {
            is(body, args[0], &Const(1.0), x) && is(body, args[1], a, x)
        }
        _ => false,
    }
}
