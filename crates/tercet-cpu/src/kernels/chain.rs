//! A chain of elementwise steps over `f32`, run tile by tile.
//!
//! A [`Step`] list is interpreted once per [`TILE`] elements, so that what lies between the steps
//! stays in the first cache level and the choice of a step costs little per element. The first steps
//! read the operands where they lie, the last ones write the results; a constant stays a scalar.
//!
//! Each step gives the bits that the function of [`super::vmath`] gives: nothing is contracted or
//! reordered.

use std::ops::Range;

use smallvec::SmallVec;

use super::SimdLevel;
use super::simd::{Simd, simd_dispatch};
use super::vmath::{Comparison, scalar};

/// Elements that go through all steps together: 4 KiB per tile.
pub const TILE: usize = 1024;

/// A function over slices of [`super::vmath`].
pub type Function = fn(SimdLevel, &[f32], &mut [f32]);

/// Where a step finds an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Source {
    /// An operand of the chain.
    Input(usize),
    /// What an earlier step left in a tile.
    Tile(usize),
    /// A constant.
    Const(f32),
}

/// Where a step writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A tile that is none of the step's operands.
    Tile(usize),
    /// A result of the chain.
    Out(usize),
}

/// What a step computes.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the usual names")]
pub enum Action {
    Copy(Source),
    Relu(Source),
    Abs(Source),
    Neg(Source),
    /// The integer that a float becomes: towards zero, 0 of NaN, and no -0.
    Whole(Source),
    /// Any other function of one operand.
    Call(Function, Source),
    Add(Source, Source),
    Sub(Source, Source),
    Mul(Source, Source),
    Div(Source, Source),
    /// NaN wins.
    Max(Source, Source),
    /// NaN wins.
    Min(Source, Source),
    /// `a * b + c` with one rounding.
    Fma(Source, Source, Source),
    /// 1 of NaN, else 0.
    IsNan(Source),
    /// 1 where it holds, else 0.
    Compare(Comparison, Source, Source),
    /// The second where the first is not 0, else the third.
    Pick(Source, Source, Source),
}

impl Action {
    /// The same of other operands.
    fn of(self, f: impl Fn(Source) -> Source) -> Action {
        match self {
            Action::Copy(a) => Action::Copy(f(a)),
            Action::Relu(a) => Action::Relu(f(a)),
            Action::Abs(a) => Action::Abs(f(a)),
            Action::Neg(a) => Action::Neg(f(a)),
            Action::Whole(a) => Action::Whole(f(a)),
            Action::Call(function, a) => Action::Call(function, f(a)),
            Action::Add(a, b) => Action::Add(f(a), f(b)),
            Action::Sub(a, b) => Action::Sub(f(a), f(b)),
            Action::Mul(a, b) => Action::Mul(f(a), f(b)),
            Action::Div(a, b) => Action::Div(f(a), f(b)),
            Action::Max(a, b) => Action::Max(f(a), f(b)),
            Action::Min(a, b) => Action::Min(f(a), f(b)),
            Action::Fma(a, b, c) => Action::Fma(f(a), f(b), f(c)),
            Action::IsNan(a) => Action::IsNan(f(a)),
            Action::Compare(op, a, b) => Action::Compare(op, f(a), f(b)),
            Action::Pick(a, b, c) => match (f(a), f(b), f(c)) {
                // A choice for all elements.
                (Source::Const(a), b, c) => Action::Copy(if a != 0.0 { b } else { c }),
                (a, b, c) => Action::Pick(a, b, c),
            },
        }
    }

    fn has_constants_only(self) -> bool {
        let is = |s| matches!(s, Source::Const(_));
        match self {
            Action::Copy(a)
            | Action::Relu(a)
            | Action::Abs(a)
            | Action::Neg(a)
            | Action::Whole(a)
            | Action::IsNan(a)
            | Action::Call(_, a) => is(a),
            Action::Add(a, b)
            | Action::Sub(a, b)
            | Action::Mul(a, b)
            | Action::Div(a, b)
            | Action::Max(a, b)
            | Action::Min(a, b)
            | Action::Compare(_, a, b) => is(a) && is(b),
            Action::Fma(a, b, c) | Action::Pick(a, b, c) => is(a) && is(b) && is(c),
        }
    }
}

/// One step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// What it computes.
    pub action: Action,
    /// Where it writes.
    pub to: Target,
}

/// An operand of a chain.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// As many elements as the results have.
    Slice(&'a [f32]),
    /// One element for all.
    Scalar(f32),
    /// What a result holds before the chain overwrites it.
    InPlace(usize),
}

/// Floats of scratch memory for a chain with this many tiles and results.
#[must_use]
pub fn scratch_len(tiles: usize, results: usize) -> usize {
    (tiles + results) * TILE
}

/// Runs the steps over results of one length; `scratch` has [`scratch_len`] elements.
///
/// # Panics
/// If an operand, a result or the scratch memory is shorter than the first result asks for, or a
/// step names one that is not there.
pub fn run(
    level: SimdLevel,
    steps: &[Step],
    inputs: &[Input<'_>],
    outs: &mut [&mut [f32]],
    scratch: &mut [f32],
) {
    dispatch(level, level, steps, inputs, outs, scratch);
}

simd_dispatch!(
    fn dispatch(own: SimdLevel, steps: &[Step], inputs: &[Input<'_>], outs: &mut [&mut [f32]], scratch: &mut [f32]) = body
);

/// Steps that are run over many blocks.
pub type Steps = SmallVec<[Step; 32]>;

/// The steps but those of scalars alone, which are computed here, once instead of for each element. `scalars` are the operands that are one
/// element in all runs; `tiles` as in [`scratch_len`].
///
/// # Panics
/// If a step names an operand or a tile that is not there.
#[must_use]
pub fn settled(level: SimdLevel, steps: &[Step], scalars: &[Option<f32>], tiles: usize) -> Steps {
    settle(level, level, steps, scalars, tiles)
}

simd_dispatch!(
    fn settle(own: SimdLevel, steps: &[Step], scalars: &[Option<f32>], tiles: usize) -> Steps = settle_body
);

/// An operand within one tile.
#[derive(Clone, Copy)]
enum Arg<'a> {
    Slice(&'a [f32]),
    Scalar(f32),
}

/// The operands of a step for one tile.
struct Operands<'a> {
    inputs: &'a [Input<'a>],
    from: usize,
    n: usize,
    /// What the results held, a tile each.
    held: &'a [f32],
    /// The tiles before and after the step's own.
    low: &'a [f32],
    high: &'a [f32],
    high_at: usize,
}

impl Operands<'_> {
    #[inline(always)]
    fn get(&self, source: Source) -> Arg<'_> {
        match source {
            Source::Const(c) => Arg::Scalar(c),
            Source::Tile(t) if t < self.high_at => Arg::Slice(&self.low[t * TILE..][..self.n]),
            Source::Tile(t) => Arg::Slice(&self.high[(t - self.high_at) * TILE..][..self.n]),
            Source::Input(i) => match self.inputs[i] {
                Input::Slice(x) => Arg::Slice(&x[self.from..][..self.n]),
                Input::Scalar(x) => Arg::Scalar(x),
                Input::InPlace(k) => Arg::Slice(&self.held[k * TILE..][..self.n]),
            },
        }
    }
}

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn body<S: Simd>(
    level: SimdLevel,
    steps: &[Step],
    inputs: &[Input<'_>],
    outs: &mut [&mut [f32]],
    scratch: &mut [f32],
) {
    let len = outs.first().map_or(0, |o| o.len());
    let (held, tiles) = scratch.split_at_mut(outs.len() * TILE);
    for from in (0..len).step_by(TILE) {
        let n = TILE.min(len - from);
        for input in inputs {
            if let Input::InPlace(k) = *input {
                held[k * TILE..][..n].copy_from_slice(&outs[k][from..][..n]);
            }
        }
        let share = n.div_ceil(steps.len().max(1));
        for (i, step) in steps.iter().enumerate() {
            if steps.len() >= MANY_STEPS {
                let next = from + TILE + i * share;
                ahead::<S>(inputs, outs, next..next + share);
            }
            let (out, low, high, high_at) = match step.to {
                Target::Out(k) => (&mut outs[k][from..][..n], &*tiles, &[][..], usize::MAX),
                Target::Tile(t) => {
                    let (low, rest) = tiles.split_at_mut(t * TILE);
                    let (own, high) = rest.split_at_mut(TILE);
                    (&mut own[..n], &*low, &*high, t + 1)
                }
            };
            let x = Operands {
                inputs,
                from,
                n,
                held,
                low,
                high,
                high_at,
            };
            apply::<S>(level, step.action, &x, out);
        }
    }
}

/// Steps from which a tile takes so long that the hardware no longer follows operands: what the next tile reads and writes is asked for
/// meanwhile.
const MANY_STEPS: usize = 4;

/// Asks for elements of operands and results, which may lie beyond their ends: nothing is read.
///
/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn ahead<S: Simd>(inputs: &[Input<'_>], outs: &[&mut [f32]], elements: Range<usize>) {
    const LINE: usize = 16;
    let ask = |start: *const f32| {
        for at in elements.clone().step_by(LINE) {
            S::prefetch(start.wrapping_add(at).cast());
        }
    };
    for input in inputs {
        if let Input::Slice(x) = input {
            ask(x.as_ptr());
        }
    }
    outs.iter().for_each(|out| ask(out.as_ptr()));
}

/// # Safety
/// Needs the instructions of `S`.
#[inline(always)]
unsafe fn settle_body<S: Simd>(
    level: SimdLevel,
    steps: &[Step],
    scalars: &[Option<f32>],
    tiles: usize,
) -> Steps {
    let mut left = Steps::new();
    // What tiles hold that are scalars, from step to step.
    let mut known: SmallVec<[Option<f32>; 32]> = SmallVec::from_elem(None, tiles);
    for step in steps {
        let action = step.action.of(|source| match source {
            Source::Input(i) => scalars[i].map_or(source, Source::Const),
            Source::Tile(t) => known[t].map_or(source, Source::Const),
            Source::Const(_) => source,
        });
        if let Target::Tile(t) = step.to {
            known[t] = None;
            if action.has_constants_only() {
                let nothing = Operands {
                    inputs: &[],
                    from: 0,
                    n: 1,
                    held: &[],
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
        left.push(Step {
            action,
            to: step.to,
        });
    }
    left
}

#[inline(always)]
fn apply<S: Simd>(level: SimdLevel, action: Action, x: &Operands<'_>, out: &mut [f32]) {
    match action {
        Action::Copy(a) => each(x.get(a), out, |a| a),
        // Below, what `vmath::relu` gives: NaN and +0 stay, -0 becomes +0.
        Action::Relu(a) => each(x.get(a), out, |a| if a <= 0.0 { 0.0 } else { a }),
        Action::Abs(a) => each(x.get(a), out, f32::abs),
        Action::Neg(a) => each(x.get(a), out, |a| -a),
        Action::Whole(a) => each(x.get(a), out, |a| {
            let whole = a.trunc() + 0.0;
            if a.is_nan() { 0.0 } else { whole }
        }),
        Action::Call(f, a) => match x.get(a) {
            Arg::Slice(a) => f(level, a, out),
            Arg::Scalar(a) => f(level, &[a; TILE][..out.len()], out),
        },
        Action::Add(a, b) => both(x.get(a), x.get(b), out, |a, b| a + b),
        Action::Sub(a, b) => both(x.get(a), x.get(b), out, |a, b| a - b),
        Action::Mul(a, b) => both(x.get(a), x.get(b), out, |a, b| a * b),
        Action::Div(a, b) => both(x.get(a), x.get(b), out, |a, b| a / b),
        Action::Max(a, b) => match (x.get(a), x.get(b)) {
            (Arg::Slice(a), Arg::Scalar(c)) | (Arg::Scalar(c), Arg::Slice(a)) if is_bound(c) => {
                each(Arg::Slice(a), out, |a| if a < c { c } else { a });
            }
            (a, b) => both(a, b, out, scalar::maximum),
        },
        Action::Min(a, b) => match (x.get(a), x.get(b)) {
            (Arg::Slice(a), Arg::Scalar(c)) | (Arg::Scalar(c), Arg::Slice(a)) if is_bound(c) => {
                each(Arg::Slice(a), out, |a| if a > c { c } else { a });
            }
            (a, b) => both(a, b, out, scalar::minimum),
        },
        Action::Fma(a, b, c) => {
            let mut spare = [[0f32; TILE]; 3];
            let [s, t, u] = &mut spare;
            let (a, b, c) = (
                spread(x.get(a), s, out.len()),
                spread(x.get(b), t, out.len()),
                spread(x.get(c), u, out.len()),
            );
            super::vmath::fma(level, a, b, c, out);
        }
        Action::IsNan(a) => each(x.get(a), out, |a| truth(a.is_nan())),
        Action::Compare(op, a, b) => compare(op, x.get(a), x.get(b), out),
        Action::Pick(a, b, c) => {
            let mut spare = [[0f32; TILE]; 3];
            let [s, t, u] = &mut spare;
            let (a, b, c) = (
                spread(x.get(a), s, out.len()),
                spread(x.get(b), t, out.len()),
                spread(x.get(c), u, out.len()),
            );
            for (((out, a), b), c) in out.iter_mut().zip(a).zip(b).zip(c) {
                *out = scalar::pick(*a != 0.0, *b, *c);
            }
        }
    }
}

#[inline(always)]
fn truth(is: bool) -> f32 {
    scalar::pick(is, 1.0, 0.0)
}

#[inline(always)]
fn compare(op: Comparison, a: Arg<'_>, b: Arg<'_>, out: &mut [f32]) {
    match op {
        Comparison::Eq => both(a, b, out, |a, b| truth(a == b)),
        Comparison::Ne => both(a, b, out, |a, b| truth(a != b)),
        Comparison::Lt => both(a, b, out, |a, b| truth(a < b)),
        Comparison::Le => both(a, b, out, |a, b| truth(a <= b)),
        Comparison::Gt => both(a, b, out, |a, b| truth(a > b)),
        Comparison::Ge => both(a, b, out, |a, b| truth(a >= b)),
    }
}

/// True if one comparison with `c` is the whole of a maximum or minimum: no NaN, and no zero whose
/// sign counts.
#[inline(always)]
fn is_bound(c: f32) -> bool {
    !c.is_nan() && c != 0.0
}

fn spread<'a>(x: Arg<'a>, spare: &'a mut [f32; TILE], n: usize) -> &'a [f32] {
    match x {
        Arg::Slice(x) => x,
        Arg::Scalar(x) => {
            spare[..n].fill(x);
            &spare[..n]
        }
    }
}

#[inline(always)]
fn each(x: Arg<'_>, out: &mut [f32], f: impl Fn(f32) -> f32) {
    match x {
        Arg::Slice(x) => out.iter_mut().zip(x).for_each(|(o, x)| *o = f(*x)),
        Arg::Scalar(x) => out.fill(f(x)),
    }
}

#[inline(always)]
fn both(a: Arg<'_>, b: Arg<'_>, out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    match (a, b) {
        (Arg::Slice(a), Arg::Slice(b)) => {
            let pairs = out.iter_mut().zip(a).zip(b);
            pairs.for_each(|((o, a), b)| *o = f(*a, *b));
        }
        (Arg::Slice(a), Arg::Scalar(b)) => each(Arg::Slice(a), out, |a| f(a, b)),
        (Arg::Scalar(a), Arg::Slice(b)) => each(Arg::Slice(b), out, |b| f(a, b)),
        (Arg::Scalar(a), Arg::Scalar(b)) => out.fill(f(a, b)),
    }
}
