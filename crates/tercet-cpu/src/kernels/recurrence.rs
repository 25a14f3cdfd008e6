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
    for block in blocks {
        let w = &packed[block * shape.block_len()..][..shape.block_len()];
        for rows in rows.chunks(most) {
            let mut sums = [[0f32; MAX_BLOCK]; MAX_ROWS];
            for sums in &mut sums[..rows.len()] {
                let own = shape.own(block);
                for (gate, sums) in sums
                    .chunks_exact_mut(shape.units)
                    .take(shape.cell.gates())
                    .enumerate()
                {
                    sums[..own.len()].copy_from_slice(&bias[gate * shape.size..][own.clone()]);
                }
            }
            let vectors = shape.units * shape.cell.gates() / S::LANES;
            match (rows.len(), vectors) {
                (1, 3) => products::<S, 1, 3>(w, rows, &mut sums),
                (1, _) => products::<S, 1, 4>(w, rows, &mut sums),
                (2, 3) => products::<S, 2, 3>(w, rows, &mut sums),
                (2, _) => products::<S, 2, 4>(w, rows, &mut sums),
                (3, 3) => products::<S, 3, 3>(w, rows, &mut sums),
                (3, _) => products::<S, 3, 4>(w, rows, &mut sums),
                (_, 3) => products::<S, 4, 3>(w, rows, &mut sums),
                (_, _) => products::<S, 4, 4>(w, rows, &mut sums),
            }
            for (row, sums) in rows.iter().zip(&sums) {
                next_states::<S>(shape, shape.own(block), row, sums);
            }
        }
    }
}

/// Adds the products of `R` rows with a block of `V` vectors.
///
/// # Safety
/// Requires the instructions of `S`; there are `R` rows, and `w` has `V` vectors for each element of the state.
#[inline(always)]
unsafe fn products<S: Simd, const R: usize, const V: usize>(
    w: &[f32],
    rows: &[RecurrentRow<'_>],
    sums: &mut [[f32; MAX_BLOCK]; MAX_ROWS],
) {
    // Loops instead of closures, which the compiler may not inline into a function with more instructions.
    let mut acc = [[S::splat(0.0); V]; R];
    for r in 0..R {
        for v in 0..V {
            acc[r][v] = S::load(sums[r].as_ptr().add(v * S::LANES));
        }
    }
    let mut at = w.as_ptr();
    for k in 0..rows[0].before.len() {
        let mut own = [S::splat(0.0); V];
        for v in 0..V {
            own[v] = S::load(at.add(v * S::LANES));
        }
        for r in 0..R {
            let h = S::splat(*rows[r].before.as_ptr().add(k));
            for v in 0..V {
                acc[r][v] = S::fma(h, own[v], acc[r][v]);
            }
        }
        at = at.add(V * S::LANES);
    }
    for (sums, acc) in sums.iter_mut().zip(&acc) {
        for (v, acc) in acc.iter().enumerate() {
            S::store(sums.as_mut_ptr().add(v * S::LANES), *acc);
        }
    }
}

/// Computes the cell function of the elements `own` of a row.
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
    let n = own.len();
    let x = |gate: usize| &row.x[gate * shape.size..][own.clone()];
    let h = |gate: usize| &sums[gate * shape.units..][..n];
    let before = &row.before[own.clone()];
    let y = row.after.slice(own.start, n);
    match shape.cell {
        RecurrentCell::Lstm => {
            let memory = row.memory.slice(own.start, n);
            let (xi, xf, xg, xo) = (x(0), x(1), x(2), x(3));
            let (hi, hf, hg, ho) = (h(0), h(1), h(2), h(3));
            for i in 0..n {
                let keep = scalar::sigmoid::<S>(xf[i] + hf[i]) * memory[i];
                let add = scalar::sigmoid::<S>(xi[i] + hi[i]) * scalar::tanh::<S>(xg[i] + hg[i]);
                memory[i] = keep + add;
                y[i] = scalar::sigmoid::<S>(xo[i] + ho[i]) * scalar::tanh::<S>(keep + add);
            }
        }
        RecurrentCell::Gru => {
            let (xr, xz, xn) = (x(0), x(1), x(2));
            let (hr, hz, hn) = (h(0), h(1), h(2));
            for i in 0..n {
                let reset = scalar::sigmoid::<S>(xr[i] + hr[i]);
                let new = scalar::tanh::<S>(S::fmaf(reset, hn[i], xn[i]));
                let z = scalar::sigmoid::<S>(xz[i] + hz[i]);
                y[i] = S::fmaf(z, before[i], (1.0 - z) * new);
            }
        }
        RecurrentCell::Tanh => {
            let (x, h) = (x(0), h(0));
            for i in 0..n {
                y[i] = scalar::tanh::<S>(x[i] + h[i]);
            }
        }
        RecurrentCell::Relu => {
            let (x, h) = (x(0), h(0));
            for i in 0..n {
                y[i] = scalar::relu(x[i] + h[i]);
            }
        }
    }
}
