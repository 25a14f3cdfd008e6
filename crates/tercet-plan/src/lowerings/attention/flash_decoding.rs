//! Flash decoding: attention with one query per batch entry on cooperative matrices, without mask
//! operand. Keys are split over workgroups (split-KV), and the last workgroup of a KV head combines
//! the results of all its workgroups.
//!
//! The shader is `shaders/vulkan/attention_pieces_f16.comp`; its header documents the parameters.

use tercet_ir::{CompileError, DType, Dim};

use super::{AttentionProblem, single_query};
use crate::caps::{CoopShape, CoopType, DeviceCaps};
use crate::emit::{LoweringCtx, SlotPlacement, SlotView};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `attention_pieces_f16.comp`.
    pub struct FlashDecodeParams {
        q_offset: U32,
        q_batch: U32,
        q_head: U32,
        k_offset: U32,
        k_batch: U32,
        k_head: U32,
        k_seq: U32,
        v_offset: U32,
        v_batch: U32,
        v_head: U32,
        v_seq: U32,
        y_batch: U32,
        y_head: U32,
        lens_offset: U32,
        lens_stride: U32,
        has_lens: U32,
        window: U32,
        keys: U32,
        batch: U32,
        pieces: U32,
        groups: U32,
        scale: F32,
    }
}

/// The F16 kernel.
pub(super) static F16: TypedKernel<FlashDecodeParams> = TypedKernel::spirv(
    "attention_pieces_f16",
    crate::spirv_module::spirv_module!("attention_pieces_f16.spv"),
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
        ArgAccess::Write,
    ],
    &[
        "THREADS",
        "SUBGROUP",
        "FM",
        "FN",
        "FK",
        "STEPS",
        "HEAD",
        "VALUE",
        "GROUP",
        "KEY_HEADS",
    ],
);

/// Number of elements per vector load of the kernel.
const LOAD: usize = 8;
/// Number of keys that a subgroup loads into shared memory at once.
pub const STAGED: u32 = 16;
/// Minimum and maximum head size of queries and values.
const DIMS: [usize; 2] = [32, 128];

/// Split-KV configuration: how keys are divided over workgroups, subgroups and matrix fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlashDecodeSplit {
    /// Number of threads per subgroup.
    pub subgroup: u32,
    /// Number of subgroups per workgroup.
    subgroups: u32,
    /// The cooperative-matrix shape that the kernel uses, `m n k`.
    pub fragment: [u32; 3],
    /// Number of times that a subgroup loads a block of keys into shared memory.
    steps: u32,
    /// Head size of queries and head size of values.
    pub dims: [u32; 2],
}

impl FlashDecodeSplit {
    /// Selects the configuration for these head sizes, for `heads` KV heads with `group` query
    /// heads each, and for this number of keys. `None` if the device lacks suitable F16 cooperative
    /// matrices or shared memory.
    pub fn choose(
        caps: &DeviceCaps,
        dims: [usize; 2],
        [group, heads]: [usize; 2],
        keys: usize,
    ) -> Option<FlashDecodeSplit> {
        let subgroup = caps.subgroup?;
        let fits = |s: &&CoopShape| {
            let whole = STAGED.is_multiple_of(s.m) && STAGED.is_multiple_of(s.k);
            s.ty == CoopType::F16 && whole && s.k >= 8 && s.n >= 8 && group <= s.n as usize
        };
        let shape = caps.coop.iter().filter(fits).min_by_key(|s| s.n)?;
        let is_held = |dim: &usize| dim.is_power_of_two() && (DIMS[0]..=DIMS[1]).contains(dim);
        if !caps.spirv || !dims.iter().all(is_held) || !(8..=64).contains(&subgroup) {
            return None;
        }
        let of = |[subgroups, steps]: [u32; 2]| FlashDecodeSplit {
            subgroup,
            subgroups,
            fragment: [shape.m, shape.n, shape.k],
            steps,
            dims: dims.map(|dim| dim as u32),
        };
        let able = |cut: &FlashDecodeSplit| {
            cut.shared_bytes() <= caps.workgroup_bytes && cut.threads() <= caps.max_workgroup
        };
        // With more keys per workgroup, fewer results are combined. If this leaves compute units
        // idle, configurations with fewer keys per workgroup are tried.
        let all = [[8, 2], [8, 1], [4, 1], [2, 1]].map(of);
        let fit: Vec<FlashDecodeSplit> = all.into_iter().filter(able).collect();
        let enough = |cut: &&FlashDecodeSplit| {
            let groups = keys.div_ceil(cut.keys() as usize).saturating_mul(heads);
            2 * groups > caps.units()
        };
        fit.iter().find(enough).or(fit.last()).copied()
    }

    /// Threads per workgroup.
    fn threads(&self) -> u32 {
        self.subgroup * self.subgroups
    }

    /// Keys per workgroup.
    pub fn keys(&self) -> u32 {
        STAGED * self.steps * self.subgroups
    }

    /// Shared memory per workgroup in bytes, computed as in the shader.
    pub fn shared_bytes(&self) -> u32 {
        let [fm, fn_, _] = self.fragment;
        let [head, value] = self.dims;
        let staged = STAGED * (head.max(value) / 8 + 1);
        let own = staged.max(fn_ * (value / 4 + 1));
        let weights = (fn_ * (STAGED * self.steps / 8 + 1)).max(fm * fn_ / 4);
        let words = self.subgroups * (own + weights) + fn_ * (head / 8 + 1);
        16 * words + 4 * fn_ + 4
    }
}

/// The flash decoding configuration for a single-query attention; `None` if the kernel does not
/// support the attention.
pub(super) fn cut(
    e: &LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
) -> Result<Option<FlashDecodeSplit>, CompileError> {
    let is_half = p.dtype == DType::F16 && y.dtype == DType::F16;
    let keys = e.bound(p.keys)?;
    let few = keys <= e.caps.device.rates.attention.max_single_workgroup_keys;
    let has_room = e.caps.max_storage_buffers as usize >= F16.def.args.len();
    if p.vector_width < LOAD || !is_half || !single_query::is_plain_attention(p) || few || !has_room
    {
        return Ok(None);
    }
    let heads = e.bound(p.batch)?.saturating_mul(p.op.kv_heads);
    let dims = [p.head_dim, p.value_dim];
    Ok(FlashDecodeSplit::choose(
        e.caps,
        dims,
        [p.group(), heads],
        keys,
    ))
}

/// Emits the kernel.
pub(super) fn emit(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    y: &SlotView,
    cut: &FlashDecodeSplit,
) -> Result<(), CompileError> {
    let most = e.bound(p.keys)?.div_ceil(cut.keys() as usize).max(1);
    let tape = e.tape();
    let pieces = tape.ceil_div(p.block.keys, cut.keys());
    let pieces = tape.max(pieces, SymInt::ONE);
    let entries = tape.mul(p.block.batch, p.block.kv_heads);
    let groups = tape.mul(entries, pieces);
    let b = &p.block;
    let params = FlashDecodeParams {
        q_offset: b.q_offset,
        q_batch: b.q_batch,
        q_head: b.q_head,
        k_offset: b.k_offset,
        k_batch: b.k_batch,
        k_head: b.k_head,
        k_seq: b.k_seq,
        v_offset: b.v_offset,
        v_batch: b.v_batch,
        v_head: b.v_head,
        v_seq: b.v_seq,
        y_batch: b.y_batch,
        y_head: b.y_head,
        lens_offset: b.lens_offset,
        lens_stride: b.lens_stride,
        has_lens: b.has_lens,
        window: b.window,
        keys: b.keys,
        batch: b.batch,
        pieces,
        groups,
        scale: b.scale,
    };
    let heads = Dim::Known(p.op.kv_heads);
    let sums = |e: &mut LoweringCtx<'_>, last: usize| {
        let shape = [p.batch.clone(), heads.clone(), most.into(), last.into()];
        e.temp(DType::F32, &shape)
    };
    let [sums, stats] = [sums(e, p.group() * p.value_dim)?, sums(e, 2 * p.group())?];
    let counts = e.allocate(
        DType::U32,
        &[p.batch.clone(), heads.clone()],
        SlotPlacement::Counters,
    )?;
    let [fm, fn_, fk] = cut.fragment;
    let [group, kv_heads] = [p.group(), p.op.kv_heads].map(|n| n as u32);
    let consts = [
        cut.threads(),
        cut.subgroup,
        fm,
        fn_,
        fk,
        cut.steps,
        cut.dims[0],
        cut.dims[1],
        group,
        kv_heads,
    ];
    let [q, k, v, _, lens] = p.slots;
    let args = [q, k, v, lens, y.slot, sums.slot, stats.slot, counts.slot];
    let grid = e.flat_grid(groups);
    e.dispatch(&F16, &consts, &args, &params, grid);
    Ok(())
}
