//! Many-query attention with the cooperative matrices of WGSL, for devices that take no SPIR-V:
//! Metal, and Vulkan through wgpu without passthrough.
//!
//! F16 operands use F16 fragments with F32 sums, F32 operands use F32 fragments. The shader is
//! `shaders/portable/attention_coop.wgsl`; its header documents the constants.

use tercet_ir::{CompileError, DType};

use super::kernels::{AttentionParams, RANGE, TILES_ARGS};
use super::{AttentionProblem, variants};
use crate::caps::{DeviceCaps, WgslCoopShape, WgslCoopType};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::portable;
use crate::scalar::{PRELUDE, WgslHelper};
use tercet_program::{SymInt, TypedKernel};

/// Name of the variant.
pub(super) const WGSL_MATRICES: &str = "wgsl_matrices";

/// Elements per vector load.
const QUAD: usize = 4;

/// Elements of padding per staged line.
const PADDING: u32 = 8;

/// Maximum number of fragments with columns of the values.
const MAX_VALUE_FRAGMENTS: u32 = 16;

/// Numbers of rows per workgroup, from large tiles, which reuse staged keys most, to small ones,
/// which give more workgroups.
const ROWS: [u32; 3] = [64, 32, 16];

/// Numbers of keys per step. More keys need fewer barriers, but more shared memory.
const KEYS: [u32; 2] = [32, 16];

/// Scores that a thread reads together.
const SCORES_AT_ONCE: u32 = 4;

/// Words of the findings, which fill 16 bytes.
const FINDINGS: u32 = 4;

/// Bytes of an F32 number or an integer.
const WORD_BYTES: u32 = 4;

/// Declares the kernel for one kind of fragments.
macro_rules! of_matrices {
    ($kernel:ident $label:literal, $enable:literal, $fragments:literal, $operands:literal) => {
        pub(super) static $kernel: TypedKernel<AttentionParams> = TypedKernel::wgsl(
            $label,
            &[
                portable!($enable),
                PRELUDE,
                WgslHelper::Base.text(),
                WgslHelper::Exp.text(),
                WgslHelper::Hyperbolic.text(),
                RANGE,
                portable!($fragments),
                portable!($operands),
                portable!("attention_params.wgsl"),
                portable!("attention_common.wgsl"),
                portable!("attention_store.wgsl"),
                portable!("attention_coop.wgsl"),
            ],
            TILES_ARGS,
            &[
                "DTYPE",
                "OUT",
                "MASK",
                "CAPPED",
                "SUBGROUPS",
                "SUBGROUP",
                "KEYS",
                "HEAD",
                "VALUE",
            ],
        );
    };
}

of_matrices!(
    HALVES_OF_16 "attention_coop_wgsl_half_16",
    "matmul/coop_enable_half.wgsl",
    "matmul/coop_half_16.wgsl",
    "attention_coop_half.wgsl"
);
of_matrices!(
    HALVES_OF_8 "attention_coop_wgsl_half_8",
    "matmul/coop_enable_half.wgsl",
    "matmul/coop_half_8.wgsl",
    "attention_coop_half.wgsl"
);
of_matrices!(
    FLOATS_OF_8 "attention_coop_wgsl_wide_8",
    "matmul/coop_enable_wide.wgsl",
    "matmul/coop_wide_8.wgsl",
    "attention_coop_wide.wgsl"
);

/// Tiling of an attention on cooperative matrices in WGSL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WgslAttentionTiling {
    shape: WgslCoopShape,
    /// Threads per subgroup, and subgroups per workgroup. A subgroup has one fragment of rows.
    subgroup: u32,
    subgroups: u32,
    /// Keys per step.
    keys: u32,
    /// Head size of queries and head size of values, both rounded up to whole fragments.
    pub dims: [u32; 2],
}

impl WgslAttentionTiling {
    /// Selects the tiling for these head sizes and `rows` query rows for each of `heads` KV heads;
    /// `None` if the device lacks matrices of this type or shared memory.
    pub fn choose(
        caps: &DeviceCaps,
        ty: WgslCoopType,
        [head_dim, value_dim]: [usize; 2],
        rows: usize,
        heads: usize,
    ) -> Option<WgslAttentionTiling> {
        let subgroup = caps.subgroup?;
        let shapes = caps.coop_wgsl.iter().filter(|shape| shape.ty == ty);
        // The largest fragments do the most arithmetic per loaded element.
        let shape = *shapes.max_by_key(|shape| shape.side)?;
        kernel(shape)?;
        let dims = [head_dim, value_dim].map(|n| u32::try_from(n).ok());
        let dims = [dims[0]?, dims[1]?].map(|n| n.next_multiple_of(shape.side));
        let able = ROWS.into_iter().filter_map(|rows| {
            let mut all = KEYS.into_iter().map(|keys| WgslAttentionTiling {
                shape,
                subgroup,
                subgroups: rows / shape.side,
                keys,
                dims,
            });
            all.find(|t| t.is_supported(caps))
        });
        let able: Vec<WgslAttentionTiling> = able.collect();
        // True if the tiling fills the device, which takes four subgroups per compute unit.
        let units = caps.units();
        let enough = |t: &&WgslAttentionTiling| {
            let groups = rows.div_ceil(t.rows() as usize) * heads;
            groups * t.subgroups as usize >= 4 * units
        };
        able.iter().find(enough).or(able.last()).copied()
    }

    /// Rows per workgroup.
    pub fn rows(&self) -> u32 {
        self.subgroups * self.shape.side
    }

    /// Threads per workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroups * self.subgroup
    }

    fn is_supported(&self, caps: &DeviceCaps) -> bool {
        let side = self.shape.side;
        // Each thread owns whole keys of one row, and whole columns of a fragment.
        let is_whole = self.subgroup.is_multiple_of(side)
            && (side * side).is_multiple_of(self.subgroup)
            && self.keys.is_multiple_of(side)
            && (self.keys * side).is_multiple_of(SCORES_AT_ONCE * self.subgroup)
            && [1, 2, 4].contains(&(self.keys / side));
        is_whole
            && (1..=MAX_VALUE_FRAGMENTS).contains(&(self.dims[1] / side))
            && self.threads() <= caps.max_workgroup
            && self.shared_bytes() <= caps.workgroup_bytes
    }

    /// Shared memory per workgroup in bytes, computed as in the shader: queries, keys and values,
    /// scores and weights, and a maximum of each row, a sum of each thread and the findings.
    pub fn shared_bytes(&self) -> u32 {
        let [k_line, v_line] = self.dims.map(|n| n.saturating_add(PADDING));
        let lines = (self.rows() + self.keys).saturating_mul(k_line);
        let staged = lines.saturating_add(self.keys.saturating_mul(v_line));
        let scores = self.rows() * self.keys;
        let words = scores + self.rows() + self.threads() + FINDINGS;
        let held = staged.saturating_add(scores);
        held.saturating_mul(self.shape.ty.size_bytes())
            .saturating_add(words * WORD_BYTES)
    }
}

/// The kernel for fragments of this shape; `None` if there is none.
fn kernel(shape: WgslCoopShape) -> Option<&'static TypedKernel<AttentionParams>> {
    match (shape.ty, shape.side) {
        (WgslCoopType::F16, 16) => Some(&HALVES_OF_16),
        (WgslCoopType::F16, 8) => Some(&HALVES_OF_8),
        (WgslCoopType::F32, 8) => Some(&FLOATS_OF_8),
        _ => None,
    }
}

/// Tiling of an attention for up to `queries` queries; `None` if the kernels do not support the
/// attention.
pub(super) fn tiling(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    queries: usize,
) -> Result<Option<WgslAttentionTiling>, CompileError> {
    let ty = match p.dtype {
        DType::F16 => WgslCoopType::F16,
        DType::F32 => WgslCoopType::F32,
        _ => return Ok(None),
    };
    if !p.has_vectors || p.vector_width < QUAD || p.head_dim == 0 {
        return Ok(None);
    }
    let rows = queries.saturating_mul(p.group());
    let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
    let dims = [p.head_dim, p.value_dim];
    Ok(WgslAttentionTiling::choose(e.caps, ty, dims, rows, heads))
}

/// Dispatches the attention kernel.
pub(super) fn emit(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    tiling: &WgslAttentionTiling,
) {
    let rows = variants::rows(e, p);
    let tiles = e.tape().ceil_div(rows, tiling.rows());
    let groups = variants::groups(e, p, &[tiles]);
    let params = AttentionParams {
        tiles,
        slices: SymInt::ONE,
        groups,
        ..p.block.clone()
    };
    let mut consts = p.consts(y.dtype);
    let [head, value] = tiling.dims;
    consts.extend([tiling.subgroups, tiling.subgroup, tiling.keys, head, value]);
    let kernel = kernel(tiling.shape);
    let kernel = kernel.unwrap_or_else(|| unreachable!("invariant: the tiling has a kernel"));
    let [q, k, v, mask, lens] = p.slots;
    let grid = e.flat_grid(groups);
    e.dispatch(
        kernel,
        &consts,
        &[q, k, v, mask, lens, y.slot],
        &params,
        grid,
    );
}
