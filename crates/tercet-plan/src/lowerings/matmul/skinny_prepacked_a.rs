//! Small-M GEMM: dozens of rows times quantized weights, with prepacked rows. This file contains
//! the kernels of `shaders/vulkan/include/few_rows_laid.glsl`, the prepacking of rows, and the work
//! split of a workgroup.
//!
//! Each element of an F32 row is stored as two F16 numbers. If rounding is allowed
//! ([`CompileOptions::matmul_precision`]), one F16 number per element suffices. The F16 numbers
//! have a common power-of-two scale per 256 elements, which preserves the range of F32.
//!
//! [`CompileOptions::matmul_precision`]: tercet_ir::CompileOptions::matmul_precision

use std::ops::RangeInclusive;

use tercet_ir::{CompileError, DType, Dim, Scheme};

use super::coop::{self, ColumnRange};
use super::portable::matmul_args;
use super::product::MatMulProblem;
use super::skinny::{ROW_LOAD, SLICE, SUBGROUP, TILE, max_subgroups};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::dequant::PackedWeights;
use crate::lowerings::gemm_coop::module;
use crate::lowerings::{code, norm, portable};
use crate::scalar::PRELUDE;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

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
    &[
        PRELUDE,
        portable!("matmul/lay_slice.wgsl"),
        portable!("matmul/lay_rows.wgsl"),
    ],
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
                "GATED", "NUMBERS", "CHUNK", "SPLITS", "AHEAD", "PASS", "POOL",
                "ROWS_AHEAD",
            ],
        );)*
    };
}

laid_rows!(Q4_0 "_q4_0", Q8_0 "_q8_0", Q4_K "_q4_k", Q6_K "_q6_k");

/// For each quantization scheme, its small-M GEMM kernel, its value of the constant `ORDER` of
/// `lay_slice.wgsl`, and the loads of weights in flight per thread: with activations in registers, and in
/// shared memory.
static OF_SCHEMES: [(Scheme, &TypedKernel<SkinnyPrepackedAParams>, u32, [u32; 2]); 4] = [
    (Scheme::Q4_0, &Q4_0, 1, [1, 1]),
    (Scheme::Q8_0, &Q8_0, 2, [8, 8]),
    (Scheme::Q4K, &Q4_K, 3, [4, 2]),
    (Scheme::Q6K, &Q6_K, 4, [1, 1]),
];

/// Numbers of rows of a workgroup. Runs with at most this number of rows use a separate branch of the shape switch.
pub const ROW_BLOCKS: [u32; 4] = [8, 16, 32, 64];
/// Alignment in bytes that loads of quantized blocks require.
const BLOCK_LOAD: u64 = 16;
/// Registers per thread: with at most 32 rows, and with more.
const REGISTERS: [u32; 2] = [128, 240];
/// 32-bit words that a slice of a row takes per F16 number of an element (`SLICE_WORDS`), and words
/// of the slice's activation sums, which minima require (`SUM_WORDS`).
const SLICE_WORDS: usize = SLICE / 2;
const SUM_WORDS: usize = 8;
/// Maximum split-K factor within a workgroup, and across workgroups.
const MAX_SPLIT_K: u32 = 8;
/// Steps of a stage in shared memory, if it is large enough.
const CHUNK: u32 = 4;
/// Bytes of shared memory of the activations of 8 rows in a step, per F16 number of an element, and of the partial
/// sums of 8 rows of a subgroup.
const STEP_BYTES: u32 = 16 * SUBGROUP;
const SHARE_BYTES: u32 = 16 * SUBGROUP;
const THREADS: u32 = 256;

/// Number of rows per workgroup if runs have at most `most` rows.
fn rows_of(most: usize) -> u32 {
    let fits = ROW_BLOCKS.iter().find(|rows| **rows as usize >= most);
    fits.copied().unwrap_or(ROW_BLOCKS[ROW_BLOCKS.len() - 1])
}

/// The place of rows that a kernel stores prepacked.
pub(crate) struct PrepackedRows {
    pub(crate) slot: SlotId,
    /// Number of rows with those that pad the last block.
    pub(crate) rows: SymInt,
    pub(crate) slices: SymInt,
    /// Offsets of the scales and of the sums, in words.
    pub(crate) units_at: SymInt,
    pub(crate) sums_at: SymInt,
    /// Values of the constants `ORDER`, `NUMBERS` and `ROWS`.
    pub(crate) consts: [u32; 3],
}

/// A small-M GEMM with prepacked rows.
pub(super) struct PrepackedASkinny {
    kernel: &'static TypedKernel<SkinnyPrepackedAParams>,
    order: u32,
    /// Loads of weights in flight per thread.
    weight_loads: u32,
    has_minima: bool,
    blocks: usize,
    numbers: u32,
    /// Rows per workgroup, and maximum number of rows of a run.
    rows: u32,
    max_rows: usize,
    split: PrepackedASplit,
}

/// Split of columns, rows and k among subgroups and workgroups.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrepackedASplit {
    /// Tiles per workgroup; one subgroup processes a tile and a part of k.
    pub tiles: u32,
    /// Split-K factor within the workgroup.
    pub parts: u32,
    /// Split-K factor across workgroups.
    pub splits: u32,
    /// Number of slices in each part of k.
    pub rounds: u32,
    /// Steps of a stage in shared memory; 0 if activations are in registers.
    chunk: u32,
    /// Groups of 8 rows of a subgroup whose sums are in shared memory at once.
    pub pass: u32,
    /// True if the parts cover k exactly, without a partial slice at the end.
    pub is_whole: bool,
}

/// The matmul that a [`PrepackedASplit`] divides.
#[derive(Clone, Copy, Debug)]
pub struct PrepackedAShape {
    /// Number of columns with those of a gate.
    pub n: usize,
    /// Length of k.
    pub k: usize,
    /// Rows of a workgroup.
    pub rows: u32,
    /// F16 numbers per element.
    pub numbers: u32,
    /// True if another kernel may add partial sums.
    pub can_split: bool,
}

impl PrepackedASplit {
    /// The split with the lowest estimated cost; `None` if shared memory is too small.
    ///
    /// The parts of k, and with them the bits of results, are those of the smallest block for each number of rows.
    pub fn new(caps: &DeviceCaps, shape: PrepackedAShape) -> Option<PrepackedASplit> {
        let of_smallest = PrepackedAShape {
            rows: ROW_BLOCKS[0],
            ..shape
        };
        let most = if shape.can_split { MAX_SPLIT_K } else { 1 };
        let smallest = PrepackedASplit::in_registers(caps, of_smallest, 1..=most)?;
        let parts = smallest.parts..=smallest.parts;
        match shape.rows <= caps.device.rates.rows.max_register_rows {
            true => PrepackedASplit::in_registers(caps, shape, parts),
            false => PrepackedASplit::staged(caps, shape, smallest.parts),
        }
    }

    /// The split with the lowest estimated cost if activations are in registers: few consecutive tiles per compute
    /// unit, and enough subgroups to saturate the unit. `None` if shared memory is too small for the partial sums of
    /// one subgroup.
    fn in_registers(
        caps: &DeviceCaps,
        shape: PrepackedAShape,
        allowed: RangeInclusive<u32>,
    ) -> Option<PrepackedASplit> {
        let groups = shape.rows / 8;
        let fit = caps.workgroup_bytes / (SHARE_BYTES * groups);
        let most = max_subgroups(caps, REGISTERS[0])
            .min(caps.max_workgroup / SUBGROUP)
            .min(fit);
        let slices = shape.k.div_ceil(SLICE);
        let all = shape.n.div_ceil(TILE as usize);
        let mut best: Option<(f64, PrepackedASplit)> = None;
        for tiles in 1..=most {
            let limit = (most / tiles).min(slices as u32);
            for parts in allowed.clone().take_while(|parts| *parts <= limit) {
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
                        splits: 1,
                        rounds: rounds as u32,
                        chunk: 0,
                        pass: groups,
                        is_whole: taken * SLICE == shape.k,
                    };
                    best = Some((cost, split));
                }
            }
        }
        best.map(|(_, split)| split)
    }

    /// The split with the lowest estimated cost if activations are in shared memory: as few tiles per compute unit as
    /// possible, as soon as the unit has some subgroups. `None` if shared memory is too small.
    fn staged(caps: &DeviceCaps, shape: PrepackedAShape, splits: u32) -> Option<PrepackedASplit> {
        let rates = &caps.device.rates.rows;
        let bytes = caps.workgroup_bytes.checked_sub(shape.rows * 8)?;
        let groups = shape.rows / 8;
        let registers = REGISTERS[usize::from(shape.rows > 32)];
        let most = max_subgroups(caps, registers).min(caps.max_workgroup / SUBGROUP);
        let step = 2 * shape.numbers * shape.rows / 8 * STEP_BYTES;
        let chunk = [CHUNK, CHUNK / 2, 1]
            .into_iter()
            .find(|chunk| chunk * step <= bytes)?;
        let all = shape.n.div_ceil(TILE as usize);
        let rounds = shape.k.div_ceil(SLICE).div_ceil(splits as usize) as u32;
        let mut best: Option<(u32, PrepackedASplit)> = None;
        for tiles in 1..=most {
            let workgroups = all.div_ceil(tiles as usize) * splits as usize;
            let turns = workgroups.div_ceil(caps.units()) as u32;
            let cost = turns.saturating_mul(tiles.max(rates.min_prepacked_subgroups));
            let sums = |pass: &u32| tiles * pass * SHARE_BYTES <= bytes;
            let passes = (0..=groups.ilog2()).map(|halvings| groups >> halvings);
            let Some(pass) = passes
                .filter(|pass| groups.is_multiple_of(*pass))
                .find(sums)
            else {
                continue;
            };
            if best.is_none_or(|(least, _)| cost < least) {
                let split = PrepackedASplit {
                    tiles,
                    parts: 1,
                    splits,
                    rounds,
                    chunk,
                    pass,
                    is_whole: (splits * rounds) as usize * SLICE == shape.k,
                };
                best = Some((cost, split));
            }
        }
        best.map(|(_, split)| split)
    }

    /// Number of word pairs of shared memory for activations and partial sums.
    pub fn pool(&self, rows: u32, numbers: u32) -> u32 {
        let stages = 2 * self.parts * self.chunk * numbers * rows / 8 * STEP_BYTES;
        let sums = self.tiles * self.parts * self.pass * SHARE_BYTES;
        stages.max(sums) / 8
    }
}

impl PrepackedASkinny {
    /// True if the kernels support every number of rows up to `most`.
    pub(super) fn fits(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        blocks: &PackedWeights,
        most: u32,
    ) -> Result<bool, CompileError> {
        for rows in PrepackedASkinny::row_bounds(most) {
            if PrepackedASkinny::new(e, p, blocks, rows)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Maximum numbers of rows of the branches of the shape switch.
    pub(super) fn row_bounds(most: u32) -> impl Iterator<Item = u32> {
        let bounds = ROW_BLOCKS.into_iter().filter(move |rows| *rows < most);
        bounds.chain([most])
    }

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
        let Some(&(_, kernel, order, weight_loads)) = found else {
            return Ok(None);
        };
        let is_apart = blocks.params.is_some() && p.b.is_multiple(BLOCK_LOAD, p.b.own_axis);
        let (n, k) = (e.bound(&p.columns())?, p.k.known().unwrap_or(0));
        let is_matrix = p.batch.iter().all(Dim::is_one) && p.is_apart();
        let reads_rows = p.a.summed.unit && p.a.is_multiple(ROW_LOAD, p.a.own_axis);
        let takes = e.caps.coop_fragment_layout && is_apart && is_matrix && reads_rows;
        if !takes || n == 0 || k == 0 || !p.a.dtype.is_float() {
            return Ok(None);
        }
        let is_exact = p.a.dtype == DType::F32 && e.facts.reduced_matmul_dtype.is_none();
        let numbers = 1 + u32::from(is_exact);
        let rows = rows_of(e.bound(&p.m)?.min(most as usize));
        let shape = PrepackedAShape {
            n: n << u32::from(p.gate.is_some()),
            k,
            rows,
            numbers,
            // The kernel that adds partial sums reads four columns at once.
            can_split: p.gate.is_none() && n.is_multiple_of(4) && p.n.known().is_some(),
        };
        let split = PrepackedASplit::new(e.caps, shape);
        Ok(split.map(|split| PrepackedASkinny {
            kernel,
            order,
            weight_loads: weight_loads[usize::from(split.chunk > 0)],
            has_minima: blocks.scheme == Scheme::Q4K,
            blocks: k / blocks.scheme.block_len(),
            numbers,
            rows,
            max_rows: (most as usize).next_multiple_of(rows as usize),
            split,
        }))
    }

    /// Prepacks the rows, unless the kernel of the norm before the matmul already did, and returns the matmul of the
    /// rows after the norm.
    fn prepack(
        &self,
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        to: &PrepackedRows,
    ) -> Result<MatMulProblem, CompileError> {
        let mut p = p.clone();
        if let Some(of) = p.norm.take() {
            let (rows, is_prepacked) = norm::prepacked_rows(e, &of, to)?;
            p = p.with_rows(e, &rows)?;
            if is_prepacked {
                return Ok(p);
            }
        }
        let params = PrepackAParams {
            m: e.num(&p.m),
            k: e.num(&p.k),
            offset: p.a.offset,
            row: p.a.own_axis.stride,
            rows: to.rows,
            slices: to.slices,
            units_at: to.units_at,
            sums_at: to.sums_at,
        };
        let teams = e.tape().mul(to.rows, to.slices);
        let grid = e.grid_of(teams, THREADS / SUBGROUP);
        let [order, numbers, rows] = to.consts;
        let consts = [code(p.a.dtype), order, numbers, rows];
        e.dispatch(&LAY_ROWS, &consts, &[p.a.slot, to.slot], &params, grid);
        Ok(p)
    }

    /// Prepacks the rows and dispatches the GEMM.
    pub(super) fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        p: &MatMulProblem,
        weights: &PackedWeights,
        y: &SlotView,
    ) -> Result<(), CompileError> {
        let PrepackedASplit {
            tiles,
            parts,
            splits,
            rounds,
            chunk,
            pass,
            is_whole,
        } = self.split;
        let slices = parts * splits * rounds;
        let places = self.max_rows * slices as usize;
        let units_at = places * SLICE_WORDS * self.numbers as usize;
        let sums_at = units_at + places;
        let words = sums_at + usize::from(self.has_minima) * places * SUM_WORDS;
        let laid = e.temp(DType::U32, &[Dim::Known(words)])?;
        let m = e.num(&p.m);
        let row_blocks = e.tape().ceil_div(m, self.rows);
        let rows = e
            .tape()
            .mul(row_blocks, SymInt::Const(i64::from(self.rows)));
        let [slices, units_at, sums_at] =
            [slices as usize, units_at, sums_at].map(|n| SymInt::Const(n as i64));
        let to = PrepackedRows {
            slot: laid.slot,
            rows,
            slices,
            units_at,
            sums_at,
            consts: [self.order, self.numbers, self.rows],
        };
        let p = &self.prepack(e, p, &to)?;
        let given = &matmul_args(e, p, y)?.with_packed_weights(e, weights)?;
        let all = &given.params;
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
        let sums = match splits {
            1 => None,
            _ => Some(coop::parts(e, p, splits, p.n.clone())?),
        };
        let of_sums = sums.map(|sums| given.sums(sums));
        let target = of_sums.as_ref().unwrap_or(given);
        let mut consts = vec![
            threads,
            tiles,
            parts,
            rounds,
            self.rows,
            u32::from(is_whole),
        ];
        consts.extend(target.consts); // BIAS to Y_TYPE
        let rows_ahead = e.caps.device.rates.rows.prepacked_prefetch;
        consts.extend([
            u32::from(p.gate.is_some()),
            self.numbers,
            chunk,
            splits,
            self.weight_loads,
            pass,
            self.split.pool(self.rows, self.numbers),
            rows_ahead,
        ]);
        let groups = e.tape().ceil_div(all.n, tiles * TILE);
        let groups = e.tape().mul(groups, SymInt::Const(i64::from(splits)));
        let groups = e.tape().mul(groups, row_blocks);
        let grid = e.flat_grid(groups);
        let args: Vec<SlotId> = target.args.into_iter().chain([laid.slot]).collect();
        e.dispatch(self.kernel, &consts, &args, &params, grid);
        if let Some(sums) = sums {
            coop::add_parts(e, given, p, splits, sums, &ColumnRange::all(given));
        }
        Ok(())
    }
}
