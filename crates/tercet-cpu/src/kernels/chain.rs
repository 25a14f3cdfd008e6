//! A chain of elementwise steps over `f32`, executed tile by tile.
//!
//! The [`ChainStep`] list is interpreted once per [`TILE`] elements. Intermediate values stay in the L1
//! cache, and the dispatch cost per element is small. The first steps read the operands in place,
//! and the last ones write the results. Constants remain scalars.
//!
//! Each step gives the same bits as the corresponding function of [`super::vmath`]: nothing is
//! contracted or reordered.

mod fuse;

use std::cell::Cell;
use std::ops::Range;

use smallvec::SmallVec;

use super::SimdLevel;
use super::simd::{Simd, simd_dispatch};
use super::vmath::{VmathComparison, scalar};

/// Elements per tile that go through all steps together; 4 KiB per tile.
pub const TILE: usize = 1024;

/// A slice function of [`super::vmath`].
pub type VmathFn = fn(SimdLevel, &[f32], &mut [f32]);

/// Operand of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ChainSource {
    /// An operand of the chain.
    Input(usize),
    /// Result of an earlier step, stored in a tile.
    Tile(usize),
    /// A constant.
    Const(f32),
}

/// Destination of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainTarget {
    /// A tile that is not an operand of the same step.
    Tile(usize),
    /// A result of the chain.
    Out(usize),
}

/// Operation of a step.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "conventional names")]
pub enum ChainOp {
    Copy(ChainSource),
    Relu(ChainSource),
    Abs(ChainSource),
    Neg(ChainSource),
    /// Converts to an integer: rounds toward zero, NaN becomes 0, and -0 becomes +0.
    Truncate(ChainSource),
    /// Calls any other unary function.
    Call(VmathFn, ChainSource),
    Add(ChainSource, ChainSource),
    Sub(ChainSource, ChainSource),
    Mul(ChainSource, ChainSource),
    Div(ChainSource, ChainSource),
    /// IEEE maximum; NaN if an operand is NaN.
    Max(ChainSource, ChainSource),
    /// IEEE minimum; NaN if an operand is NaN.
    Min(ChainSource, ChainSource),
    /// `a^b`.
    Pow(ChainSource, ChainSource),
    /// `a * b + c` with one rounding.
    Fma(ChainSource, ChainSource, ChainSource),
    /// Rounds to the nearest integer, ties to even.
    Round(ChainSource),
    /// `round(x / scale) + zero` between two bounds, which are not NaN, and then an integer as by
    /// [`Truncate`](Self::Truncate) if `truncates`: the steps of a quantization in one pass.
    Quantize {
        x: ChainSource,
        scale: ChainSource,
        zero: ChainSource,
        bounds: [f32; 2],
        truncates: bool,
    },
    /// 1 for NaN, else 0.
    IsNan(ChainSource),
    /// 1 if the comparison holds, else 0.
    Compare(VmathComparison, ChainSource, ChainSource),
    /// The second operand if the first is not 0, else the third.
    Pick(ChainSource, ChainSource, ChainSource),
    /// `x` between two bounds, which are not NaN: a [`Max`](Self::Max) or [`Relu`](Self::Relu), and
    /// a [`Min`](Self::Min).
    Clamp(ChainSource, [f32; 2]),
    /// `x * scale + shift` with two roundings.
    Affine(ChainSource, [f32; 2]),
    /// The second operand if the comparison of the first with a constant holds, else the third.
    Choose(VmathComparison, f32, [ChainSource; 3]),
}

impl ChainOp {
    /// The same operation with other operands.
    fn map_sources(self, f: impl Fn(ChainSource) -> ChainSource) -> ChainOp {
        match self {
            ChainOp::Copy(a) => ChainOp::Copy(f(a)),
            ChainOp::Relu(a) => ChainOp::Relu(f(a)),
            ChainOp::Abs(a) => ChainOp::Abs(f(a)),
            ChainOp::Neg(a) => ChainOp::Neg(f(a)),
            ChainOp::Truncate(a) => ChainOp::Truncate(f(a)),
            ChainOp::Call(function, a) => ChainOp::Call(function, f(a)),
            ChainOp::Add(a, b) => ChainOp::Add(f(a), f(b)),
            ChainOp::Sub(a, b) => ChainOp::Sub(f(a), f(b)),
            ChainOp::Mul(a, b) => ChainOp::Mul(f(a), f(b)),
            ChainOp::Div(a, b) => ChainOp::Div(f(a), f(b)),
            ChainOp::Max(a, b) => ChainOp::Max(f(a), f(b)),
            ChainOp::Min(a, b) => ChainOp::Min(f(a), f(b)),
            ChainOp::Pow(a, b) => ChainOp::Pow(f(a), f(b)),
            ChainOp::Fma(a, b, c) => ChainOp::Fma(f(a), f(b), f(c)),
            ChainOp::Round(a) => ChainOp::Round(f(a)),
            ChainOp::Quantize {
                x,
                scale,
                zero,
                bounds,
                truncates,
            } => ChainOp::Quantize {
                x: f(x),
                scale: f(scale),
                zero: f(zero),
                bounds,
                truncates,
            },
            ChainOp::IsNan(a) => ChainOp::IsNan(f(a)),
            ChainOp::Compare(op, a, b) => ChainOp::Compare(op, f(a), f(b)),
            ChainOp::Pick(a, b, c) => match (f(a), f(b), f(c)) {
                // The condition is constant.
                (ChainSource::Const(a), b, c) => ChainOp::Copy(if a != 0.0 { b } else { c }),
                (a, b, c) => ChainOp::Pick(a, b, c),
            },
            ChainOp::Clamp(a, bounds) => ChainOp::Clamp(f(a), bounds),
            ChainOp::Affine(a, factors) => ChainOp::Affine(f(a), factors),
            ChainOp::Choose(op, with, sources) => ChainOp::Choose(op, with, sources.map(f)),
        }
    }

    fn has_constants_only(self) -> bool {
        let is = |s| matches!(s, ChainSource::Const(_));
        match self {
            ChainOp::Copy(a)
            | ChainOp::Relu(a)
            | ChainOp::Abs(a)
            | ChainOp::Neg(a)
            | ChainOp::Truncate(a)
            | ChainOp::Round(a)
            | ChainOp::IsNan(a)
            | ChainOp::Clamp(a, _)
            | ChainOp::Affine(a, _)
            | ChainOp::Call(_, a) => is(a),
            ChainOp::Add(a, b)
            | ChainOp::Sub(a, b)
            | ChainOp::Mul(a, b)
            | ChainOp::Div(a, b)
            | ChainOp::Max(a, b)
            | ChainOp::Min(a, b)
            | ChainOp::Pow(a, b)
            | ChainOp::Compare(_, a, b) => is(a) && is(b),
            ChainOp::Fma(a, b, c) | ChainOp::Pick(a, b, c) => is(a) && is(b) && is(c),
            ChainOp::Quantize { x, scale, zero, .. } => is(x) && is(scale) && is(zero),
            ChainOp::Choose(_, _, sources) => sources.into_iter().all(is),
        }
    }

    fn reads(self, tile: usize) -> bool {
        let found = Cell::new(false);
        self.map_sources(|source| {
            found.set(found.get() | (source == ChainSource::Tile(tile)));
            source
        });
        found.get()
    }
}

/// A step of a chain.
#[derive(Clone, Copy, Debug)]
pub struct ChainStep {
    /// Operation.
    pub action: ChainOp,
    /// Destination.
    pub to: ChainTarget,
}

/// Operand of a chain.
#[derive(Clone, Copy, Debug)]
pub enum ChainInput<'a> {
    /// A slice of the same length as the results.
    Slice(&'a [f32]),
    /// One value for all elements.
    Scalar(f32),
    /// The previous contents of a result, which the chain overwrites.
    InPlace(usize),
}

/// Floats of scratch memory for a chain with this many tiles and results.
#[must_use]
pub fn scratch_len(tiles: usize, results: usize) -> usize {
    (tiles + results) * TILE
}

/// Runs the steps over results of equal length; `scratch` has [`scratch_len`] elements.
///
/// # Panics
/// If an operand, a result or the scratch memory is shorter than the first result requires. Also
/// panics if a step refers to an operand, tile or result that does not exist.
pub fn run(
    level: SimdLevel,
    steps: &[ChainStep],
    inputs: &[ChainInput<'_>],
    outs: &mut [&mut [f32]],
    scratch: &mut [f32],
) {
    dispatch(level, level, steps, inputs, outs, scratch);
}

simd_dispatch!(
    fn dispatch(own: SimdLevel, steps: &[ChainStep], inputs: &[ChainInput<'_>], outs: &mut [&mut [f32]], scratch: &mut [f32]) = body
);

/// Steps after constant folding, for use with many blocks.
pub type ChainSteps = SmallVec<[ChainStep; 32]>;

/// Folds the steps that depend only on scalars, so they are computed once instead of per element.
/// `scalars` are the operands that are uniform in all runs; `tiles` is the same as for
/// [`scratch_len`].
///
/// # Panics
/// If a step refers to an operand or a tile that does not exist.
#[must_use]
pub fn settled(
    level: SimdLevel,
    steps: &[ChainStep],
    scalars: &[Option<f32>],
    tiles: usize,
) -> ChainSteps {
    settle(level, level, steps, scalars, tiles)
}

simd_dispatch!(
    fn settle(own: SimdLevel, steps: &[ChainStep], scalars: &[Option<f32>], tiles: usize) -> ChainSteps = settle_body
);

/// An operand within one tile.
#[derive(Clone, Copy)]
enum ChainTileArg<'a> {
    Slice(&'a [f32]),
    Scalar(f32),
}

/// Operands of a step for one tile.
struct ChainOperands<'a> {
    inputs: &'a [ChainInput<'a>],
    from: usize,
    n: usize,
    /// Previous contents of the results, one tile each.
    results: &'a [f32],
    /// The tiles before (`low`) and after (`high`) the tile that the step writes.
    low: &'a [f32],
    high: &'a [f32],
    high_at: usize,
}

impl ChainOperands<'_> {
    #[inline(always)]
    fn get(&self, source: ChainSource) -> ChainTileArg<'_> {
        match source {
            ChainSource::Const(c) => ChainTileArg::Scalar(c),
            ChainSource::Tile(t) if t < self.high_at => {
                ChainTileArg::Slice(&self.low[t * TILE..][..self.n])
            }
            ChainSource::Tile(t) => {
                ChainTileArg::Slice(&self.high[(t - self.high_at) * TILE..][..self.n])
            }
            ChainSource::Input(i) => match self.inputs[i] {
                ChainInput::Slice(x) => ChainTileArg::Slice(&x[self.from..][..self.n]),
                ChainInput::Scalar(x) => ChainTileArg::Scalar(x),
                ChainInput::InPlace(k) => ChainTileArg::Slice(&self.results[k * TILE..][..self.n]),
            },
        }
    }
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn body<S: Simd>(
    level: SimdLevel,
    steps: &[ChainStep],
    inputs: &[ChainInput<'_>],
    outs: &mut [&mut [f32]],
    scratch: &mut [f32],
) {
    let len = outs.first().map_or(0, |o| o.len());
    let (held, tiles) = scratch.split_at_mut(outs.len() * TILE);
    for from in (0..len).step_by(TILE) {
        let n = TILE.min(len - from);
        for input in inputs {
            if let ChainInput::InPlace(k) = *input {
                held[k * TILE..][..n].copy_from_slice(&outs[k][from..][..n]);
            }
        }
        let share = n.div_ceil(steps.len().max(1));
        for (i, step) in steps.iter().enumerate() {
            if steps.len() >= MIN_STEPS_FOR_PREFETCH {
                let next = from + TILE + i * share;
                ahead::<S>(inputs, outs, next..next + share);
            }
            let (out, low, high, high_at) = match step.to {
                ChainTarget::Out(k) => (&mut outs[k][from..][..n], &*tiles, &[][..], usize::MAX),
                ChainTarget::Tile(t) => {
                    let (low, rest) = tiles.split_at_mut(t * TILE);
                    let (own, high) = rest.split_at_mut(TILE);
                    (&mut own[..n], &*low, &*high, t + 1)
                }
            };
            let x = ChainOperands {
                inputs,
                from,
                n,
                results: held,
                low,
                high,
                high_at,
            };
            apply::<S>(level, step.action, &x, out);
        }
    }
}

/// Number of steps from which a tile takes too long for the hardware prefetcher. The next tile's
/// operands and results are then prefetched explicitly.
const MIN_STEPS_FOR_PREFETCH: usize = 4;

/// Prefetches elements of operands and results. The range may exceed their ends, because nothing is
/// read.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn ahead<S: Simd>(inputs: &[ChainInput<'_>], outs: &[&mut [f32]], elements: Range<usize>) {
    const LINE: usize = 16;
    let ask = |start: *const f32| {
        for at in elements.clone().step_by(LINE) {
            S::prefetch(start.wrapping_add(at).cast());
        }
    };
    for input in inputs {
        if let ChainInput::Slice(x) = input {
            ask(x.as_ptr());
        }
    }
    outs.iter().for_each(|out| ask(out.as_ptr()));
}

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn settle_body<S: Simd>(
    level: SimdLevel,
    steps: &[ChainStep],
    scalars: &[Option<f32>],
    tiles: usize,
) -> ChainSteps {
    let mut left = ChainSteps::new();
    // Scalar values of tiles, as known after each step.
    let mut known: SmallVec<[Option<f32>; 32]> = SmallVec::from_elem(None, tiles);
    for step in steps {
        let action = step.action.map_sources(|source| match source {
            ChainSource::Input(i) => scalars[i].map_or(source, ChainSource::Const),
            ChainSource::Tile(t) => known[t].map_or(source, ChainSource::Const),
            ChainSource::Const(_) => source,
        });
        if let ChainTarget::Tile(t) = step.to {
            known[t] = None;
            if action.has_constants_only() {
                let nothing = ChainOperands {
                    inputs: &[],
                    from: 0,
                    n: 1,
                    results: &[],
                    low: &[],
                    high: &[],
                    high_at: usize::MAX,
                };
                let mut one = [0.0];
                apply::<S>(level, action, &nothing, &mut one);
                known[t] = Some(one[0]);
                continue;
            }
        }
        left.push(ChainStep {
            action,
            to: step.to,
        });
    }
    fuse::quantization(&mut left);
    fuse::pairs(&mut left);
    left
}

#[inline(always)]
fn apply<S: Simd>(level: SimdLevel, action: ChainOp, x: &ChainOperands<'_>, out: &mut [f32]) {
    match action {
        ChainOp::Copy(a) => each(x.get(a), out, |a| a),
        // The same as `vmath::relu`: NaN and +0 are unchanged, -0 becomes +0.
        ChainOp::Relu(a) => each(x.get(a), out, |a| if a <= 0.0 { 0.0 } else { a }),
        ChainOp::Abs(a) => each(x.get(a), out, f32::abs),
        ChainOp::Neg(a) => each(x.get(a), out, |a| -a),
        ChainOp::Truncate(a) => each(x.get(a), out, |a| {
            let whole = a.trunc() + 0.0;
            if a.is_nan() { 0.0 } else { whole }
        }),
        ChainOp::Call(f, a) => match x.get(a) {
            ChainTileArg::Slice(a) => f(level, a, out),
            ChainTileArg::Scalar(a) => f(level, &[a; TILE][..out.len()], out),
        },
        ChainOp::Add(a, b) => both(x.get(a), x.get(b), out, |a, b| a + b),
        ChainOp::Sub(a, b) => both(x.get(a), x.get(b), out, |a, b| a - b),
        ChainOp::Mul(a, b) => both(x.get(a), x.get(b), out, |a, b| a * b),
        ChainOp::Div(a, b) => both(x.get(a), x.get(b), out, |a, b| a / b),
        ChainOp::Max(a, b) => match (x.get(a), x.get(b)) {
            (ChainTileArg::Slice(a), ChainTileArg::Scalar(c))
            | (ChainTileArg::Scalar(c), ChainTileArg::Slice(a))
                if is_bound(c) =>
            {
                each(ChainTileArg::Slice(a), out, |a| if a < c { c } else { a });
            }
            (a, b) => both(a, b, out, scalar::maximum),
        },
        ChainOp::Min(a, b) => match (x.get(a), x.get(b)) {
            (ChainTileArg::Slice(a), ChainTileArg::Scalar(c))
            | (ChainTileArg::Scalar(c), ChainTileArg::Slice(a))
                if is_bound(c) =>
            {
                each(ChainTileArg::Slice(a), out, |a| if a > c { c } else { a });
            }
            (a, b) => both(a, b, out, scalar::minimum),
        },
        ChainOp::Pow(a, b) => {
            let mut spare = [[0f32; TILE]; 2];
            let [s, t] = &mut spare;
            match (spread(x.get(a), s, out.len()), x.get(b)) {
                (a, ChainTileArg::Scalar(b)) => super::vmath::pow_by(level, a, b, out),
                (a, b) => super::vmath::pow(level, a, spread(b, t, out.len()), out),
            }
        }
        ChainOp::Fma(a, b, c) => three(x.get(a), x.get(b), x.get(c), out, f32::mul_add),
        ChainOp::Round(a) => each(x.get(a), out, f32::round_ties_even),
        ChainOp::Quantize {
            x: a,
            scale,
            zero,
            bounds: [low, high],
            truncates,
        } => three(
            x.get(a),
            x.get(scale),
            x.get(zero),
            out,
            |a, scale, zero| {
                let code = (a / scale).round_ties_even() + zero;
                let code = if code <= low { low } else { code };
                let code = if code > high { high } else { code };
                let whole = code.trunc() + 0.0;
                let whole = if code.is_nan() { 0.0 } else { whole };
                if truncates { whole } else { code }
            },
        ),
        ChainOp::IsNan(a) => each(x.get(a), out, |a| truth(a.is_nan())),
        ChainOp::Compare(op, a, b) => compare(op, x.get(a), x.get(b), out),
        ChainOp::Pick(a, b, c) => three(x.get(a), x.get(b), x.get(c), out, |a, b, c| {
            scalar::pick(a != 0.0, b, c)
        }),
        ChainOp::Clamp(a, [low, high]) => each(x.get(a), out, |a| {
            let a = if a <= low { low } else { a };
            if a > high { high } else { a }
        }),
        ChainOp::Affine(a, [scale, shift]) => each(x.get(a), out, |a| a * scale + shift),
        ChainOp::Choose(op, with, sources) => choose(op, with, sources.map(|s| x.get(s)), out),
    }
}

#[inline(always)]
fn choose(op: VmathComparison, with: f32, [a, b, c]: [ChainTileArg<'_>; 3], out: &mut [f32]) {
    let pick = scalar::pick;
    match op {
        VmathComparison::Eq => three(a, b, c, out, |a, b, c| pick(a == with, b, c)),
        VmathComparison::Ne => three(a, b, c, out, |a, b, c| pick(a != with, b, c)),
        VmathComparison::Lt => three(a, b, c, out, |a, b, c| pick(a < with, b, c)),
        VmathComparison::Le => three(a, b, c, out, |a, b, c| pick(a <= with, b, c)),
        VmathComparison::Gt => three(a, b, c, out, |a, b, c| pick(a > with, b, c)),
        VmathComparison::Ge => three(a, b, c, out, |a, b, c| pick(a >= with, b, c)),
    }
}

#[inline(always)]
fn truth(is: bool) -> f32 {
    scalar::pick(is, 1.0, 0.0)
}

#[inline(always)]
fn compare(op: VmathComparison, a: ChainTileArg<'_>, b: ChainTileArg<'_>, out: &mut [f32]) {
    match op {
        VmathComparison::Eq => both(a, b, out, |a, b| truth(a == b)),
        VmathComparison::Ne => both(a, b, out, |a, b| truth(a != b)),
        VmathComparison::Lt => both(a, b, out, |a, b| truth(a < b)),
        VmathComparison::Le => both(a, b, out, |a, b| truth(a <= b)),
        VmathComparison::Gt => both(a, b, out, |a, b| truth(a > b)),
        VmathComparison::Ge => both(a, b, out, |a, b| truth(a >= b)),
    }
}

/// True if a single comparison with `c` implements the maximum or minimum: `c` is neither NaN nor a
/// zero, whose sign matters.
#[inline(always)]
fn is_bound(c: f32) -> bool {
    !c.is_nan() && c != 0.0
}

fn spread<'a>(x: ChainTileArg<'a>, spare: &'a mut [f32; TILE], n: usize) -> &'a [f32] {
    match x {
        ChainTileArg::Slice(x) => x,
        ChainTileArg::Scalar(x) => {
            spare[..n].fill(x);
            &spare[..n]
        }
    }
}

#[inline(always)]
fn each(x: ChainTileArg<'_>, out: &mut [f32], f: impl Fn(f32) -> f32) {
    match x {
        ChainTileArg::Slice(x) => out.iter_mut().zip(x).for_each(|(o, x)| *o = f(*x)),
        ChainTileArg::Scalar(x) => out.fill(f(x)),
    }
}

#[inline(always)]
fn both(a: ChainTileArg<'_>, b: ChainTileArg<'_>, out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match (a, b) {
        (ChainTileArg::Slice(a), ChainTileArg::Slice(b)) => {
            let pairs = out.iter_mut().zip(a).zip(b);
            pairs.for_each(|((o, a), b)| *o = f(*a, *b));
        }
        (ChainTileArg::Slice(a), ChainTileArg::Scalar(b)) => {
            each(ChainTileArg::Slice(a), out, |a| f(a, b))
        }
        (ChainTileArg::Scalar(a), ChainTileArg::Slice(b)) => {
            each(ChainTileArg::Slice(b), out, |b| f(a, b))
        }
        (ChainTileArg::Scalar(a), ChainTileArg::Scalar(b)) => out.fill(f(a, b)),
    }
}

/// As [`both`], of three operands.
#[inline(always)]
fn three(
    a: ChainTileArg<'_>,
    b: ChainTileArg<'_>,
    c: ChainTileArg<'_>,
    out: &mut [f32],
    f: impl Fn(f32, f32, f32) -> f32,
) {
    match (a, b, c) {
        (ChainTileArg::Slice(a), ChainTileArg::Slice(b), ChainTileArg::Slice(c)) => {
            let all = out.iter_mut().zip(a).zip(b).zip(c);
            all.for_each(|(((o, a), b), c)| *o = f(*a, *b, *c));
        }
        (a, b, ChainTileArg::Scalar(c)) => both(a, b, out, |a, b| f(a, b, c)),
        (a, ChainTileArg::Scalar(b), c) => both(a, c, out, |a, c| f(a, b, c)),
        (ChainTileArg::Scalar(a), b, c) => both(b, c, out, |b, c| f(a, b, c)),
    }
}
