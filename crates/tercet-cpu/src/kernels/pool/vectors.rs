//! F32 pools of small windows by vectors. A vector contains adjacent windows of a row, and each tap
//! adds one load: no intermediate row is written, whose elements the next loads would wait for.
//!
//! The order of operations is the same as that of the other kernel: the rows of a column first,
//! then the columns.

use std::ops::Range;

use super::super::conv::ConvWindowAxes;
use super::super::simd::Simd;
use super::CoveredRows;

/// Taps of a window up to which a load for each tap is faster than intermediate rows.
const MAX_TAPS: usize = 32;
/// Stride up to which adjacent windows are read by vectors.
const MAX_STRIDE: usize = 2;
/// Lanes of the widest vector.
const MAX_LANES: usize = 16;

/// Function that a pool folds its elements with.
pub(super) trait VectorFold {
    const START: f32;
    fn one(so_far: f32, x: f32) -> f32;
    /// # Safety
    /// Requires the instructions of `S`.
    unsafe fn all<S: Simd>(so_far: S::V, x: S::V) -> S::V;
}

/// Sum.
pub(super) struct Total;

impl VectorFold for Total {
    const START: f32 = 0.0;
    #[inline(always)]
    fn one(so_far: f32, x: f32) -> f32 {
        so_far + x
    }
    #[inline(always)]
    unsafe fn all<S: Simd>(so_far: S::V, x: S::V) -> S::V {
        S::add(so_far, x)
    }
}

/// Maximum of elements that are not NaN.
pub(super) struct Largest;

impl VectorFold for Largest {
    const START: f32 = f32::NEG_INFINITY;
    #[inline(always)]
    fn one(so_far: f32, x: f32) -> f32 {
        if x > so_far { x } else { so_far }
    }
    #[inline(always)]
    unsafe fn all<S: Simd>(so_far: S::V, x: S::V) -> S::V {
        S::max(x, so_far)
    }
}

/// True if all elements are finite.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn are_finite<S: Simd>(x: &[f32]) -> bool {
    const WAYS: usize = 4;
    // The products with 0 add up to NaN if an element is not finite.
    let (zero, mut sums) = (S::splat(0.0), [S::splat(0.0); WAYS]);
    let (p, mut i) = (x.as_ptr(), 0);
    while i + WAYS * S::LANES <= x.len() {
        for (way, sum) in sums.iter_mut().enumerate() {
            *sum = S::fma(S::load(p.add(i + way * S::LANES)), zero, *sum);
        }
        i += WAYS * S::LANES;
    }
    while i < x.len() {
        let n = S::LANES.min(x.len() - i);
        sums[0] = S::fma(S::load_n(p.add(i), n), zero, sums[0]);
        i += n;
    }
    S::sum(S::add(S::add(sums[0], sums[1]), S::add(sums[2], sums[3]))) == 0.0
}

/// Computes all windows of a plane with stride 1 along its rows. Folds the columns of several rows of
/// windows first: each load then serves all windows that contain the column. The order of operations
/// is that of [`pool_row`]. Returns false for windows that this kernel does not support.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
pub(super) unsafe fn pool_plane<S: Simd, F: VectorFold>(
    w: &ConvWindowAxes,
    covered: &CoveredRows,
    (x, columns): (&[f32], &mut [f32]),
    y: &mut [f32],
) -> bool {
    let (size, out, lanes) = (w.sizes[2], w.out[2], S::LANES);
    // A vector of the last windows reads up to `reach` elements after its first one.
    let reach = w.kernel[2].saturating_sub(1) * w.dilation[2] + lanes;
    let pitch = out.next_multiple_of(lanes) + reach;
    let per_pass = columns.len() / pitch;
    let taps_of_column = w.kernel[0] * w.kernel[1];
    if w.stride[2] != 1 || w.kernel[2] < 2 || taps_of_column < 2 || per_pass == 0 {
        return false;
    }
    // The elements of the plane's rows within a padded row.
    let first = w.pad[2].min(pitch);
    let count = size.min(pitch - first);
    for (pass, y) in y.chunks_mut(per_pass * out).enumerate() {
        let places = (pass * per_pass..).zip(columns.chunks_exact_mut(pitch));
        for ((at, column), _) in places.zip(y.chunks_exact(out)) {
            column[..first].fill(F::START);
            column[first + count..].fill(F::START);
            let inside = &mut column[first..first + count];
            for i in (0..count).step_by(lanes) {
                let n = lanes.min(count - i);
                let mut own = S::splat(F::START);
                for row in covered.of(at) {
                    // SAFETY: the row has `size` elements, at least `count`.
                    let from = x[row + i..row + i + n].as_ptr();
                    let x = match n == lanes {
                        true => S::load(from),
                        false => S::load_n(from, n),
                    };
                    own = F::all::<S>(own, x);
                }
                S::store_n(inside[i..i + n].as_mut_ptr(), own, n);
            }
        }
        for (column, y) in columns.chunks_exact(pitch).zip(y.chunks_exact_mut(out)) {
            for i in (0..out).step_by(lanes) {
                let n = lanes.min(out - i);
                let mut all = S::splat(F::START);
                for tap in 0..w.kernel[2] {
                    // SAFETY: the padded row has `reach` elements from each vector on.
                    let from = column[i + tap * w.dilation[2]..][..lanes].as_ptr();
                    all = F::all::<S>(all, S::load(from));
                }
                S::store_n(y[i..i + n].as_mut_ptr(), all, n);
            }
        }
    }
    true
}

/// The windows of one row; `rows` are the places in the channel of the rows that they cover.
#[derive(Clone, Copy)]
struct RowWindows<'a> {
    x: &'a [f32],
    rows: &'a [usize],
    taps: usize,
    stride: usize,
    dilation: usize,
    pad: usize,
}

/// Computes the windows of one row. Returns false for windows that this kernel does not support.
///
/// # Safety
/// Requires the instructions of `S`. Each of `rows` starts a row of `x`.
#[inline(always)]
pub(super) unsafe fn pool_row<S: Simd, F: VectorFold>(
    w: &ConvWindowAxes,
    x: &[f32],
    rows: &[usize],
    y: &mut [f32],
) -> bool {
    let (size, extent) = (w.sizes[2], w.extent(2));
    let windows = RowWindows {
        x,
        rows,
        taps: w.kernel[2],
        stride: w.stride[2],
        dilation: w.dilation[2],
        pad: w.pad[2],
    };
    let (stride, pad) = (windows.stride, windows.pad);
    if windows.taps * rows.len() > MAX_TAPS || !(1..=MAX_STRIDE).contains(&stride) {
        return false;
    }
    // The windows without padding.
    let first = pad.div_ceil(stride).min(y.len());
    let end = match (size + pad).checked_sub(extent) {
        Some(last) => (last / stride + 1).clamp(first, y.len()),
        None => first,
    };
    edges::<S, F>(&windows, size, 0..first, y);
    edges::<S, F>(&windows, size, end..y.len(), y);
    let mut i = first;
    while i < end {
        let left = end - i;
        if left >= 2 * S::LANES {
            let both = chunk::<S, F, 2>(&windows, i, S::LANES);
            S::store(y[i..].as_mut_ptr(), both[0]);
            S::store(y[i + S::LANES..].as_mut_ptr(), both[1]);
            i += 2 * S::LANES;
            continue;
        }
        if left < S::LANES && end - first >= S::LANES {
            // The last vector overlaps with the one before it.
            i = end - S::LANES;
        }
        let n = S::LANES.min(end - i);
        let [one] = chunk::<S, F, 1>(&windows, i, n);
        S::store_n(y[i..i + n].as_mut_ptr(), one, n);
        i += n;
    }
    true
}

/// Computes windows that may include padding. Their columns are folded by one vector, if it has
/// enough lanes.
///
/// # Safety
/// Requires the instructions of `S`. Each of the rows has `size` elements.
#[inline(always)]
unsafe fn edges<S: Simd, F: VectorFold>(
    w: &RowWindows<'_>,
    size: usize,
    of: Range<usize>,
    y: &mut [f32],
) {
    let Some(last) = of.end.checked_sub(1).filter(|_| !of.is_empty()) else {
        return;
    };
    let reach = last * w.stride + w.taps.saturating_sub(1) * w.dilation + 1;
    let (low, high) = (
        (of.start * w.stride).saturating_sub(w.pad).min(size),
        reach.saturating_sub(w.pad).min(size),
    );
    let count = high.saturating_sub(low);
    let mut columns = [F::START; MAX_LANES];
    if count > 0 && count <= S::LANES {
        let mut own = S::splat(F::START);
        for row in w.rows {
            // SAFETY: the elements are inside the row.
            let from = w.x[row + low..row + high].as_ptr();
            own = F::all::<S>(own, S::load_n(from, count));
        }
        S::store(columns.as_mut_ptr(), own);
    }
    for i in of {
        let mut all = F::START;
        for tap in 0..w.taps {
            let at = (i * w.stride + tap * w.dilation).checked_sub(w.pad);
            let Some(at) = at.filter(|at| *at < size) else {
                continue;
            };
            let column = match count <= S::LANES {
                true => columns[at - low],
                false => {
                    let column = w.rows.iter().map(|row| w.x[row + at]);
                    column.fold(F::START, F::one)
                }
            };
            all = F::one(all, column);
        }
        y[i] = all;
    }
}

/// Computes `V` vectors of windows from `i` on, without padding. `n` lanes are used; all, if there
/// are several vectors.
///
/// # Safety
/// Requires the instructions of `S`. The windows are inside the rows.
#[inline(always)]
unsafe fn chunk<S: Simd, F: VectorFold, const V: usize>(
    w: &RowWindows<'_>,
    i: usize,
    n: usize,
) -> [S::V; V] {
    let lanes = S::LANES;
    let mut all = [S::splat(F::START); V];
    for tap in 0..w.taps {
        let place = i * w.stride + tap * w.dilation - w.pad;
        if w.stride == 1 {
            let mut own = [S::splat(F::START); V];
            for row in w.rows {
                // SAFETY of the loads: the elements of the windows are inside the row.
                let from = w.x.as_ptr().add(row + place);
                for (v, own) in own.iter_mut().enumerate() {
                    let x = match n == lanes {
                        true => S::load(from.add(v * lanes)),
                        false => S::load_n(from, n),
                    };
                    *own = F::all::<S>(*own, x);
                }
            }
            for (all, own) in all.iter_mut().zip(own) {
                *all = F::all::<S>(*all, own);
            }
            continue;
        }
        let mut own = [[S::splat(F::START); 2]; V];
        // Elements from the first to the last window.
        let span = 2 * (V - 1) * lanes + 2 * n - 1;
        for row in w.rows {
            let from = w.x.as_ptr().add(row + place);
            // The element after the last window may be past the end of the channel.
            let whole = n == lanes && row + place + span < w.x.len();
            for (v, own) in own.iter_mut().enumerate() {
                let from = from.add(2 * v * lanes);
                let halves = match whole || v + 1 < V {
                    true => [S::load(from), S::load(from.add(lanes))],
                    false => {
                        let count = 2 * n - 1;
                        let rest = count.saturating_sub(lanes);
                        [
                            S::load_n(from, count.min(lanes)),
                            S::load_n(from.wrapping_add(lanes), rest),
                        ]
                    }
                };
                own[0] = F::all::<S>(own[0], halves[0]);
                own[1] = F::all::<S>(own[1], halves[1]);
            }
        }
        for (all, own) in all.iter_mut().zip(own) {
            *all = F::all::<S>(*all, even::<S>(own));
        }
    }
    all
}

/// The elements of two vectors with even indices.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn even<S: Simd>(halves: [S::V; 2]) -> S::V {
    let mut both = [0f32; 2 * MAX_LANES];
    S::store(both.as_mut_ptr(), halves[0]);
    S::store(both.as_mut_ptr().add(S::LANES), halves[1]);
    let even: [f32; MAX_LANES] = std::array::from_fn(|i| both[2 * i]);
    S::load(even.as_ptr())
}
