//! Small-M GEMM: dozens of rows times quantized weights, with prepacked rows. This file contains
//! the kernels of `shaders/vulkan/include/few_rows_laid.glsl`, the prepacking of rows, and the work
//! split of a workgroup.
//!
//! Each element of an F32 row is stored as two F16 numbers. If rounding is allowed
//! ([`CompileOptions::matmul_precision`]), one F16 number per element suffices. The F16 numbers
//! have a common power-of-two scale per 256 elements, which preserves the range of F32.
//!
//! [`CompileOptions::matmul_precision`]: tercet_ir::CompileOptions::matmul_precision

use tercet_ir::{CompileError, DType, Dim, Scheme};

use super::portable::MatMulArgs;
use super::product::MatMulProblem;
use super::skinny::{BLOCK_LOAD, ROW_LOAD, SLICE, SUBGROUP, TILE, max_subgroups};
use crate::caps::DeviceCaps;
use crate::emit::LoweringCtx;
use crate::kernel::{ArgAccess, TypedKernel};
use crate::lowerings::dequant::PackedWeights;
use crate::lowerings::gemm_coop::module;
use crate::lowerings::{code, portable};
use crate::program::SlotId;
use crate::scalar::PRELUDE;
use crate::sym_int::SymInt;

crate::params! {
    /// Parameter block of the kernels in `few_rows_common.glsl` that read prepacked rows.
    pub struct SkinnyPrepackedAParams {
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
    /// Parameter block of `matmul/lay_rows.wgsl`.
    pub struct PrepackAParams {
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

/// Prepacks rows for `few_rows_laid.glsl`.
pub(super) static LAY_ROWS: TypedKernel<PrepackAParams> = TypedKernel::wgsl(
    "lay_rows",
    &[PRELUDE, portable!("matmul/lay_rows.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["X_TYPE", "ORDER", "NUMBERS", "ROWS"],
);

/// Arguments: rows, weights, bias or residual, results, prepacked rows.
const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
];

macro_rules! laid_rows {
    ($($name:ident $format:literal),*) => {
        $(pub(super) static $name: TypedKernel<SkinnyPrepackedAParams> = TypedKernel::spirv(
            concat!("few_rows_laid", $format),
            module!(concat!("few_rows_laid", $format, ".spv")),
            ARGS,
            &[
                "THREADS", "TILES", "PARTS", "ROUNDS", "ROWS", "WHOLE", "BIAS", "ACTIVATION", "A_TYPE", "Y_TYPE",
                "GATED", "NUMBERS", "ROWS_AHEAD",
            ],
        );)*

        #[cfg(test)]
        pub(super) static ALL: &[&TypedKernel<SkinnyPrepackedAParams>] = &[$(&$name),*];
    };
}

laid_rows!(Q4_0 "_q4_0", Q8_0 "_q8_0", Q4_K "_q4_k", Q6_K "_q6_k");

/// For each quantization scheme, its small-M GEMM kernel and its value of the constant `ORDER` of
/// `lay_rows.wgsl`.
static OF_SCHEMES: [(Scheme, &TypedKernel<SkinnyPrepackedAParams>, u32); 4] = [
    (Scheme::Q4_0, &Q4_0, 1),
    (Scheme::Q8_0, &Q8_0, 2),
    (Scheme::Q4K, &Q4_K, 3),
    (Scheme::Q6K, &Q6_K, 4),
];

/// Minimum number of rows per workgroup. Runs with at most this number of rows use a separate
/// branch of the shape switch.
pub(super) const MIN_PREPACKED_ROWS: u32 = 16;
/// Maximum number of 8-row activation fragments that a thread's registers hold per k step.
const MAX_MATRICES: u32 = 4;
/// Registers per thread.
const REGISTERS: u32 = 128;
/// 32-bit words that a slice of a row takes per F16 number of an element (`SLICE_WORDS`), and words
/// of the slice's activation sums, which minima require (`SUM_WORDS`).
const SLICE_WORDS: usize = SLICE / 2;
const SUM_WORDS: usize = 8;
/// Maximum split-K factor within a workgroup.
const MAX_SPLIT_K: u32 = 8;
/// Bytes of shared memory for a subgroup's partial sums of 8 rows.
const SHARE_BYTES: u32 = 16 * SUBGROUP;
const THREADS: u32 = 256;

/// Number of rows per workgroup if runs have at most `most` rows.
fn rows_of(numbers: u32, most: usize) -> u32 {
    let all = (most as u32).next_multiple_of(8);
    all.clamp(MIN_PREPACKED_ROWS, 8 * MAX_MATRICES / numbers)
}

/// A small-M GEMM with prepacked rows.
pub(super) struct PrepackedASkinny {
    kernel: &'static TypedKernel<SkinnyPrepackedAParams>,
    order: u32,
    has_minima: bool,
    blocks: usize,
    numbers: u32,
    /// Rows per workgroup, and maximum number of rows of a run.
    rows: u32,
    max_rows: usize,
    split: PrepackedASplit,
}

/// Split of columns and of k within a workgroup.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PrepackedASplit {
    /// Tiles per workgroup.
    tiles: u32,
    /// Split-K factor within the workgroup; one subgroup processes each pair of a tile and a part
    /// of k.
    parts: u32,
    /// Number of slices in each part of k.
    rounds: u32,
    /// True if the parts cover k exactly, without a partial slice at the end.
    is_whole: bool,
}

impl PrepackedASplit {
    /// The split with the lowest estimated cost: few consecutive tiles per compute unit, and enough
    /// subgroups to saturate the unit. `None` if shared memory is too small for the partial sums of
    /// one subgroup.
    fn new(caps: &DeviceCaps, [n, k]: [usize; 2], rows: u32) -> Option<PrepackedASplit> {
        let fit = caps.workgroup_bytes / (SHARE_BYTES * (rows / 8));
        let most = max_subgroups(caps, REGISTERS)
            .min(caps.max_workgroup / SUBGROUP)
            .min(fit);
        let slices = k.div_ceil(SLICE);
        let all = n.div_ceil(TILE as usize);
        let mut best: Option<(f64, PrepackedASplit)> = None;
        for tiles in 1..=most {
            for parts in 1..=MAX_SPLIT_K.min(most / tiles).min(slices as u32) {
                let rounds = slices.div_ceil(parts as usize);
                let turns = all.div_ceil(tiles as usize).div_ceil(caps.units());
                let taken = parts as usize * rounds;
                let work = (turns * tiles as usize * taken) as f64 / slices as f64;
                // A compute unit with few subgroups stalls on memory; the tiles of a workgroup
                // share the loads of activation rows.
                let busy = f64::from(tiles * parts) / f64::from(most);
                let shared = 1.0 + 0.25 / f64::from(tiles);
                let cost = work * shared / busy.min(1.0).sqrt();
                if best.is_none_or(|(least, _)| cost < least) {
                    let split = PrepackedASplit {
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

impl PrepackedASkinny {
    /// The plan for quantized weights and at most `most` rows per run; `None` if not supported.
    pub(super) fn new(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        blocks: &PackedWeights,
        most: u32,
    ) -> Result<Option<PrepackedASkinny>, CompileError> {
        let found = OF_SCHEMES
            .iter()
            .find(|(scheme, ..)| *scheme == blocks.scheme);
        let Some(&(_, kernel, order)) = found else {
            return Ok(None);
        };
        let is_apart = blocks.params.is_some() && p.b.is_multiple(BLOCK_LOAD, p.b.own_axis);
        let (n, k) = (e.bound(&p.columns())?, p.k.known().unwrap_or(0));
        let is_matrix = p.batch.iter().all(Dim::is_one) && p.norm.is_none() && p.is_apart();
        let reads_rows = p.a.summed.unit && p.a.is_multiple(ROW_LOAD, p.a.own_axis);
        let takes = e.caps.coop_fragment_layout && is_apart && is_matrix && reads_rows;
        if !takes || n == 0 || k == 0 || !p.a.dtype.is_float() {
            return Ok(None);
        }
        let is_exact = p.a.dtype == DType::F32 && e.facts.reduced_matmul_dtype.is_none();
        let numbers = 1 + u32::from(is_exact);
        let rows = rows_of(numbers, e.bound(&p.m)?.min(most as usize));
        let n = n << u32::from(p.gate.is_some());
        let split = PrepackedASplit::new(e.caps, [n, k], rows);
        Ok(split.map(|split| PrepackedASkinny {
            kernel,
            order,
            has_minima: blocks.scheme == Scheme::Q4K,
            blocks: k / blocks.scheme.block_len(),
            numbers,
            rows,
            max_rows: (most as usize).next_multiple_of(rows as usize),
            split,
        }))
    }

    /// Prepacks the rows and dispatches the GEMM.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        given: &MatMulArgs,
    ) -> Result<(), CompileError> {
        let all = &given.params;
        let PrepackedASplit {
            tiles,
            parts,
            rounds,
            is_whole,
        } = self.split;
        let slices = parts * rounds;
        let places = self.max_rows * slices as usize;
        let units_at = places * SLICE_WORDS * self.numbers as usize;
        let sums_at = units_at + places;
        let words = sums_at + usize::from(self.has_minima) * places * SUM_WORDS;
        let laid = e.temp(DType::U32, &[Dim::Known(words)])?;
        let row_blocks = e.tape().ceil_div(all.m, self.rows);
        let rows = e
            .tape()
            .mul(row_blocks, SymInt::Const(i64::from(self.rows)));
        let [slices, units_at, sums_at] =
            [slices as usize, units_at, sums_at].map(|n| SymInt::Const(n as i64));
        let params = PrepackAParams {
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
        let params = SkinnyPrepackedAParams {
            m: all.m,
            n: all.n,
            k: all.k,
            blocks: SymInt::Const(self.blocks as i64),
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
        let [few, more] = e.caps.device.rates.rows.prepacked_prefetch;
        let is_few = self.rows / 8 * self.numbers <= MAX_MATRICES / 2;
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
    use crate::lowerings::gemm_coop;

    #[test]
    fn the_modules_declare_the_block_the_arguments_and_the_constants() {
        for kernel in ALL {
            gemm_coop::tests::agrees(&kernel.def);
        }
    }

    #[test]
    fn all_of_k_is_taken_and_sums_fit() {
        let caps = DeviceCaps::h200();
        for rows in [16, 24, 32] {
            for n in [16, 1_000, 4_096, 28_672, 151_936] {
                for k in [32, 1_000, 4_096, 14_336] {
                    let split = PrepackedASplit::new(&caps, [n, k], rows).unwrap();
                    let covered = (split.parts * split.rounds) as usize * SLICE;
                    assert!(
                        (k..k + split.parts as usize * SLICE).contains(&covered),
                        "{split:?}"
                    );
                    let subgroups = split.tiles * split.parts;
                    assert!(subgroups * SHARE_BYTES * (rows / 8) <= caps.workgroup_bytes);
                    assert!(subgroups <= max_subgroups(&caps, REGISTERS), "{split:?}");
                    assert_eq!(split.is_whole, covered == k);
                }
            }
        }
    }
}
