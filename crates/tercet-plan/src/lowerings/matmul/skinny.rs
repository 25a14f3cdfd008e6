//! Skinny GEMM: two to eight rows times weights, on mma-style F16 fragments.
//!
//! Drivers do not report the register layout of matrix fragments; the probe in
//! [`lanes`](crate::lanes) verifies the expected layout. With the expected layout, threads load
//! weights from memory directly into registers, and dequantize each weight once for all rows. The
//! header of `shaders/vulkan/include/few_rows_common.glsl` explains which elements each lane holds.
//! If a workgroup has few columns, threads hold the activation rows in registers. If a workgroup
//! has many columns, rows are staged through shared memory (`skinny_shared_mem.rs`), which leaves
//! the registers to weights.

use tercet_ir::{CompileError, DType, Dim, Scheme};

use super::portable::MatMulArgs;
use super::product::MatMulProblem;
use super::skinny_shared_mem::{self as streamed, FAT, SLIM, SharedMemPipeline};
use crate::caps::DeviceCaps;
use crate::emit::LoweringCtx;
use crate::lowerings::dequant::PackedWeights;
use crate::lowerings::gemm_coop::module;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, KernelDef, TypedKernel};

crate::params! {
    /// Parameter block of `few_rows_common.glsl`.
    pub struct SkinnyGemmParams {
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

/// Arguments: rows, weights, bias or residual, results.
pub(super) const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];

/// Declares the kernels of all weight formats for one way to stage activation rows, for example
/// `few_rows!("few_rows", "PASS")`. The arguments are the prefix of kernel and file names, the name
/// of the third constant, and names of additional constants.
macro_rules! few_rows {
    ($way:literal, $third:literal $(, $last:literal)*) => {
        few_rows!(
            @ [
                "THREADS", "TILES", $third, "ROUNDS", "ROWS", "WHOLE", "BIAS", "ACTIVATION", "A_TYPE", "Y_TYPE",
                "GATED" $(, $last)*
            ],
            $way, F16 "_f16", Q4_0 "_q4_0", Q8_0 "_q8_0", Q4_K "_q4_k", Q6_K "_q6_k"
        );
    };
    (@ $consts:tt, $way:literal, $($name:ident $format:literal),*) => {
        $(pub(super) static $name: TypedKernel<SkinnyGemmParams> = TypedKernel::spirv(
            concat!($way, $format),
            module!(concat!($way, $format, ".spv")),
            ARGS,
            &$consts,
        );)*

        /// The kernels of all weight formats.
        pub static ALL: &[&KernelDef] = &[$(&$name.def),*];
    };
}

pub(super) use few_rows;

few_rows!("few_rows", "PASS");

/// The skinny GEMM kernels for one weight format.
struct SkinnyFormat {
    register_kernel: &'static TypedKernel<SkinnyGemmParams>,
    shared_mem_kernel: &'static TypedKernel<SkinnyGemmParams>,
    /// Minimum number of k steps per chunk, for the kernel that stages activation rows in shared
    /// memory.
    min_chunk: u32,
    /// Registers per thread of that kernel: with one F16 number per activation element, and with
    /// two.
    registers: [u32; 2],
}

impl SkinnyFormat {
    const fn new(
        held: &'static TypedKernel<SkinnyGemmParams>,
        streamed: &'static TypedKernel<SkinnyGemmParams>,
        registers: [u32; 2],
    ) -> SkinnyFormat {
        SkinnyFormat {
            register_kernel: held,
            shared_mem_kernel: streamed,
            min_chunk: 1,
            registers,
        }
    }
}

static FLOATS: SkinnyFormat = SkinnyFormat::new(&F16, &streamed::F16, [FAT, FAT]);

static OF_SCHEMES: [(Scheme, SkinnyFormat); 4] = [
    (
        Scheme::Q4_0,
        SkinnyFormat::new(&Q4_0, &streamed::Q4_0, [SLIM, SLIM]),
    ),
    (
        Scheme::Q8_0,
        SkinnyFormat::new(&Q8_0, &streamed::Q8_0, [FAT, FAT]),
    ),
    (
        Scheme::Q4K,
        SkinnyFormat {
            // For quantization minima, the kernel needs activation sums over half blocks, so a
            // chunk has at least 4 steps.
            min_chunk: 4,
            ..SkinnyFormat::new(&Q4_K, &streamed::Q4_K, [FAT, FAT])
        },
    ),
    (
        Scheme::Q6K,
        SkinnyFormat::new(&Q6_K, &streamed::Q6_K, [SLIM, FAT]),
    ),
];

/// Columns per weight fragment.
pub(super) const TILE: u32 = 16;
/// Number of elements along k in a slice, which a subgroup processes at once.
pub const SLICE: usize = 256;
/// Threads per subgroup.
pub const SUBGROUP: u32 = 32;
/// Registers per thread of kernels with activation rows in registers; half of the registers hold
/// the rows.
const REGISTERS: u32 = 128;
/// Bytes of shared memory for the partial sums of one tile and one subgroup, with padding between
/// columns.
const SHARE_BYTES: u32 = 4 * 8 * (TILE + 4);
/// Alignment that vector loads require: in elements for activations and float weights, in bytes for
/// quantized blocks.
pub(super) const ROW_LOAD: u64 = 4;
const FLOAT_LOAD: u64 = 8;
pub(super) const BLOCK_LOAD: u64 = 16;

/// Maximum number of subgroups of a workgroup that runs alone on a compute unit, at this number of
/// registers per thread.
pub fn max_subgroups(caps: &DeviceCaps, registers: u32) -> u32 {
    (caps.device.unit_invocations(registers) / SUBGROUP).max(1)
}

/// A skinny GEMM in one weight format.
pub(super) struct SkinnyGemm {
    format: &'static SkinnyFormat,
    /// Number of weight columns (including those of a gate), and length of k.
    sizes: [usize; 2],
    /// Blocks per row of weights; 0 for float weights.
    blocks: usize,
    /// Number of activation rows that the kernel has accumulators for: 4 or 8.
    rows: u32,
    /// For the kernel with activation rows in shared memory: minimum number of k steps per chunk,
    /// and registers per thread.
    limits: [u32; 2],
}

/// A skinny GEMM with the selected way to stage its activation rows.
pub(super) struct SkinnyGemmPlan {
    kernel: &'static TypedKernel<SkinnyGemmParams>,
    blocks: usize,
    staging: AStaging,
    rows: u32,
}

/// How activation rows reach the matrix fragments: from registers or through shared memory.
#[derive(Clone, Copy, Debug, PartialEq)]
enum AStaging {
    Register(RegisterSplit),
    SharedMem(SharedMemPipeline),
}

/// How columns and k are split among workgroups and subgroups if activation rows are in registers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct RegisterSplit {
    subgroups: u32,
    /// Column tiles per workgroup, and number of tiles whose partial sums are in shared memory at
    /// once.
    tiles: u32,
    pass: u32,
    /// Number of slices of k that each subgroup processes.
    rounds: u32,
    /// True if the slices of all subgroups cover k exactly, without a partial slice at the end.
    is_whole: bool,
}

impl RegisterSplit {
    fn new(caps: &DeviceCaps, [n, k]: [usize; 2]) -> Option<RegisterSplit> {
        let slices = k.div_ceil(SLICE);
        let of_unit = max_subgroups(caps, REGISTERS) as usize;
        let most = (caps.max_workgroup / SUBGROUP) as usize;
        let rounds = slices.div_ceil(most.clamp(1, of_unit));
        let subgroups = slices.div_ceil(rounds);
        let together = (of_unit / subgroups).max(1);
        let tiles = n.div_ceil(TILE as usize).div_ceil(caps.units() * together);
        let bytes = caps.workgroup_bytes / together as u32;
        let most = (bytes / (subgroups as u32 * SHARE_BYTES)) as usize;
        let passes = tiles.div_ceil(most.max(1));
        (most > 0).then(|| RegisterSplit {
            subgroups: subgroups as u32,
            tiles: tiles as u32,
            pass: tiles.div_ceil(passes) as u32,
            rounds: rounds as u32,
            is_whole: subgroups * rounds * SLICE == k,
        })
    }

    /// Values of the first four kernel constants (`THREADS` to `ROUNDS`), and of `WHOLE`.
    fn consts(self) -> ([u32; 4], bool) {
        let threads = self.subgroups * SUBGROUP;
        ([threads, self.tiles, self.pass, self.rounds], self.is_whole)
    }
}

impl SkinnyGemm {
    /// The plan for float weights and at most `rows` rows per run; `None` if not supported.
    pub(super) fn floats(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        rows: u32,
    ) -> Result<Option<SkinnyGemm>, CompileError> {
        let k = p.k.known().unwrap_or(0);
        let whole =
            k.is_multiple_of(FLOAT_LOAD as usize) && p.b.is_multiple(FLOAT_LOAD, p.b.own_axis);
        match p.b.dtype == DType::F16 && p.b.summed.unit && whole {
            true => SkinnyGemm::with(e, p, rows, &FLOATS, 0),
            false => Ok(None),
        }
    }

    /// The plan for quantized weights and at most `rows` rows per run; `None` if not supported.
    pub(super) fn packed(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        blocks: &PackedWeights,
        rows: u32,
    ) -> Result<Option<SkinnyGemm>, CompileError> {
        let found = OF_SCHEMES
            .iter()
            .find(|(scheme, _)| *scheme == blocks.scheme);
        let Some((_, format)) = found else {
            return Ok(None);
        };
        let k = p.k.known().unwrap_or(0);
        let is_apart = blocks.params.is_some() && p.b.is_multiple(BLOCK_LOAD, p.b.own_axis);
        match is_apart {
            true => SkinnyGemm::with(e, p, rows, format, k / blocks.scheme.block_len()),
            false => Ok(None),
        }
    }

    fn with(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        rows: u32,
        format: &'static SkinnyFormat,
        blocks: usize,
    ) -> Result<Option<SkinnyGemm>, CompileError> {
        let (n, k) = (e.bound(&p.columns())?, p.k.known().unwrap_or(0));
        let takes = rows > 1 && e.caps.coop_fragment_layout;
        let is_matrix = p.batch.iter().all(Dim::is_one) && p.norm.is_none() && p.is_apart();
        let reads_rows = p.a.summed.unit && p.a.is_multiple(ROW_LOAD, p.a.own_axis);
        if !takes || !is_matrix || !reads_rows || n == 0 || k == 0 {
            return Ok(None);
        }
        let n = n << u32::from(p.gate.is_some());
        let rows = if e.bound(&p.m)? <= 4 { 4 } else { 8 };
        let numbers = usize::from(p.a.dtype == DType::F32 && rows == 8);
        Ok(Some(SkinnyGemm {
            format,
            sizes: [n, k],
            blocks,
            rows,
            limits: [format.min_chunk, format.registers[numbers]],
        }))
    }

    /// The plan with activation rows in shared memory if `is_streamed`, otherwise in registers;
    /// `None` if the device has too little of that memory.
    pub(super) fn with_rows(&self, caps: &DeviceCaps, is_streamed: bool) -> Option<SkinnyGemmPlan> {
        let placed = |kernel, way| SkinnyGemmPlan {
            kernel,
            blocks: self.blocks,
            staging: way,
            rows: self.rows,
        };
        match is_streamed {
            true => SharedMemPipeline::new(caps, self.sizes, self.rows, self.limits)
                .map(|stream| placed(self.format.shared_mem_kernel, AStaging::SharedMem(stream))),
            false => RegisterSplit::new(caps, self.sizes)
                .map(|share| placed(self.format.register_kernel, AStaging::Register(share))),
        }
    }

    /// True if a compute unit has too few column tiles to amortize staging the activation rows
    /// through shared memory.
    pub(super) fn has_few_tiles(&self, caps: &DeviceCaps) -> bool {
        SharedMemPipeline::has_few_tiles(caps, self.sizes)
    }
}

impl SkinnyGemmPlan {
    /// Dispatches the kernel.
    pub(super) fn dispatch(&self, e: &mut LoweringCtx<'_>, p: &MatMulProblem, given: &MatMulArgs) {
        let all = &given.params;
        let params = SkinnyGemmParams {
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
        };
        let (shares, is_whole) = match self.staging {
            AStaging::Register(share) => share.consts(),
            AStaging::SharedMem(stream) => stream.consts(),
        };
        let [_, tiles, ..] = shares;
        let mut consts = shares.to_vec();
        consts.extend([self.rows, u32::from(is_whole)]);
        consts.extend(given.consts); // BIAS to Y_TYPE
        consts.push(u32::from(p.gate.is_some()));
        if let AStaging::SharedMem(stream) = self.staging {
            consts.push(stream.chunk());
        }
        let groups = e.tape().ceil_div(all.n, tiles * TILE);
        let grid = e.flat_grid(groups);
        e.dispatch(self.kernel, &consts, &given.args, &params, grid);
    }
}
