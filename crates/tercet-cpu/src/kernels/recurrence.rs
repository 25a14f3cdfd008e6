//! Steps of recurrent layers: for a block of state elements, the products of all gates with the state before, and the
//! cell function.
//!
//! The weights of a block are contiguous: `[block][k][gate][unit]`, so a step streams through them once, with the sums
//! of all gates in registers. Each sum is one chain of `fma` over k from the bias on. It does not depend on the
//! rows or blocks that run together.

#![allow(
    clippy::needless_range_loop,
    reason = "indices name the rows and vectors of the tile in several arrays at once"
)]

use std::ops::Range;

use tercet_ir::ops::RecurrentCell;

use super::SimdLevel;
use super::parallel::SharedMut;
use super::simd::{Simd, simd_dispatch};
use super::vmath::scalar;

/// Vectors of a block over all gates, at most.
const MAX_VECTORS: usize = 4;
/// Floats of a block over all gates, at most.
const MAX_BLOCK: usize = MAX_VECTORS * 16;
/// Batch rows whose products are computed together, at most.
const MAX_ROWS: usize = 4;

/// Sizes of a recurrent layer, and the blocks of its weights.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecurrentShape {
    pub(crate) cell: RecurrentCell,
    /// Elements of the state.
    pub(crate) size: usize,
    /// State elements of a block.
    units: usize,
}

impl RecurrentShape {
    pub(crate) fn new(level: SimdLevel, cell: RecurrentCell, size: usize) -> RecurrentShape {
        let vectors = MAX_VECTORS / cell.gates();
        RecurrentShape {
            cell,
            size,
            units: vectors * level.lanes(),
        }
    }

    pub(crate) fn blocks(&self) -> usize {
        self.size.div_ceil(self.units)
    }

    /// Floats of the packed weights.
    pub(crate) fn packed_len(&self) -> usize {
        self.blocks() * self.block_len()
    }

    fn block_len(&self) -> usize {
        self.size * self.cell.gates() * self.units
    }

    /// Packs `w` `[size, gates size]`; missing elements of the last block are 0.
    pub(crate) fn pack(&self, w: &[f32], packed: &mut [f32]) {
        let wide = self.cell.gates() * self.size;
        let rows = self.cell.gates() * self.units;
        for (block, packed) in packed.chunks_exact_mut(self.block_len().max(1)).enumerate() {
            let own = self.own(block);
            for (packed, w) in packed
                .chunks_exact_mut(rows)
                .zip(w.chunks_exact(wide.max(1)))
            {
                packed.fill(0.0);
                for (gate, packed) in packed.chunks_exact_mut(self.units).enumerate() {
                    packed[..own.len()].copy_from_slice(&w[gate * self.size..][own.clone()]);
                }
            }
        }
    }

    /// State elements of a block.
    fn own(&self, block: usize) -> Range<usize> {
        block * self.units..self.size.min((block + 1) * self.units)
    }
}

/// A batch row at one step.
#[derive(Clone, Copy)]
pub(crate) struct RecurrentRow<'a> {
    /// The input contribution of the gates.
    pub(crate) x: &'a [f32],
    /// The state before.
    pub(crate) before: &'a [f32],
    /// The second state, which a step updates.
    pub(crate) memory: SharedMut<f32>,
    /// The state after.
    pub(crate) after: SharedMut<f32>,
}

simd_dispatch!(
    /// Computes the states of the blocks for all rows.
    ///
    /// # Safety
    /// `memory` and `after` of each row have `size` elements, and no other task uses those of the blocks.
    pub(crate) fn advance(
        shape: &RecurrentShape,
        blocks: Range<usize>,
        packed: &[f32],
        bias: &[f32],
        rows: &[RecurrentRow<'_>],
    ) = advance_body
);

/// # Safety
/// Requires the instructions of `S`, and the conditions of [`advance`].
#[inline(always)]
unsafe fn advance_body<S: Simd>(
    shape: &RecurrentShape,
    blocks: Range<usize>,
    packed: &[f32],
    bias: &[f32],
    rows: &[RecurrentRow<'_>],
) {
    assert!(shape.units * shape.cell.gates() <= MAX_BLOCK && packed.len() == shape.packed_len());
    // The accumulators of four rows need more registers than AVX2 has.
    let most = if S::TILE_ROWS < 8 { 2 } else { MAX_ROWS };
    let vectors = shape.units * shape.cell.gates() / S::LANES;
    // The sums of a single row wait for each other in one block, so two blocks run side by side.
    let side = if rows.len() == 1 { 2 } else { 1 };
    let mut first = blocks.start;
    while first < blocks.end {
        let count = side.min(blocks.end - first);
        let w = &packed[first * shape.block_len()..][..count * shape.block_len()];
        for rows in rows.chunks(most) {
            let mut sums = [[0f32; MAX_BLOCK]; MAX_ROWS];
            for (i, sums) in sums[..rows.len() * count].iter_mut().enumerate() {
                let own = shape.own(first + i % count);
                for (gate, sums) in sums
                    .chunks_exact_mut(shape.units)
                    .take(shape.cell.gates())
                    .enumerate()
                {
                    sums[..own.len()].copy_from_slice(&bias[gate * shape.size..][own.clone()]);
                }
            }
            match (rows.len(), count, vectors) {
                (1, 1, 3) => products::<S, 1, 1, 3>(w, rows, &mut sums),
                (1, 1, _) => products::<S, 1, 1, 4>(w, rows, &mut sums),
                (1, _, 3) => products::<S, 1, 2, 3>(w, rows, &mut sums),
                (1, _, _) => products::<S, 1, 2, 4>(w, rows, &mut sums),
                (2, _, 3) => products::<S, 2, 1, 3>(w, rows, &mut sums),
                (2, _, _) => products::<S, 2, 1, 4>(w, rows, &mut sums),
                (3, _, 3) => products::<S, 3, 1, 3>(w, rows, &mut sums),
                (3, _, _) => products::<S, 3, 1, 4>(w, rows, &mut sums),
                (_, _, 3) => products::<S, 4, 1, 3>(w, rows, &mut sums),
                (_, _, _) => products::<S, 4, 1, 4>(w, rows, &mut sums),
            }
            for (i, sums) in sums[..rows.len() * count].iter().enumerate() {
                next_states::<S>(shape, shape.own(first + i % count), &rows[i / count], sums);
            }
        }
        first += count;
    }
}

/// Adds the products of `R` rows with `B` blocks of `V` vectors.
///
/// # Safety
/// Requires the instructions of `S`; there are `R` rows, and `w` has `V` vectors of each block for each element of the
/// state. `R B` is at most [`MAX_ROWS`].
#[inline(always)]
unsafe fn products<S: Simd, const R: usize, const B: usize, const V: usize>(
    w: &[f32],
    rows: &[RecurrentRow<'_>],
    sums: &mut [[f32; MAX_BLOCK]; MAX_ROWS],
) {
    // Loops instead of closures, which the compiler may not inline into a function with more instructions.
    let mut acc = [[[S::splat(0.0); V]; B]; R];
    for r in 0..R {
        for b in 0..B {
            for v in 0..V {
                acc[r][b][v] = S::load(sums[r * B + b].as_ptr().add(v * S::LANES));
            }
        }
    }
    let len = w.len() / B;
    let mut at = w.as_ptr();
    for k in 0..rows[0].before.len() {
        for b in 0..B {
            let mut own = [S::splat(0.0); V];
            for v in 0..V {
                own[v] = S::load(at.add(b * len + v * S::LANES));
            }
            for r in 0..R {
                let h = S::splat(*rows[r].before.as_ptr().add(k));
                for v in 0..V {
                    acc[r][b][v] = S::fma(h, own[v], acc[r][b][v]);
                }
            }
        }
        at = at.add(V * S::LANES);
    }
    for r in 0..R {
        for b in 0..B {
            for v in 0..V {
                let to = sums[r * B + b].as_mut_ptr();
                S::store(to.add(v * S::LANES), acc[r][b][v]);
            }
        }
    }
}

/// Computes the cell function of the elements `own` of a row, a vector at a time. Loops have constant lengths, so that
/// the compiler vectorizes the functions in them.
///
/// # Safety
/// Requires the instructions of `S`, and the conditions of [`advance`].
#[inline(always)]
unsafe fn next_states<S: Simd>(
    shape: &RecurrentShape,
    own: Range<usize>,
    row: &RecurrentRow<'_>,
    sums: &[f32; MAX_BLOCK],
) {
    assert!(row.x.len() >= shape.size * shape.cell.gates() && own.end <= shape.size);
    let mut start = 0;
    while start < own.len() {
        let at = VectorPlace {
            element: own.start + start,
            unit: start,
            len: S::LANES.min(own.len() - start),
        };
        let y = row.after.ptr().add(at.element);
        match shape.cell {
            RecurrentCell::Lstm => {
                let memory = row.memory.ptr().add(at.element);
                let mut sigmoids = [0f32; 3 * MAX_LANES];
                for (i, gate) in [0, 1, 3].into_iter().enumerate() {
                    let v = S::add(
                        at.input::<S>(shape, row, gate),
                        at.sums::<S>(shape, sums, gate),
                    );
                    S::store(sigmoids.as_mut_ptr().add(i * S::LANES), v);
                }
                for x in &mut sigmoids[..3 * S::LANES] {
                    *x = scalar::sigmoid::<S>(*x);
                }
                let v = S::add(at.input::<S>(shape, row, 2), at.sums::<S>(shape, sums, 2));
                let new = tanh_of::<S>(v);
                let sigmoids = sigmoids.as_ptr();
                let keep = S::mul(S::load(sigmoids.add(S::LANES)), S::load_n(memory, at.len));
                let next = S::add(keep, S::mul(S::load(sigmoids), new));
                S::store_n(memory, next, at.len);
                let out = S::mul(S::load(sigmoids.add(2 * S::LANES)), tanh_of::<S>(next));
                S::store_n(y, out, at.len);
            }
            RecurrentCell::Gru => {
                let mut sigmoids = [0f32; 2 * MAX_LANES];
                for gate in 0..2 {
                    let v = S::add(
                        at.input::<S>(shape, row, gate),
                        at.sums::<S>(shape, sums, gate),
                    );
                    S::store(sigmoids.as_mut_ptr().add(gate * S::LANES), v);
                }
                for x in &mut sigmoids[..2 * S::LANES] {
                    *x = scalar::sigmoid::<S>(*x);
                }
                let (reset, z) = (
                    S::load(sigmoids.as_ptr()),
                    S::load(sigmoids.as_ptr().add(S::LANES)),
                );
                let hidden = at.sums::<S>(shape, sums, 2);
                let new = tanh_of::<S>(S::fma(reset, hidden, at.input::<S>(shape, row, 2)));
                let before = S::load_n(row.before.as_ptr().add(at.element), at.len);
                let rest = S::fma(z, S::splat(-1.0), S::splat(1.0));
                S::store_n(y, S::fma(z, before, S::mul(rest, new)), at.len);
            }
            RecurrentCell::Tanh => {
                let v = S::add(at.input::<S>(shape, row, 0), at.sums::<S>(shape, sums, 0));
                S::store_n(y, tanh_of::<S>(v), at.len);
            }
            RecurrentCell::Relu => {
                let v = S::add(at.input::<S>(shape, row, 0), at.sums::<S>(shape, sums, 0));
                let mut values = [0f32; MAX_LANES];
                S::store(values.as_mut_ptr(), v);
                for x in &mut values[..S::LANES] {
                    *x = scalar::relu(*x);
                }
                S::store_n(y, S::load(values.as_ptr()), at.len);
            }
        }
        start += S::LANES;
    }
}

/// Lanes of the widest level.
const MAX_LANES: usize = 16;

/// A vector of state elements: the first one in the state and in its block, and the used lanes.
#[derive(Clone, Copy)]
struct VectorPlace {
    element: usize,
    unit: usize,
    len: usize,
}

impl VectorPlace {
    /// The input contribution of a gate.
    ///
    /// # Safety
    /// Requires the instructions of `S`; the place is inside the state.
    #[inline(always)]
    unsafe fn input<S: Simd>(
        self,
        shape: &RecurrentShape,
        row: &RecurrentRow<'_>,
        gate: usize,
    ) -> S::V {
        S::load_n(
            row.x.as_ptr().add(gate * shape.size + self.element),
            self.len,
        )
    }

    /// The sums of a gate.
    ///
    /// # Safety
    /// Requires the instructions of `S`; the place is inside a block.
    #[inline(always)]
    unsafe fn sums<S: Simd>(
        self,
        shape: &RecurrentShape,
        sums: &[f32; MAX_BLOCK],
        gate: usize,
    ) -> S::V {
        S::load(sums.as_ptr().add(gate * shape.units + self.unit))
    }
}

/// `tanh` of each lane.
///
/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn tanh_of<S: Simd>(v: S::V) -> S::V {
    let mut values = [0f32; MAX_LANES];
    S::store(values.as_mut_ptr(), v);
    for x in &mut values[..S::LANES] {
        *x = scalar::tanh::<S>(*x);
    }
    S::load(values.as_ptr())
}
