//! Skinny GEMM: two to eight rows times F16 weights, on mma-style F16 fragments.
//!
//! Drivers do not report the register layout of matrix fragments; the probe in
//! [`lanes`](crate::lanes) verifies the expected layout. With the expected layout, threads load
//! weights from memory directly into registers, and dequantize each weight once for all rows. The
//! header of `shaders/vulkan/include/few_rows_common.glsl` explains which elements each lane holds.
//! If a workgroup has few columns, threads hold the activation rows in registers. If a workgroup
//! has many columns, rows are staged through shared memory (`skinny_shared_mem.rs`), which leaves
//! the registers to weights.

use tercet_ir::{CompileError, DType, Dim};

use super::portable::MatMulArgs;
use super::product::MatMulProblem;
use super::skinny_shared_mem::{self as streamed, SharedMemPipeline};
use crate::caps::DeviceCaps;
use crate::emit::LoweringCtx;
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

/// Declares a skinny GEMM kernel for F16 weights, for one way to stage activation rows. The arguments are the name of
/// the kernel and of its file, the name of the third constant, and names of additional constants.
macro_rules! few_rows {
    ($name:literal, $third:literal $(, $last:literal)*) => {
        TypedKernel::spirv(
            $name,
            module!(concat!($name, ".spv")),
            ARGS,
            &[
                "THREADS", "TILES", $third, "ROUNDS", "ROWS", "WHOLE", "BIAS", "ACTIVATION", "A_TYPE", "Y_TYPE",
                "GATED" $(, $last)*
            ],
        )
    };
}

pub(super) use few_rows;

/// The kernel with activation rows in registers.
pub(super) static KERNEL: TypedKernel<SkinnyGemmParams> = few_rows!("few_rows_f16", "PASS");

/// The kernels of skinny GEMM.
pub static ALL: &[&KernelDef] = &[&KERNEL.def, &streamed::KERNEL.def];

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
/// Alignment that vector loads require, in elements, for activations and for weights.
pub(super) const ROW_LOAD: u64 = 4;
const FLOAT_LOAD: u64 = 8;

/// Maximum number of subgroups of a workgroup that runs alone on a compute unit, at this number of
/// registers per thread.
pub fn max_subgroups(caps: &DeviceCaps, registers: u32) -> u32 {
    (caps.device.unit_invocations(registers) / SUBGROUP).max(1)
}

/// A skinny GEMM.
pub(super) struct SkinnyGemm {
    /// Number of weight columns (including those of a gate), and length of k.
    sizes: [usize; 2],
    /// Number of activation rows that the kernel has accumulators for: 4 or 8.
    rows: u32,
}

/// A skinny GEMM with the selected way to stage its activation rows.
pub(super) struct SkinnyGemmPlan {
    kernel: &'static TypedKernel<SkinnyGemmParams>,
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
    /// The plan for at most `rows` rows per run; `None` if not supported.
    pub(super) fn new(
        e: &LoweringCtx<'_>,
        p: &MatMulProblem,
        rows: u32,
    ) -> Result<Option<SkinnyGemm>, CompileError> {
        let (n, k) = (e.bound(&p.columns())?, p.k.known().unwrap_or(0));
        let whole =
            k.is_multiple_of(FLOAT_LOAD as usize) && p.b.is_multiple(FLOAT_LOAD, p.b.own_axis);
        let reads_weights = p.b.dtype == DType::F16 && p.b.summed.unit && whole;
        let takes = rows > 1 && e.caps.coop_fragment_layout;
        let is_matrix = p.batch.iter().all(Dim::is_one) && p.norm.is_none() && p.is_apart();
        let reads_rows = p.a.summed.unit && p.a.is_multiple(ROW_LOAD, p.a.own_axis);
        if !reads_weights || !takes || !is_matrix || !reads_rows || n == 0 || k == 0 {
            return Ok(None);
        }
        Ok(Some(SkinnyGemm {
            sizes: [n << u32::from(p.gate.is_some()), k],
            rows: if e.bound(&p.m)? <= 4 { 4 } else { 8 },
        }))
    }

    /// The plan with activation rows in shared memory if `is_streamed`, otherwise in registers;
    /// `None` if the device has too little of that memory.
    pub(super) fn with_rows(&self, caps: &DeviceCaps, is_streamed: bool) -> Option<SkinnyGemmPlan> {
        let placed = |kernel, way| SkinnyGemmPlan {
            kernel,
            staging: way,
            rows: self.rows,
        };
        match is_streamed {
            true => SharedMemPipeline::new(caps, self.sizes, self.rows)
                .map(|stream| placed(&streamed::KERNEL, AStaging::SharedMem(stream))),
            false => RegisterSplit::new(caps, self.sizes)
                .map(|share| placed(&KERNEL, AStaging::Register(share))),
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
            blocks: SymInt::ZERO,
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
