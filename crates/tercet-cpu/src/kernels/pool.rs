//! Pooling of planes: processes rows of windows. The rows of the operand that the windows cover are combined into one
//! row first, then neighbours within that row.
//!
//! Small windows of F32 are computed by vectors ([`vectors`]). Sums and products of floats over
//! more taps than [`MIN_TAPS_FOR_F64_SUMS`] use f64. Integers wrap.

mod vectors;

use std::ops::Range;

use smallvec::SmallVec;
use tercet_ir::Element;
use tercet_ir::ops::PoolFn;

use super::SimdLevel;
use super::conv::ConvWindowAxes;
use super::simd::{PortableSimd, Simd, simd_dispatch};

/// Number of taps from which f32 sums and products lose accuracy and f64 is used.
const MIN_TAPS_FOR_F64_SUMS: usize = 64;

/// The windows of a pool.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolWindows {
    pub(crate) f: PoolFn,
    pub(crate) axes: ConvWindowAxes,
    /// Padding after each axis.
    pub(crate) pad_after: [usize; 3],
    /// True if a mean counts the padding.
    pub(crate) count_include_pad: bool,
}

impl PoolWindows {
    /// The padded positions along an axis that a mean counts.
    fn counted(&self, axis: usize) -> Range<usize> {
        let w = &self.axes;
        match self.count_include_pad {
            true => 0..w.pad[axis] + w.sizes[axis] + self.pad_after[axis],
            false => w.pad[axis]..w.pad[axis] + w.sizes[axis],
        }
    }

    /// Number of taps of window `out` along an axis by which the sum is divided for the mean.
    pub(crate) fn taps(&self, axis: usize, out: usize) -> usize {
        let (w, counted) = (&self.axes, self.counted(axis));
        let places = (0..w.kernel[axis]).map(|t| out * w.stride[axis] + t * w.dilation[axis]);
        places.filter(|at| counted.contains(at)).count()
    }

    /// True if no element needs the order or the precision of the other kernels; `clean` if none is NaN.
    fn may_use_vectors<T: PoolElem>(&self, clean: bool) -> bool {
        match self.f {
            PoolFn::Max => clean,
            _ => !(T::ROUGH && self.axes.taps() > MIN_TAPS_FOR_F64_SUMS),
        }
    }

    /// The windows of a row that lie in the counted elements.
    fn whole(&self) -> Range<usize> {
        let (w, counted) = (&self.axes, self.counted(2));
        let stride = w.stride[2].max(1);
        let first = counted.start.div_ceil(stride);
        let end = counted.end.checked_sub(w.extent(2));
        first..end.map_or(0, |last| last / stride + 1).max(first)
    }
}

/// Element type that a pool computes with.
pub(crate) trait PoolElem: Element {
    const LOWEST: Self;
    const GREATEST: Self;
    const ZERO: Self;
    const ONE: Self;
    fn greater(self, other: Self) -> Self;
    fn lesser(self, other: Self) -> Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Divides a sum by a count of elements; never called for integers.
    fn over(self, count: usize) -> Self;
    fn to_f64(self) -> f64;
    fn from_f64(x: f64) -> Self;
    /// The larger of two elements that are not NaN.
    fn larger(self, other: Self) -> Self;
    /// True if no element is NaN. May be false without NaN, too.
    ///
    /// # Safety
    /// Requires the instructions of `S`.
    unsafe fn is_clean<S: Simd>(x: &[Self]) -> bool;
    /// True if sums of this type round.
    const ROUGH: bool;

    /// Sums or maxima of a row of windows by vectors. Returns false if they are not supported.
    ///
    /// # Safety
    /// Requires the instructions of `S`. Each of `rows` starts a row of `x`.
    #[inline(always)]
    unsafe fn by_vectors<S: Simd>(
        _f: PoolFn,
        _w: &ConvWindowAxes,
        _x: &[Self],
        _rows: &[usize],
        _y: &mut [Self],
    ) -> bool {
        false
    }

    /// Sums or maxima of all windows of a plane by vectors, through an intermediate row of columns for
    /// each row of windows, which the second buffer holds. Returns false if they are not supported.
    ///
    /// # Safety
    /// Requires the instructions of `S`.
    #[inline(always)]
    unsafe fn plane_by_vectors<S: Simd>(
        _f: PoolFn,
        _w: &ConvWindowAxes,
        _covered: &CoveredRows,
        _from: (&[Self], &mut [Self]),
        _y: &mut [Self],
    ) -> bool {
        false
    }

    /// Pools whole planes.
    fn pool_planes(level: SimdLevel, windows: &PoolWindows, x: &[Self], y: &mut [Self]);
}

macro_rules! planes {
    ($planes:path) => {
        fn pool_planes(level: SimdLevel, windows: &PoolWindows, x: &[Self], y: &mut [Self]) {
            $planes(level, windows, x, y);
        }
    };
}

macro_rules! floats {
    ($($t:ty, $rough:literal, $planes:path, { $($more:tt)* });* $(;)?) => {$(impl PoolElem for $t {
        const LOWEST: $t = <$t>::NEG_INFINITY;
        const GREATEST: $t = <$t>::INFINITY;
        const ZERO: $t = 0.0;
        const ONE: $t = 1.0;
        const ROUGH: bool = $rough;
        #[inline(always)]
        fn greater(self, other: $t) -> $t {
            if self.is_nan() || self >= other { self } else { other }
        }
        #[inline(always)]
        fn lesser(self, other: $t) -> $t {
            if self.is_nan() || self <= other { self } else { other }
        }
        #[inline(always)]
        fn plus(self, other: $t) -> $t { self + other }
        #[inline(always)]
        fn times(self, other: $t) -> $t { self * other }
        #[inline(always)]
        fn over(self, count: usize) -> $t { self / count as $t }
        #[inline(always)]
        fn to_f64(self) -> f64 { f64::from(self) }
        #[inline(always)]
        fn from_f64(x: f64) -> $t { x as $t }
        #[inline(always)]
        fn larger(self, other: $t) -> $t {
            if other > self { other } else { self }
        }
        planes!($planes);
        $($more)*
    })*};
}
floats! {
    f32, true, f32_planes, {
        #[inline(always)]
        unsafe fn is_clean<S: Simd>(x: &[f32]) -> bool {
            vectors::are_finite::<S>(x)
        }

        #[inline(always)]
        unsafe fn by_vectors<S: Simd>(
            f: PoolFn,
            w: &ConvWindowAxes,
            x: &[f32],
            rows: &[usize],
            y: &mut [f32],
        ) -> bool {
            match f {
                PoolFn::Max => vectors::pool_row::<S, vectors::Largest>(w, x, rows, y),
                PoolFn::Sum | PoolFn::Mean => vectors::pool_row::<S, vectors::Total>(w, x, rows, y),
                PoolFn::Min | PoolFn::Prod => false,
            }
        }

        #[inline(always)]
        unsafe fn plane_by_vectors<S: Simd>(
            f: PoolFn,
            w: &ConvWindowAxes,
            covered: &CoveredRows,
            from: (&[f32], &mut [f32]),
            y: &mut [f32],
        ) -> bool {
            match f {
                PoolFn::Max => vectors::pool_plane::<S, vectors::Largest>(w, covered, from, y),
                PoolFn::Sum | PoolFn::Mean => {
                    vectors::pool_plane::<S, vectors::Total>(w, covered, from, y)
                }
                PoolFn::Min | PoolFn::Prod => false,
            }
        }
    };
    f64, false, plain_planes, {
        unsafe fn is_clean<S: Simd>(x: &[f64]) -> bool {
            !x.iter().any(|x| x.is_nan())
        }
    };
}

macro_rules! ints {
    ($($t:ty: $planes:path),*) => {$(impl PoolElem for $t {
        const LOWEST: $t = <$t>::MIN;
        const GREATEST: $t = <$t>::MAX;
        const ZERO: $t = 0;
        const ONE: $t = 1;
        const ROUGH: bool = false;
        #[inline(always)]
        fn greater(self, other: $t) -> $t { self.max(other) }
        #[inline(always)]
        fn lesser(self, other: $t) -> $t { self.min(other) }
        #[inline(always)]
        fn plus(self, other: $t) -> $t { self.wrapping_add(other) }
        #[inline(always)]
        fn times(self, other: $t) -> $t { self.wrapping_mul(other) }
        fn over(self, _: usize) -> $t { self }
        #[inline(always)]
        fn larger(self, other: $t) -> $t { self.max(other) }
        unsafe fn is_clean<S: Simd>(_: &[$t]) -> bool { true }
        fn to_f64(self) -> f64 { self as f64 }
        fn from_f64(x: f64) -> $t { x as $t }
        planes!($planes);
    })*};
}
ints!(
    i32: plain_planes, u32: plain_planes, i64: plain_planes, i16: plain_planes, i8: i8_planes,
    u8: u8_planes
);

/// Same as the dispatched functions, for types that are rarely pooled.
fn plain_planes<T: PoolElem>(_: SimdLevel, windows: &PoolWindows, x: &[T], y: &mut [T]) {
    // SAFETY: portable code has no requirement.
    unsafe { planes_body::<PortableSimd, T>(windows, x, y) }
}

simd_dispatch!(
    fn f32_planes(windows: &PoolWindows, x: &[f32], y: &mut [f32]) = planes_body::<f32>
);
simd_dispatch!(
    fn u8_planes(windows: &PoolWindows, x: &[u8], y: &mut [u8]) = planes_body::<u8>
);
simd_dispatch!(
    fn i8_planes(windows: &PoolWindows, x: &[i8], y: &mut [i8]) = planes_body::<i8>
);

/// Pools whole planes.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn planes_body<S: Simd, T: PoolElem>(windows: &PoolWindows, x: &[T], y: &mut [T]) {
    let w = &windows.axes;
    let (count, plane) = (w.count(), w.plane());
    if count == 0 {
        return;
    }
    let mut buffers = PoolBuffers {
        folded: [T::ZERO; SPAN + CHUNK],
        phases: [T::ZERO; SPAN + MAX_PHASES * (CHUNK + 1)],
        columns: [T::ZERO; COLUMNS],
    };
    let covered = CoveredRows::new(w);
    let taps = (windows.f == PoolFn::Mean).then(|| WindowTaps::new(windows));
    for (j, y) in y.chunks_exact_mut(count).enumerate() {
        let x = &x[j * plane..][..plane];
        let clean = windows.f == PoolFn::Max && T::is_clean::<S>(x);
        let by_vectors = windows.may_use_vectors::<T>(clean);
        let columns = &mut buffers.columns;
        let is_done =
            by_vectors && T::plane_by_vectors::<S>(windows.f, w, &covered, (x, columns), &mut *y);
        for (row, y) in y.chunks_exact_mut(w.out[2]).enumerate() {
            if !is_done {
                let rows = covered.of(row);
                let place = PoolRowPlace { row, rows, clean };
                pool_row::<S, T>(windows, x, place, y, &mut buffers);
            }
            if let Some(taps) = &taps {
                taps.mean_row(row, y);
            }
        }
    }
}

/// A row of windows of a channel.
#[derive(Clone, Copy)]
struct PoolRowPlace<'a> {
    /// Its index among all rows of windows of the channel.
    row: usize,
    /// The places in the channel of the rows that the windows cover, in the order of the taps.
    rows: &'a [usize],
    /// True if no element of the channel is NaN.
    clean: bool,
}

/// The places in a channel of the rows that each row of windows covers, for all channels.
pub(crate) struct CoveredRows {
    places: SmallVec<[usize; 128]>,
    /// The end of each row of windows in `places`.
    ends: SmallVec<[usize; 32]>,
}

impl CoveredRows {
    fn new(w: &ConvWindowAxes) -> CoveredRows {
        let inside = |axis: usize, out: usize, tap: usize| {
            let padded = out * w.stride[axis] + tap * w.dilation[axis];
            let at = padded.checked_sub(w.pad[axis]);
            at.filter(|at| *at < w.sizes[axis])
        };
        let (mut places, mut ends) = (SmallVec::new(), SmallVec::new());
        for (d, h) in (0..w.out[0]).flat_map(|d| (0..w.out[1]).map(move |h| (d, h))) {
            for d in (0..w.kernel[0]).filter_map(|tap| inside(0, d, tap)) {
                let rows = (0..w.kernel[1]).filter_map(|tap| inside(1, h, tap));
                places.extend(rows.map(|h| (d * w.sizes[1] + h) * w.sizes[2]));
            }
            ends.push(places.len());
        }
        CoveredRows { places, ends }
    }

    /// The places for a row of windows, in the order of the taps.
    #[inline(always)]
    fn of(&self, row: usize) -> &[usize] {
        let start = row.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.places[start..self.ends[row]]
    }
}

/// The numbers of elements by which the sums of windows are divided, for all channels.
struct WindowTaps {
    /// For each row of windows, the taps along the first two axes.
    rows: SmallVec<[usize; 32]>,
    /// The windows of a row that have all taps along the row.
    whole: Range<usize>,
    /// Taps of a whole window along the row.
    most: usize,
    /// Taps of the windows before and after the whole ones.
    edges: SmallVec<[usize; 16]>,
}

impl WindowTaps {
    fn new(windows: &PoolWindows) -> WindowTaps {
        let w = &windows.axes;
        let rows = (0..w.out[0]).flat_map(|d| (0..w.out[1]).map(move |h| (d, h)));
        let whole = windows.whole();
        let whole = whole.start.min(w.out[2])..whole.end.min(w.out[2]);
        let edges = (0..whole.start).chain(whole.end..w.out[2]);
        WindowTaps {
            rows: rows
                .map(|(d, h)| windows.taps(0, d) * windows.taps(1, h))
                .collect(),
            most: w.kernel[2],
            edges: edges.map(|i| windows.taps(2, i)).collect(),
            whole,
        }
    }

    /// Divides the sums of a row of windows by the numbers of their elements.
    #[inline(always)]
    fn mean_row<T: PoolElem>(&self, row: usize, y: &mut [T]) {
        let others = self.rows[row];
        let (before, rest) = y.split_at_mut(self.whole.start);
        let (inside, after) = rest.split_at_mut(self.whole.len());
        for (y, taps) in before.iter_mut().chain(after).zip(&self.edges) {
            *y = y.over(others * taps);
        }
        let count = others * self.most;
        inside.iter_mut().for_each(|y| *y = y.over(count));
    }
}

/// Computes the windows of one row of a channel.
///
/// # Safety
/// Requires the instructions of `S`. The rows of `place` start rows of `x`.
#[inline(always)]
unsafe fn pool_row<S: Simd, T: PoolElem>(
    windows: &PoolWindows,
    x: &[T],
    place: PoolRowPlace<'_>,
    y: &mut [T],
    buffers: &mut PoolBuffers<T>,
) {
    let (w, rows, row) = (&windows.axes, place.rows, place.row);
    let vectors = windows.may_use_vectors::<T>(place.clean);
    match windows.f {
        f if vectors && T::by_vectors::<S>(f, w, x, rows, y) => {}
        PoolFn::Max if place.clean => separable(w, x, row, rows, y, buffers, T::LOWEST, T::larger),
        PoolFn::Max => separable(w, x, row, rows, y, buffers, T::LOWEST, T::greater),
        PoolFn::Min => separable(w, x, row, rows, y, buffers, T::GREATEST, T::lesser),
        PoolFn::Sum | PoolFn::Mean if T::ROUGH && w.taps() > MIN_TAPS_FOR_F64_SUMS => {
            wide_fold(w, x, row, y, 0.0, |sum, x| sum + x)
        }
        PoolFn::Prod if T::ROUGH && w.taps() > MIN_TAPS_FOR_F64_SUMS => {
            wide_fold(w, x, row, y, 1.0, |product, x| product * x)
        }
        PoolFn::Sum | PoolFn::Mean => {
            separable(w, x, row, rows, y, buffers, T::ZERO, T::plus);
        }
        PoolFn::Prod => separable(w, x, row, rows, y, buffers, T::ONE, T::times),
    }
}

/// Elements of the padded row.
const SPAN: usize = 512;
/// Results that are computed together.
const CHUNK: usize = 16;
/// Stride up to which the padded row is split into phases, so that neighbouring results read neighbouring elements.
const MAX_PHASES: usize = 4;

/// Elements of the folded columns of several rows of windows: 16 KiB of F32.
const COLUMNS: usize = 4096;

/// Buffers of a row of windows, with room for the last chunk to read beyond the row.
struct PoolBuffers<T> {
    folded: [T; SPAN + CHUNK],
    phases: [T; SPAN + MAX_PHASES * (CHUNK + 1)],
    columns: [T; COLUMNS],
}

/// Pools one row of windows. First folds the rows of x that the windows cover into one padded row, then folds
/// neighbours of that row.
#[inline(always)]
#[allow(
    clippy::too_many_arguments,
    reason = "the function and its start differ by pool"
)]
fn separable<T: PoolElem>(
    w: &ConvWindowAxes,
    x: &[T],
    row: usize,
    rows: &[usize],
    y: &mut [T],
    buffers: &mut PoolBuffers<T>,
    start: T,
    f: impl Fn(T, T) -> T,
) {
    let (stride, dilation, pad) = (w.stride[2], w.dilation[2], w.pad[2]);
    let extent = w.kernel[2].saturating_sub(1) * dilation + 1;
    if extent > SPAN / 2 {
        return fold(w, x, row, y, start, f);
    }
    let most = (SPAN - extent) / stride + 1;
    for (i, y) in y.chunks_mut(most).enumerate() {
        // Position in the padded row of the first element that these windows read.
        let first = i * most * stride;
        let span = (y.len() - 1) * stride + extent;
        let before = pad.saturating_sub(first).min(span);
        let at = (first + before).saturating_sub(pad).min(w.sizes[2]);
        let count = (w.sizes[2] - at).min(span - before);
        buffers.folded[..span].fill(start);
        let inside = &mut buffers.folded[before..before + count];
        for row in rows {
            combine(inside, &x[row + at..row + at + count], &f);
        }
        if stride > MAX_PHASES {
            y.fill(start);
            for tap in 0..w.kernel[2] {
                let from = buffers.folded[tap * dilation..span].iter().step_by(stride);
                y.iter_mut().zip(from).for_each(|(y, x)| *y = f(*y, *x));
            }
            continue;
        }
        let phase = span.div_ceil(stride) + CHUNK;
        let from = match stride {
            1 => &buffers.folded[..],
            _ => {
                split_phases(&buffers.folded[..span], stride, phase, &mut buffers.phases);
                &buffers.phases[..]
            }
        };
        for (c, y) in y.chunks_mut(CHUNK).enumerate() {
            let mut all = [start; CHUNK];
            for tap in 0..w.kernel[2] {
                let place = tap * dilation;
                let first = place % stride * phase + place / stride + c * CHUNK;
                // Elements after the span give results that are not stored.
                for (all, x) in all.iter_mut().zip(&from[first..first + CHUNK]) {
                    *all = f(*all, *x);
                }
            }
            match y.as_chunks_mut::<CHUNK>() {
                ([whole], _) => *whole = all,
                (_, part) => part.copy_from_slice(&all[..part.len()]),
            }
        }
    }
}

/// Combines elements pair by pair. Loops of constant length have no remainder, which would be most of a short row.
#[inline(always)]
fn combine<T: PoolElem>(to: &mut [T], from: &[T], f: impl Fn(T, T) -> T) {
    let (whole, rest) = to.as_chunks_mut::<CHUNK>();
    let (from, from_rest) = from.as_chunks::<CHUNK>();
    for (to, from) in whole.iter_mut().zip(from) {
        for i in 0..CHUNK {
            to[i] = f(to[i], from[i]);
        }
    }
    let (four, rest) = rest.as_chunks_mut::<4>();
    let (from, from_rest) = from_rest.as_chunks::<4>();
    for (to, from) in four.iter_mut().zip(from) {
        for i in 0..4 {
            to[i] = f(to[i], from[i]);
        }
    }
    rest.iter_mut()
        .zip(from_rest)
        .for_each(|(y, x)| *y = f(*y, *x));
}

/// Writes every `stride`-th element to its own range of `len` elements.
#[inline(always)]
fn split_phases<T: PoolElem>(x: &[T], stride: usize, len: usize, to: &mut [T]) {
    if stride == 2 {
        let (even, odd) = to.split_at_mut(len);
        let (pairs, rest) = x.as_chunks::<2>();
        for ((even, odd), pair) in even.iter_mut().zip(odd.iter_mut()).zip(pairs) {
            (*even, *odd) = (pair[0], pair[1]);
        }
        if let [last] = rest {
            even[pairs.len()] = *last;
        }
        return;
    }
    for (phase, to) in to.chunks_exact_mut(len.max(1)).take(stride).enumerate() {
        let from = x.iter().skip(phase).step_by(stride);
        to.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
    }
}

#[inline(always)]
fn fold<T: PoolElem>(
    w: &ConvWindowAxes,
    x: &[T],
    row: usize,
    y: &mut [T],
    start: T,
    f: impl Fn(T, T) -> T,
) {
    y.fill(start);
    let width = y.len();
    for t in 0..w.taps() {
        let tap = w.tap(t);
        let Some(from) = w.row(x, row, tap) else {
            continue;
        };
        let (inside, first) = w.inside(tap[2], 0..width);
        if inside.is_empty() {
            continue;
        }
        let (y, from) = (&mut y[inside], &from[first..]);
        match w.stride[2] {
            1 => y.iter_mut().zip(from).for_each(|(y, x)| *y = f(*y, *x)),
            stride => {
                let from = from.iter().step_by(stride);
                y.iter_mut().zip(from).for_each(|(y, x)| *y = f(*y, *x));
            }
        }
    }
}

/// Folds many taps in f64, one window after the other.
fn wide_fold<T: PoolElem>(
    w: &ConvWindowAxes,
    x: &[T],
    row: usize,
    y: &mut [T],
    start: f64,
    f: impl Fn(f64, f64) -> f64,
) {
    for (i, y) in y.iter_mut().enumerate() {
        let mut all = start;
        for t in 0..w.taps() {
            let tap = w.tap(t);
            let Some(from) = w.row(x, row, tap) else {
                continue;
            };
            let (inside, first) = w.inside(tap[2], i..i + 1);
            if !inside.is_empty() {
                all = f(all, from[first].to_f64());
            }
        }
        *y = T::from_f64(all);
    }
}
