//! Two to eight rows times weights, on matrices of F16 that invocations fill themselves.
//!
//! A device says nothing of how the elements of a matrix lie over a subgroup; where they lie as these kernels
//! expect, which [`lanes`](crate::lanes) finds out, weights go from memory to registers to products and
//! each is decoded once for all rows. The header of `shaders/vulkan/include/few_rows.glsl` has the formulas.

use tercet_ir::{CompileError, DType, Dim, Scheme};

use super::portable::Given;
use super::product::Product;
use crate::emit::Emit;
use crate::families::dequant::Blocks;
use crate::families::gemm_coop::module;
use crate::families::tiles::units_of;
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `few_rows_common.glsl`.
    pub struct FewRowsParams {
        m: U32,
        n: U32,
        k: U32,
        blocks: U32,
        a_offset: U32,
        a_row: U32,
        b_offset: U32,
        b_col: U32,
        bias_offset: U32,
        bias_row: U32,
        bias_stride: U32,
        zero: U32,
    }
}

/// Rows, weights, what is added, results.
const ARGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Write];

const CONSTS: &[&str] = &[
    "THREADS",
    "TILES",
    "PASS",
    "ROUNDS",
    "ROWS",
    "WHOLE",
    "BIAS",
    "ACTIVATION",
    "A_TYPE",
    "Y_TYPE",
    "GATED",
];

macro_rules! few {
    ($name:ident $text:literal, $file:literal) => {
        pub(super) static $name: Kernel<FewRowsParams> =
            Kernel::spirv($text, module!($file), ARGS, CONSTS);
    };
}

few!(F16 "few_rows_f16", "few_rows_f16.spv");
few!(Q4_0 "few_rows_q4_0", "few_rows_q4_0.spv");
few!(Q8_0 "few_rows_q8_0", "few_rows_q8_0.spv");
few!(Q4_K "few_rows_q4_k", "few_rows_q4_k.spv");
few!(Q6_K "few_rows_q6_k", "few_rows_q6_k.spv");

/// The kernels of blocks.
static OF_SCHEMES: [(Scheme, &Kernel<FewRowsParams>); 4] = [
    (Scheme::Q4_0, &Q4_0),
    (Scheme::Q8_0, &Q8_0),
    (Scheme::Q4K, &Q4_K),
    (Scheme::Q6K, &Q6_K),
];

/// Columns of a matrix of weights.
const TILE: u32 = 16;
/// The part of k that a subgroup has at a time.
const SLICE: usize = 256;
/// Invocations of a subgroup.
const SUBGROUP: u32 = 32;
/// The most subgroups of a workgroup: half the registers of each are rows.
const MOST_SUBGROUPS: usize = 16;
/// Sums of a tile and a subgroup, with what keeps their columns apart in shared memory.
const SHARE_BYTES: u32 = 4 * 8 * (TILE + 4);
/// Elements of rows that are read at a time, and of weights.
const ROW_LOAD: u64 = 4;
const FLOAT_LOAD: u64 = 8;
const BLOCK_LOAD: u64 = 16;

/// A product that one of the kernels takes.
pub(super) struct Few {
    kernel: &'static Kernel<FewRowsParams>,
    /// Blocks of a row of weights; 0 where there are none.
    blocks: usize,
    share: Share,
    /// Rows that the kernel has sums for, 4 or 8.
    rows: u32,
}

/// How columns and k are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Share {
    subgroups: u32,
    /// Tiles of a workgroup, and how many of them wait to be stored at once.
    tiles: u32,
    pass: u32,
    /// How often the subgroups take their parts of k.
    rounds: u32,
    /// These parts are all of k, no more.
    is_whole: bool,
}

impl Share {
    fn of(e: &Emit<'_>, n: usize, k: usize) -> Option<Share> {
        let slices = k.div_ceil(SLICE);
        let most = (e.caps.max_workgroup / SUBGROUP) as usize;
        let rounds = slices.div_ceil(most.clamp(1, MOST_SUBGROUPS));
        let subgroups = slices.div_ceil(rounds);
        let together = (MOST_SUBGROUPS / subgroups).max(1);
        let tiles = n
            .div_ceil(TILE as usize)
            .div_ceil(units_of(e.caps) * together);
        let bytes = e.caps.workgroup_bytes / together as u32;
        let most = (bytes / (subgroups as u32 * SHARE_BYTES)) as usize;
        let passes = tiles.div_ceil(most.max(1));
        (most > 0).then(|| Share {
            subgroups: subgroups as u32,
            tiles: tiles as u32,
            pass: tiles.div_ceil(passes) as u32,
            rounds: rounds as u32,
            is_whole: subgroups * rounds * SLICE == k,
        })
    }
}

impl Few {
    /// How the floats of a product are taken; none where they are not. A run has up to `rows` rows.
    pub(super) fn floats(
        e: &Emit<'_>,
        p: &Product,
        rows: u32,
    ) -> Result<Option<Few>, CompileError> {
        let k = p.k.known().unwrap_or(0);
        let whole = k.is_multiple_of(FLOAT_LOAD as usize) && p.b.is_multiple(FLOAT_LOAD, p.b.own);
        match p.b.dtype == DType::F16 && p.b.summed.unit && whole {
            true => Few::with(e, p, rows, &F16, 0),
            false => Ok(None),
        }
    }

    /// The same for weights in blocks.
    pub(super) fn packed(
        e: &Emit<'_>,
        p: &Product,
        blocks: &Blocks,
        rows: u32,
    ) -> Result<Option<Few>, CompileError> {
        let found = OF_SCHEMES
            .iter()
            .find(|(scheme, _)| *scheme == blocks.scheme);
        let Some((_, kernel)) = found else {
            return Ok(None);
        };
        let k = p.k.known().unwrap_or(0);
        let is_apart = blocks.params.is_some() && p.b.is_multiple(BLOCK_LOAD, p.b.own);
        match is_apart {
            true => Few::with(e, p, rows, kernel, k / blocks.scheme.block_len()),
            false => Ok(None),
        }
    }

    fn with(
        e: &Emit<'_>,
        p: &Product,
        rows: u32,
        kernel: &'static Kernel<FewRowsParams>,
        blocks: usize,
    ) -> Result<Option<Few>, CompileError> {
        let (n, k) = (e.bound(&p.columns())?, p.k.known().unwrap_or(0));
        let takes = rows > 1 && e.caps.coop_lanes;
        let is_matrix = p.batch.iter().all(Dim::is_one) && p.norm.is_none() && p.is_apart();
        let reads_rows = p.a.summed.unit && p.a.is_multiple(ROW_LOAD, p.a.own);
        if !takes || !is_matrix || !reads_rows || n == 0 || k == 0 {
            return Ok(None);
        }
        let n = n << u32::from(p.gate.is_some());
        let few = e.bound(&p.m)? <= 4;
        Ok(Share::of(e, n, k).map(|share| Few {
            kernel,
            blocks,
            share,
            rows: if few { 4 } else { 8 },
        }))
    }

    /// Runs it.
    pub(super) fn dispatch(&self, e: &mut Emit<'_>, p: &Product, given: &Given) {
        let all = &given.params;
        let params = FewRowsParams {
            m: all.m,
            n: all.n,
            k: all.k,
            blocks: Num::Const(self.blocks as i64),
            a_offset: all.a_offset,
            a_row: all.a_row,
            b_offset: all.b_offset,
            b_col: all.b_col,
            bias_offset: all.bias_offset,
            bias_row: all.bias_row,
            bias_stride: all.bias_stride,
            zero: all.zero,
        };
        let Share {
            subgroups,
            tiles,
            pass,
            rounds,
            is_whole,
        } = self.share;
        let [bias, activation, a_type, y_type] = given.consts;
        let consts = [
            subgroups * SUBGROUP,
            tiles,
            pass,
            rounds,
            self.rows,
            u32::from(is_whole),
            bias,
            activation,
            a_type,
            y_type,
            u32::from(p.gate.is_some()),
        ];
        let groups = e.tape().ceil_div(all.n, tiles * TILE);
        let grid = e.flat_grid(groups);
        e.dispatch(self.kernel, &consts, &given.args, &params, grid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::gemm_coop;

    #[test]
    fn the_modules_declare_the_block_the_arguments_and_the_constants() {
        for kernel in [&F16, &Q4_0, &Q8_0, &Q4_K, &Q6_K] {
            gemm_coop::tests::agrees(&kernel.def);
        }
    }
}
