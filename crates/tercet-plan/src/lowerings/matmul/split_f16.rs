//! Products of F32 on cooperative matrices of F16, as exact as sums of F32: each number is the sum of two of F16.
//!
//! `split_blocks.wgsl` makes pairs of both operands, once however many products read them, `gemm_pairs_f32.comp` multiplies
//! them. Tiles whose numbers differ so much that pairs would lose more than F32 does, or are not finite, are left to the tiles
//! of F32 that any product can run on, which read the operands themselves; the device finds out.

use tercet_ir::{CompileError, DType, Dim};

use super::coop::{self, Columns, two_axes};
use super::kernels::{GEMM_REST, GEMM_REST_ACTIVATED};
use super::portable::{Given, Pair};
use super::product::{Axis, Product, Side};
use crate::emit::{Emit, Halves, View};
use crate::families::gemm_coop::{ACTIVATIONS, GemmCoopParams, Tiling, module};
use crate::families::{code, portable};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;
use crate::scalar::PRELUDE;
use crate::tuning::GemmProblem;

crate::params! {
    /// The block of `matmul/split_blocks.wgsl`.
    pub struct SplitBlocksParams {
        offset: U32,
        row: U32,
        rows: U32,
        columns: U32,
        across: U32,
        of_batch: U32,
        blocks: U32,
        batch: U32,
    }
}

/// Numbers of F32 to pairs of F16.
pub(super) static SPLIT_BLOCKS: Kernel<SplitBlocksParams> = Kernel::wgsl(
    "split_blocks",
    &[PRELUDE, portable!("matmul/split_blocks.wgsl")],
    &[Access::Read, Access::Write],
    &[],
);

/// The constants of `gemm_pairs_f32.comp`.
const CONSTS: &[&str] = &[
    "THREADS",
    "SUBGROUP",
    "FM",
    "FN",
    "FK",
    "BM",
    "BN",
    "BK",
    "WM",
    "WN",
    "A_ALONG",
    "B_ALONG",
    "ACTIVATION",
    "HAS_BIAS",
    "HAS_RESIDUAL",
    "ALIGNED_C",
    "BAND",
];

/// A, B, bias, residual, C, and the tiles that are left.
const ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Write,
];

/// Products of pairs.
pub(super) static PAIRS: Kernel<GemmCoopParams> = Kernel::spirv(
    "gemm_pairs_f32",
    module!("gemm_pairs_f32.spv"),
    ARGS,
    CONSTS,
);

static REST: Pair = Pair {
    plain: &GEMM_REST,
    activated: &GEMM_REST_ACTIVATED,
};

/// Rows and columns with one scale, and the 32-bit words of their pairs. As in the shaders.
const BLOCK: u32 = 64;
const BLOCK_LEN: u64 = 4096;
/// Rows and columns of the tiles of F32 that compute what is left: 16 x 16 invocations with 8 x 8 sums each.
const REST_TILE: u32 = 128;
const REST_SIDE: u32 = 16;

/// A product that the kernel takes, and how.
pub(super) struct Pairs {
    tiling: Tiling,
    /// About how long it takes.
    pub(super) seconds: f64,
    /// The batch, and the distances of both operands.
    batch: [Num; 3],
}

/// How an operand lies: its rows, and whether these are along k.
struct Lying<'p> {
    rows: &'p Dim,
    columns: &'p Dim,
    row: Axis,
    along: bool,
}

impl<'p> Lying<'p> {
    fn of(side: &Side, own: &'p Dim, k: &'p Dim) -> Option<Lying<'p>> {
        match (side.summed.unit, side.own.unit) {
            (true, _) => Some(Lying {
                rows: own,
                columns: k,
                row: side.own,
                along: true,
            }),
            (false, true) => Some(Lying {
                rows: k,
                columns: own,
                row: side.summed,
                along: false,
            }),
            (false, false) => None,
        }
    }
}

impl Pairs {
    /// How the kernel computes this product into `y`; none where it does not.
    pub(super) fn of(
        e: &mut Emit<'_>,
        p: &Product,
        y: &View,
    ) -> Result<Option<Pairs>, CompileError> {
        let is_f32 = [p.a.dtype, p.b.dtype, y.dtype]
            .iter()
            .all(|ty| *ty == DType::F32);
        let plain = p.norm.is_none() && p.gate.is_none();
        let bias_fits = p
            .bias
            .as_ref()
            .is_none_or(|b| b.dtype == DType::F32 && b.layout.is_contiguous());
        let residual_fits = p.residual.as_ref().is_none_or(|r| {
            let last = r.layout.strides().last();
            r.dtype == DType::F32 && last.is_some_and(|t| t.factor() == 1 && t.dim().is_one())
        });
        let lies = Lying::of(&p.a, &p.m, &p.k).is_some() && Lying::of(&p.b, &p.n, &p.k).is_some();
        if !is_f32 || !plain || !bias_fits || !residual_fits || !lies {
            return Ok(None);
        }
        let Some([outer, inner]) = two_axes(e, p) else {
            return Ok(None);
        };
        if outer.size != Num::ONE {
            return Ok(None);
        }
        let mut batches = 1usize;
        for dim in &p.batch {
            batches = batches.saturating_mul(e.bound(dim)?);
        }
        let problem = GemmProblem {
            dtype: DType::F32,
            b_transposed: p.b.summed.unit,
            m: e.bound(&p.m)?,
            n: e.bound(&p.n)?,
            k: e.bound(&p.k)?,
        };
        let Some((tiling, mut seconds)) = Tiling::choose_for_pairs(e.caps, &problem, batches)
        else {
            return Ok(None);
        };
        let rates = &e.caps.device.rates;
        // What is left, and what is split before.
        seconds += 2.0 * rates.dispatch_s;
        for (side, own) in [(&p.a, problem.m), (&p.b, problem.n)] {
            let moves = side.batch.iter().any(|axis| axis.stride != Num::ZERO);
            let entries = if moves { batches } else { 1 };
            let blocks = (own.div_ceil(BLOCK as usize) as u64)
                .saturating_mul(problem.k.div_ceil(BLOCK as usize) as u64)
                .saturating_mul(entries as u64);
            if blocks.saturating_mul(4 * (BLOCK_LEN + 1)) > e.caps.max_binding_bytes {
                return Ok(None);
            }
            if !e.home(side.slot).is_constant() {
                let bytes = blocks.saturating_mul(8 * BLOCK_LEN) as f64;
                seconds += bytes / rates.bytes_per_s;
            }
        }
        Ok(Some(Pairs {
            tiling,
            seconds,
            batch: [inner.size, inner.a, inner.b],
        }))
    }

    /// The name of its tiling.
    pub(super) fn name(&self) -> String {
        self.tiling.to_string()
    }

    /// Emits the pairs, the products, and what is left.
    pub(super) fn dispatch(
        &self,
        e: &mut Emit<'_>,
        given: &Given,
        p: &Product,
    ) -> Result<(), CompileError> {
        let [batch, of_a, of_b] = self.batch;
        let a = split(e, p, &p.a, &p.m, [batch, of_a])?;
        let b = split(e, p, &p.b, &p.n, [batch, of_b])?;
        let [bm, bn, _] = self.tiling.tile;
        let tiles = [(&p.m, bm), (&p.n, bn)];
        let mut shape = p.batch.clone();
        for (dim, len) in tiles {
            shape.push(Dim::Known(e.bound(dim)?.div_ceil(len as usize)));
        }
        let rest = e.temp(DType::U32, &shape)?.slot;
        let splits = self.tiling.splits;
        if splits > 1 {
            let sums = coop::parts(e, p, splits, p.n.clone())?;
            self.tiles(e, &given.sums(sums), p, [&a, &b], rest);
            coop::add_parts(e, given, p, splits, sums, &Columns::all(given));
        } else {
            self.tiles(e, given, p, [&a, &b], rest);
        }
        self.rest(e, given, p, rest);
        Ok(())
    }

    /// Dispatches the tiles of pairs.
    fn tiles(
        &self,
        e: &mut Emit<'_>,
        given: &Given,
        p: &Product,
        sides: [&Split; 2],
        rest: SlotId,
    ) {
        let t = &self.tiling;
        let [a, b] = sides;
        let q = &given.params;
        let splits = Num::Const(i64::from(t.splits));
        let tape = e.tape();
        let len = tape.mul(q.m, q.n);
        let all = tape.mul(q.batch, len);
        let split_k = match t.splits {
            1 => q.k,
            n => {
                let steps = tape.ceil_div(q.k, n * BLOCK);
                tape.mul(steps, Num::Const(i64::from(BLOCK)))
            }
        };
        let params = GemmCoopParams {
            m: q.m,
            n: q.n,
            k: q.k,
            batches: q.batch,
            batch_inner: q.batch,
            splits,
            split_k,
            lda: a.blocks,
            ldb: b.blocks,
            ldc: q.n,
            ld_residual: q.bias_row,
            offset_a: Num::ZERO,
            offset_b: Num::ZERO,
            offset_c: Num::ZERO,
            offset_bias: q.bias_offset,
            offset_residual: q.bias_offset,
            outer_a: Num::ZERO,
            outer_b: Num::ZERO,
            outer_c: Num::ZERO,
            outer_residual: Num::ZERO,
            inner_a: a.of_batch,
            inner_b: b.of_batch,
            inner_c: len,
            inner_residual: Num::ZERO,
            split_c: all,
            len_c: tape.mul(all, splits),
        };
        let consts = self.consts(p, sides);
        let [bm, bn, _] = t.tile;
        let [x, y, _] = given.tile_grid(e, [bm, bn]);
        let limit = e.caps.max_grid;
        let tape = e.tape();
        let depth = tape.mul(q.batch, splits);
        let depth = tape.min(depth, limit);
        let [_, _, bias, c] = given.args;
        let args = [a.slot, b.slot, bias, bias, c, rest];
        e.dispatch(&PAIRS, &consts, &args, &params, [x, y, depth]);
    }

    /// The values of the kernel's constants.
    fn consts(&self, p: &Product, [a, b]: [&Split; 2]) -> Vec<u32> {
        let t = &self.tiling;
        let [fm, fn_, fk] = t.fragment;
        let [bm, bn, bk] = t.tile;
        let [wm, wn] = t.part;
        let in_parts = t.splits > 1;
        let activation = p.activation.filter(|_| !in_parts).map_or(0, |f| {
            let at = ACTIVATIONS.iter().position(|known| *known == f);
            1 + at.unwrap_or_else(|| unreachable!("invariant: the kernel has the activation"))
                as u32
        });
        let is_whole = |dim: &Dim| dim.known().is_some_and(|n| n.is_multiple_of(8));
        vec![
            t.threads(),
            t.subgroup,
            fm,
            fn_,
            fk,
            bm,
            bn,
            bk,
            wm,
            wn,
            u32::from(a.along),
            u32::from(b.along),
            activation,
            u32::from(p.bias.is_some() && !in_parts),
            u32::from(p.residual.is_some() && !in_parts),
            u32::from(is_whole(&p.n)),
            t.band,
        ]
    }

    /// Dispatches the tiles that are left.
    fn rest(&self, e: &mut Emit<'_>, given: &Given, p: &Product, rest: SlotId) {
        let [bm, bn, _] = self.tiling.tile;
        let own = [
            code(p.b.dtype),
            REST_SIDE,
            1,
            u32::from(p.a.own.unit),
            u32::from(p.b.own.unit),
            bm,
            bn,
        ];
        let consts: Vec<u32> = given.consts.into_iter().chain(own).collect();
        let [a, b, bias, y] = given.args;
        let grid = given.tile_grid(e, [REST_TILE; 2]);
        let args = [a, b, bias, y, rest];
        e.dispatch(REST.pick(p.activation), &consts, &args, &given.params, grid);
    }
}

/// The pairs of an operand.
struct Split {
    slot: SlotId,
    /// Blocks in all, and from one batch to the next.
    blocks: Num,
    of_batch: Num,
    along: bool,
}

/// The pairs of an operand of this size and k, with the batch and its distance.
fn split(
    e: &mut Emit<'_>,
    p: &Product,
    side: &Side,
    own: &Dim,
    [batch, distance]: [Num; 2],
) -> Result<Split, CompileError> {
    let lying = Lying::of(side, own, &p.k);
    let lying = lying.unwrap_or_else(|| unreachable!("invariant: only what lies in rows is taken"));
    let batch = if distance == Num::ZERO {
        Num::ONE
    } else {
        batch
    };
    let [rows, columns] = [lying.rows, lying.columns].map(|dim| e.num(dim));
    let tape = e.tape();
    let [down, across] = [rows, columns].map(|n| tape.ceil_div(n, BLOCK));
    let of_batch = tape.mul(down, across);
    let blocks = tape.mul(of_batch, batch);
    let halves = Halves {
        slot: side.slot,
        offset: side.offset,
        row: lying.row.stride,
        size: [rows, columns],
        batch: [batch, distance],
    };
    let mut entries = 1usize;
    if batch != Num::ONE {
        for dim in &p.batch {
            entries = entries.saturating_mul(e.bound(dim)?);
        }
    }
    let bounds = [lying.rows, lying.columns].map(|dim| e.bound(dim));
    let [most_rows, most_columns] = bounds.map(|n| n.map(|n| n.div_ceil(BLOCK as usize)));
    let most = entries
        .saturating_mul(most_rows?)
        .saturating_mul(most_columns?);
    let numbers = [
        rows,
        columns,
        batch,
        distance,
        side.offset,
        lying.row.stride,
    ];
    let is_known = numbers.iter().all(|n| matches!(n, Num::Const(_)));
    let slot = e.halves(halves, is_known, |e| {
        let len = Dim::Known(most.saturating_mul(BLOCK_LEN as usize + 1));
        let to = e.temp(DType::U32, &[len])?.slot;
        let params = SplitBlocksParams {
            offset: side.offset,
            row: lying.row.stride,
            rows,
            columns,
            across,
            of_batch,
            blocks,
            batch: distance,
        };
        let grid = e.flat_grid(blocks);
        e.dispatch(&SPLIT_BLOCKS, &[], &[side.slot, to], &params, grid);
        Ok(to)
    })?;
    Ok(Split {
        slot,
        blocks,
        of_batch: if distance == Num::ZERO {
            Num::ZERO
        } else {
            of_batch
        },
        along: lying.along,
    })
}
