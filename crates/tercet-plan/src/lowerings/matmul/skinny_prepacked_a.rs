//! Some dozens of rows times packed weights: the kernels of `shaders/vulkan/include/few_rows_laid.glsl`, the rows that they
//! read, and how a workgroup of them shares its columns.
//!
//! Rows of F32 whose products may be rounded ([`CompileOptions::products`]) are one number of F16 for each element, times a
//! power of two of 256 neighbours, so that they keep their range; else two.
//!
//! [`CompileOptions::products`]: tercet_ir::CompileOptions::products

use tercet_ir::{CompileError, DType, Dim, Scheme};

use super::portable::Given;
use super::product::Product;
use super::skinny::{BLOCK_LOAD, ROW_LOAD, SLICE, SUBGROUP, TILE, most_subgroups};
use crate::caps::Caps;
use crate::emit::Emit;
use crate::families::dequant::Blocks;
use crate::families::gemm_coop::module;
use crate::families::{code, portable};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `few_rows_common.glsl` where rows are laid out.
    pub struct LaidRowsParams {
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
        slices: U32,
        units_at: U32,
        sums_at: U32,
    }
    /// The block of `matmul/lay_rows.wgsl`.
    pub struct LayRowsParams {
        m: U32,
        k: U32,
        offset: U32,
        row: U32,
        rows: U32,
        slices: U32,
        units_at: U32,
        sums_at: U32,
    }
}

/// Rows for `few_rows_laid.glsl`.
pub(super) static LAY_ROWS: Kernel<LayRowsParams> = Kernel::wgsl(
    "lay_rows",
    &[PRELUDE, portable!("matmul/lay_rows.wgsl")],
    &[Access::Read, Access::Write],
    &["X_TYPE", "ORDER", "NUMBERS", "ROWS"],
);

/// Rows, weights, what is added, results, the rows as they are laid out.
const ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Read,
];

macro_rules! laid_rows {
    ($($name:ident $format:literal),*) => {
        $(pub(super) static $name: Kernel<LaidRowsParams> = Kernel::spirv(
            concat!("few_rows_laid", $format),
            module!(concat!("few_rows_laid", $format, ".spv")),
            ARGS,
            &[
                "THREADS", "TILES", "PARTS", "ROUNDS", "ROWS", "WHOLE", "BIAS", "ACTIVATION", "A_TYPE", "Y_TYPE",
                "GATED", "NUMBERS", "ROWS_AHEAD",
            ],
        );)*

        #[cfg(test)]
        pub(super) static ALL: &[&Kernel<LaidRowsParams>] = &[$(&$name),*];
    };
}

laid_rows!(Q4_0 "_q4_0", Q8_0 "_q8_0", Q4_K "_q4_k", Q6_K "_q6_k");

/// What the kernels of a scheme are, with its place in ORDER of `lay_rows.wgsl`.
static OF_SCHEMES: [(Scheme, &Kernel<LaidRowsParams>, u32); 4] = [
    (Scheme::Q4_0, &Q4_0, 1),
    (Scheme::Q8_0, &Q8_0, 2),
    (Scheme::Q4K, &Q4_K, 3),
    (Scheme::Q6K, &Q6_K, 4),
];

/// The fewest rows of a workgroup: up to so many have a way of their own.
pub(super) const FEWEST: u32 = 16;
/// The most matrices of 8 rows of a step that an invocation holds.
const MOST_MATRICES: u32 = 4;
/// Registers of an invocation.
const REGISTERS: u32 = 128;
/// Words of a slice of a row and number, and those of its sums for minima.
const SLICE_WORDS: usize = SLICE / 2;
const SUM_WORDS: usize = 8;
/// The most parts of k of a workgroup.
const MOST_PARTS: u32 = 8;
/// Bytes of the sums of 8 rows of a subgroup.
const SHARE_BYTES: u32 = 16 * SUBGROUP;
const THREADS: u32 = 256;

/// Rows of a workgroup, where there are up to `most` of them.
fn rows_of(numbers: u32, most: usize) -> u32 {
    let all = (most as u32).next_multiple_of(8);
    all.clamp(FEWEST, 8 * MOST_MATRICES / numbers)
}

/// A product of some dozens of rows that the kernels take.
pub(super) struct Laid {
    kernel: &'static Kernel<LaidRowsParams>,
    order: u32,
    has_minima: bool,
    blocks: usize,
    numbers: u32,
    /// Rows of a workgroup, and all at the bounds.
    rows: u32,
    most: usize,
    split: Split,
}

/// How columns and k are shared.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Split {
    /// Tiles of a workgroup.
    tiles: u32,
    /// Parts of k, each with a subgroup for every tile.
    parts: u32,
    /// Slices of a part.
    rounds: u32,
    /// The parts are all of k, no more.
    is_whole: bool,
}

impl Split {
    /// What keeps all units busy with the fewest tiles one after the other; none where shared memory is too small for the
    /// sums of a subgroup.
    fn of(caps: &Caps, [n, k]: [usize; 2], rows: u32) -> Option<Split> {
        let fit = caps.workgroup_bytes / (SHARE_BYTES * (rows / 8));
        let most = most_subgroups(caps, REGISTERS)
            .min(caps.max_workgroup / SUBGROUP)
            .min(fit);
        let slices = k.div_ceil(SLICE);
        let all = n.div_ceil(TILE as usize);
        let mut best: Option<(f64, Split)> = None;
        for tiles in 1..=most {
            for parts in 1..=MOST_PARTS.min(most / tiles).min(slices as u32) {
                let rounds = slices.div_ceil(parts as usize);
                let turns = all.div_ceil(tiles as usize).div_ceil(caps.units());
                let taken = parts as usize * rounds;
                let work = (turns * tiles as usize * taken) as f64 / slices as f64;
                // Few subgroups leave a unit waiting for memory, and tiles of a workgroup share what they read of rows.
                let busy = f64::from(tiles * parts) / f64::from(most);
                let shared = 1.0 + 0.25 / f64::from(tiles);
                let cost = work * shared / busy.min(1.0).sqrt();
                if best.is_none_or(|(least, _)| cost < least) {
                    let split = Split {
                        tiles,
                        parts,
                        rounds: rounds as u32,
                        is_whole: taken * SLICE == k,
                    };
                    best = Some((cost, split));
                }
            }
        }
        best.map(|(_, split)| split)
    }
}

impl Laid {
    /// How a product with weights in blocks is taken, of which runs have up to `most` rows; none where it is not.
    pub(super) fn of(
        e: &Emit<'_>,
        p: &Product,
        blocks: &Blocks,
        most: u32,
    ) -> Result<Option<Laid>, CompileError> {
        let found = OF_SCHEMES
            .iter()
            .find(|(scheme, ..)| *scheme == blocks.scheme);
        let Some(&(_, kernel, order)) = found else {
            return Ok(None);
        };
        let is_apart = blocks.params.is_some() && p.b.is_multiple(BLOCK_LOAD, p.b.own);
        let (n, k) = (e.bound(&p.columns())?, p.k.known().unwrap_or(0));
        let is_matrix = p.batch.iter().all(Dim::is_one) && p.norm.is_none() && p.is_apart();
        let reads_rows = p.a.summed.unit && p.a.is_multiple(ROW_LOAD, p.a.own);
        let takes = e.caps.coop_lanes && is_apart && is_matrix && reads_rows;
        if !takes || n == 0 || k == 0 || !p.a.dtype.is_float() {
            return Ok(None);
        }
        let is_exact = p.a.dtype == DType::F32 && e.facts.products.is_none();
        let numbers = 1 + u32::from(is_exact);
        let rows = rows_of(numbers, e.bound(&p.m)?.min(most as usize));
        let n = n << u32::from(p.gate.is_some());
        let split = Split::of(e.caps, [n, k], rows);
        Ok(split.map(|split| Laid {
            kernel,
            order,
            has_minima: blocks.scheme == Scheme::Q4K,
            blocks: k / blocks.scheme.block_len(),
            numbers,
            rows,
            most: (most as usize).next_multiple_of(rows as usize),
            split,
        }))
    }

    /// Lays the rows out, and multiplies.
    pub(super) fn dispatch(
        &self,
        e: &mut Emit<'_>,
        p: &Product,
        given: &Given,
    ) -> Result<(), CompileError> {
        let all = &given.params;
        let Split {
            tiles,
            parts,
            rounds,
            is_whole,
        } = self.split;
        let slices = parts * rounds;
        let places = self.most * slices as usize;
        let units_at = places * SLICE_WORDS * self.numbers as usize;
        let sums_at = units_at + places;
        let words = sums_at + usize::from(self.has_minima) * places * SUM_WORDS;
        let laid = e.temp(DType::U32, &[Dim::Known(words)])?;
        let row_blocks = e.tape().ceil_div(all.m, self.rows);
        let rows = e.tape().mul(row_blocks, Num::Const(i64::from(self.rows)));
        let [slices, units_at, sums_at] =
            [slices as usize, units_at, sums_at].map(|n| Num::Const(n as i64));
        let params = LayRowsParams {
            m: all.m,
            k: all.k,
            offset: all.a_offset,
            row: all.a_row,
            rows,
            slices,
            units_at,
            sums_at,
        };
        let teams = e.tape().mul(rows, slices);
        let grid = e.grid_of(teams, THREADS / SUBGROUP);
        let consts = [code(p.a.dtype), self.order, self.numbers, self.rows];
        let [a, ..] = given.args;
        e.dispatch(&LAY_ROWS, &consts, &[a, laid.slot], &params, grid);
        let params = LaidRowsParams {
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
            slices,
            units_at,
            sums_at,
        };
        let threads = tiles * parts * SUBGROUP;
        let [few, more] = e.caps.device.rates.rows.laid_ahead;
        let is_few = self.rows / 8 * self.numbers <= MOST_MATRICES / 2;
        let ahead = if is_few { few } else { more };
        let mut consts = vec![
            threads,
            tiles,
            parts,
            rounds,
            self.rows,
            u32::from(is_whole),
        ];
        consts.extend(given.consts); // BIAS to Y_TYPE
        consts.extend([u32::from(p.gate.is_some()), self.numbers, ahead]);
        let groups = e.tape().ceil_div(all.n, tiles * TILE);
        let [x, y, _] = e.flat_grid(groups);
        let args: Vec<SlotId> = given.args.into_iter().chain([laid.slot]).collect();
        e.dispatch(self.kernel, &consts, &args, &params, [x, y, row_blocks]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::gemm_coop;

    #[test]
    fn the_modules_declare_the_block_the_arguments_and_the_constants() {
        for kernel in ALL {
            gemm_coop::tests::agrees(&kernel.def);
        }
    }

    #[test]
    fn all_of_k_is_taken_and_sums_fit() {
        let caps = Caps::h200();
        for rows in [16, 24, 32] {
            for n in [16, 1_000, 4_096, 28_672, 151_936] {
                for k in [32, 1_000, 4_096, 14_336] {
                    let split = Split::of(&caps, [n, k], rows).unwrap();
                    let covered = (split.parts * split.rounds) as usize * SLICE;
                    assert!(
                        (k..k + split.parts as usize * SLICE).contains(&covered),
                        "{split:?}"
                    );
                    let subgroups = split.tiles * split.parts;
                    assert!(subgroups * SHARE_BYTES * (rows / 8) <= caps.workgroup_bytes);
                    assert!(subgroups <= most_subgroups(&caps, REGISTERS), "{split:?}");
                    assert_eq!(split.is_whole, covered == k);
                }
            }
        }
    }
}
