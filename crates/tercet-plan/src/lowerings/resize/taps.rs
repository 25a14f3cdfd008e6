//! Tables of source elements for `Resize`. If all sizes are known, they are constants; otherwise a
//! kernel computes them in each run.

use tercet_ir::ops::{
    Coordinates, MAX_RESIZED_LEN, NearestRounding, Resize, ResizeMode, ResizePositions,
};
use tercet_ir::{CompileError, DType, Dim, Tensor, TensorType};

use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::{portable, rows::product};
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `resize_taps.wgsl`.
    pub struct ResizeTapsParams {
        step_start: U32x8,
        of_sizes: U32x8,
        under: U32x8,
        n: U32,
        m: U32,
        first: U32,
        cubic_a: F32,
    }
}

pub(super) static TAPS: TypedKernel<ResizeTapsParams> = TypedKernel::wgsl(
    "resize_taps",
    &[PRELUDE, portable!("resize_taps.wgsl")],
    &[ArgAccess::Write],
    &["COUNT", "ROUNDING", "EXCLUDE", "ONE_AT_ZERO"],
);

/// The number of source elements of a result along each resized axis.
pub(super) fn count(mode: ResizeMode) -> u32 {
    match mode {
        ResizeMode::Nearest => 1,
        ResizeMode::Linear => 2,
        ResizeMode::Cubic => 4,
    }
}

/// The table of taps of these axes, and the index of the first word of each axis.
pub(super) fn table(
    e: &mut LoweringCtx<'_>,
    op: &Resize,
    x: &SlotView,
    axes: &[usize],
) -> Result<(SlotView, Vec<SymInt>), CompileError> {
    let sizes: Option<Vec<[usize; 2]>> = axes
        .iter()
        .map(|&axis| Some([x.layout.shape()[axis].known()?, op.sizes[axis].known()?]))
        .collect();
    match sizes {
        Some(sizes) => constant(e, op, axes, &sizes),
        None => computed(e, op, x, axes),
    }
}

fn constant(
    e: &mut LoweringCtx<'_>,
    op: &Resize,
    axes: &[usize],
    sizes: &[[usize; 2]],
) -> Result<(SlotView, Vec<SymInt>), CompileError> {
    let (mut words, mut first): (Vec<u32>, _) = (Vec::new(), Vec::new());
    for (&axis, &[n, m]) in axes.iter().zip(sizes) {
        first.push(SymInt::Const(words.len() as i64));
        let taps = op.taps(axis, n, m);
        let pairs = taps.indices.iter().zip(&taps.weights);
        words.extend(pairs.flat_map(|(i, w)| [*i, (*w as f32).to_bits()]));
    }
    // If no axis is resized, the kernel never reads the table.
    words.resize(words.len().max(1), 0);
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let ty = TensorType::new(DType::U32, &[words.len()]);
    let table = Tensor::from_bytes(ty, &bytes);
    let table = table.unwrap_or_else(|e| unreachable!("invariant: as many bytes as words: {e}"));
    Ok((e.constant(table)?, first))
}

fn computed(
    e: &mut LoweringCtx<'_>,
    op: &Resize,
    x: &SlotView,
    axes: &[usize],
) -> Result<(SlotView, Vec<SymInt>), CompileError> {
    let each = 2 * count(op.mode);
    let words = |axis: usize| product(&[op.sizes[axis].clone(), Dim::Known(each as usize)]);
    let all = axes
        .iter()
        .try_fold(Dim::Known(0), |sum, &axis| sum.checked_add(&words(axis)));
    let all = all.unwrap_or_else(|| unreachable!("invariant: an axis has at most 2^26 elements"));
    let table = e.temp(DType::U32, &[all])?;
    let mut first = Vec::new();
    let mut next = SymInt::ZERO;
    for &axis in axes {
        let (n, m) = (e.num(&x.layout.shape()[axis]), e.num(&op.sizes[axis]));
        check_sizes(e, axis, n, m);
        let params = params(e, op, axis, [n, m, next]);
        let rounding = match op.rounding {
            NearestRounding::RoundPreferFloor => 0,
            NearestRounding::RoundPreferCeil => 1,
            NearestRounding::Floor => 2,
            NearestRounding::Ceil => 3,
        };
        let one_at_zero = matches!(
            op.coordinates,
            Coordinates::PytorchHalfPixel | Coordinates::AlignCorners
        );
        let consts = [
            count(op.mode),
            rounding,
            op.exclude_outside.into(),
            one_at_zero.into(),
        ];
        let grid = e.grid_of(m, 128);
        e.dispatch(&TAPS, &consts, &[table.slot], &params, grid);
        first.push(next);
        let own = e.num(&words(axis));
        next = e.tape().add(next, own);
    }
    Ok((table, first))
}

/// Adds checks that an axis has elements and is not too long, as far as sizes decide it.
fn check_sizes(e: &mut LoweringCtx<'_>, axis: usize, n: SymInt, m: SymInt) {
    let longest = SymInt::Const(MAX_RESIZED_LEN as i64);
    for len in [n, m] {
        let reason =
            format!("axis {axis} has {{less}} elements; a resized axis has at most {{more}}");
        e.check_less_equal(len, longest, reason);
    }
    // An axis without elements can only have results without elements.
    let limit = e.tape().mul(n, longest);
    let reason = format!(
        "axis {axis} has no or too many elements to resize: 0 to {{less}}; \
         from at least 1, both at most {MAX_RESIZED_LEN}"
    );
    e.check_less_equal(m, limit, reason);
}

/// The parameter block for an axis of `n` elements, `m` results, and a table from word `first` on.
fn params(
    e: &mut LoweringCtx<'_>,
    op: &Resize,
    axis: usize,
    [n, m, first]: [SymInt; 3],
) -> ResizeTapsParams {
    let zero = [SymInt::ZERO; 4];
    let low = |word: SymInt| [word, SymInt::ZERO, SymInt::ZERO, SymInt::ZERO];
    let one = SymInt::ONE;
    let tape = e.tape();
    let (step, start, of_n, of_m, under) = match op.positions(axis) {
        ResizePositions::OfSizes { halves: true } => {
            let (twice_n, twice_m) = (tape.add(n, n), tape.add(m, m));
            (low(twice_n), low(n), zero, limbs(-1), low(twice_m))
        }
        ResizePositions::OfSizes { halves: false } => (low(n), zero, zero, zero, low(m)),
        ResizePositions::AlignCorners => {
            let (last, results) = (tape.sub(n, one), tape.sub(m, one));
            (low(last), zero, zero, zero, low(results))
        }
        ResizePositions::Scaled {
            step,
            first,
            of_n,
            of_m,
            under,
        } => (
            limbs(step),
            limbs(first),
            limbs(of_n),
            limbs(of_m),
            limbs(under),
        ),
    };
    ResizeTapsParams {
        step_start: joined(step, start),
        of_sizes: joined(of_n, of_m),
        under: joined(under, zero),
        n,
        m,
        first,
        cubic_a: op.cubic_a.0 as f32,
    }
}

/// The four words of a number in two's complement, least first.
fn limbs(n: i128) -> [SymInt; 4] {
    std::array::from_fn(|i| SymInt::Const(i64::from((n >> (32 * i)) as u32)))
}

fn joined(a: [SymInt; 4], b: [SymInt; 4]) -> [SymInt; 8] {
    std::array::from_fn(|i| if i < 4 { a[i] } else { b[i - 4] })
}
