//! Lowering of attention for training, on F16 cooperative matrices: forward with log-sum-exp (LSE),
//! and backward.
//!
//! The backward shader is `shaders/vulkan/include/attention_grad.glsl`; its header documents the
//! parameters.

use tercet_ir::ops::{AttentionGradOf, MaskKind};
use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Support};

use super::coop::{self, MmaPrecision};
use super::{AttentionProblem, MaskOperands, has_contiguous_rows, problem, strides};
use crate::caps::{CoopShape, DeviceCaps};
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::{Lowering, missing};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `attention_grad.glsl`.
    pub struct AttentionGradParams {
        q_offset: U32,
        q_batch: U32,
        q_head: U32,
        q_seq: U32,
        k_offset: U32,
        k_batch: U32,
        k_head: U32,
        k_seq: U32,
        v_offset: U32,
        v_batch: U32,
        v_head: U32,
        v_seq: U32,
        dy_offset: U32,
        dy_batch: U32,
        dy_head: U32,
        dy_seq: U32,
        mask_offset: U32,
        mask_batch: U32,
        mask_head: U32,
        mask_query: U32,
        mask_key: U32,
        first_batch: U32,
        first_head: U32,
        first_seq: U32,
        second_batch: U32,
        second_head: U32,
        second_seq: U32,
        lens_offset: U32,
        lens_stride: U32,
        has_lens: U32,
        causal: U32,
        window: U32,
        queries: U32,
        keys: U32,
        kv_heads: U32,
        group: U32,
        head_dim: U32,
        value_dim: U32,
        tiles: U32,
        groups: U32,
        scale: F32,
        softcap: F32,
    }
}

/// Kernel definition for a SPIR-V module of the backward shader. The macro takes the access modes
/// of the last arguments, which follow the operands, row statistics, mask and KV lengths.
macro_rules! module {
    ($name:literal, $($more:expr),*) => {
        TypedKernel::spirv(
            $name,
            $crate::spirv_module::spirv_module!(concat!($name, ".spv")),
            &[
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                ArgAccess::Read,
                $($more,)*
            ],
            &[
                "THREADS", "SUBGROUP", "FM", "FN", "FK", "BM", "BN", "HEAD", "VALUE", "MASK", "CAPPED",
            ],
        )
    };
}

pub(super) use module;

static QUERIES: TypedKernel<AttentionGradParams> =
    module!("attention_grad_queries_f16", ArgAccess::Write);
static KEYS: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_keys_f16",
    ArgAccess::Write,
    ArgAccess::Write
);
static CONVERT_QUERIES: TypedKernel<AttentionGradParams> =
    module!("attention_grad_queries_convert_f16", ArgAccess::Write);
static CONVERT_KEYS: TypedKernel<AttentionGradParams> = module!(
    "attention_grad_keys_convert_f16",
    ArgAccess::Write,
    ArgAccess::Write
);

/// Lowering of `AttentionWithLse` and `AttentionGrad` in F16.
pub(crate) static FAMILY: Lowering = Lowering {
    name: "attention_training",
    ops: &[OpKind::AttentionWithLse, OpKind::AttentionGrad],
    kernels: &[
        &coop::LSE_F16.def,
        &coop::CONVERT_LSE_F16.def,
        &QUERIES.def,
        &KEYS.def,
        &CONVERT_QUERIES.def,
        &CONVERT_KEYS.def,
    ],
    supports,
    lower,
};

/// Number of elements per vector load of the backward kernels.
const LOAD: usize = 8;

fn supports(graph: &Graph, node: &Node, caps: &DeviceCaps) -> Support {
    let [q, k, v] = [0, 1, 2].map(|at| graph.ty(node.inputs[at]));
    if q.dtype != DType::F16 {
        return missing("the fused attention backward pass requires F16");
    }
    let (Some(head_dim), Some(value_dim)) = (q.shape[3].known(), v.shape[3].known()) else {
        return missing("head sizes are unknown");
    };
    let is_empty = |dim: &tercet_ir::Dim| dim.known() == Some(0);
    let sizes = [q, k, v].into_iter().flat_map(|ty| &ty.shape[..]);
    if sizes.into_iter().any(is_empty) || head_dim % LOAD != 0 || value_dim % LOAD != 0 {
        return missing("head sizes are not multiples of 8, or an operand is empty");
    }
    let forward =
        coop::AttentionTiling::choose(caps, [head_dim, value_dim], 1, 1, MmaPrecision::F16);
    let backward = [AttentionGradOf::Queries, AttentionGradOf::Keys]
        .map(|of| GradTiling::choose(caps, [head_dim, value_dim], of));
    if forward.is_none() || backward.contains(&None) {
        return missing(
            "requires F16 cooperative matrices, and registers and shared memory for heads of this size",
        );
    }
    Support::Native
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    match &node.op {
        Op::AttentionWithLse(op) => {
            let op = op.attention();
            let [q, k, v] = vectors(e, node)?;
            let rest = MaskOperands::new(e, &op, node, 3)?;
            let (y, lse) = (e.result(0)?, e.result(1)?);
            let p = problem(e, &op, [&q, &k, &v, &y], &rest)?;
            let queries = e.bound(p.queries)?;
            let Some(tiling) = coop::tiling(e, &p, &y, queries)? else {
                unreachable!("invariant: the lowering supports the node")
            };
            let results = (y.slot, &[lse.slot][..]);
            coop::dispatch(e, &p, [q.slot, k.slot, v.slot], results, &tiling);
            Ok(())
        }
        Op::AttentionGrad(op) => lower_grad(e, node, op.of),
        _ => unreachable!("invariant: a lowering receives only its own operators"),
    }
}

/// Views of queries, keys, values and `dy` whose rows consist of whole, aligned vectors; a dense
/// copy if the layout does not allow vector loads.
fn vectors<const N: usize>(
    e: &mut LoweringCtx<'_>,
    node: &Node,
) -> Result<[SlotView; N], CompileError> {
    let mut views = Vec::with_capacity(N);
    for at in 0..N {
        let view = e.view(node.inputs[at]);
        views.push(match has_contiguous_rows(&view, LOAD) {
            true => view,
            false => e.dense(&view)?,
        });
    }
    let Ok(views) = views.try_into() else {
        unreachable!("invariant: the number of views matches the request")
    };
    Ok(views)
}

fn lower_grad(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    of: AttentionGradOf,
) -> Result<(), CompileError> {
    let Op::AttentionGrad(op) = &node.op else {
        unreachable!("invariant: the lowering receives only this operator")
    };
    let op = op.attention();
    let [q, k, v, dy] = vectors(e, node)?;
    let (lse, delta) = (e.view(node.inputs[4]), e.view(node.inputs[5]));
    let (lse, delta) = (e.dense(&lse)?, e.dense(&delta)?);
    let rest = MaskOperands::new(e, &op, node, 6)?;
    let p = problem(e, &op, [&q, &k, &v, &dy], &rest)?;
    let Some(tiling) = GradTiling::choose(e.caps, [p.head_dim, p.value_dim], of) else {
        unreachable!("invariant: the lowering supports the node")
    };
    let first = e.result(0)?;
    let second = match of {
        AttentionGradOf::Queries => None,
        AttentionGradOf::Keys => Some(e.result(1)?),
    };
    let lines = match of {
        AttentionGradOf::Queries => super::variants::rows(e, &p),
        AttentionGradOf::Keys => p.block.keys,
    };
    let tiles = e.tape().ceil_div(lines, tiling.lines());
    let groups = super::variants::groups(e, &p, &[tiles]);
    let params = params(
        e,
        &p,
        &dy,
        [&first, second.as_ref().unwrap_or(&first)],
        [tiles, groups],
    );
    let [fm, fn_, fk] = tiling.fragment;
    let mask = match op.mask {
        MaskKind::None | MaskKind::Causal | MaskKind::Window(_) => 0,
        MaskKind::Keep => 1,
        MaskKind::Bias => 2,
    };
    let consts = [
        tiling.threads(),
        tiling.subgroup,
        fm,
        fn_,
        fk,
        tiling.lines(),
        tiling.step,
        tiling.dims[0],
        tiling.dims[1],
        mask,
        u32::from(op.softcap.is_some()),
    ];
    let [mask, lens] = [p.slots[3], p.slots[4]];
    let mut args = vec![
        q.slot, k.slot, v.slot, dy.slot, lse.slot, delta.slot, mask, lens, first.slot,
    ];
    args.extend(second.map(|view| view.slot));
    let kernel = match (of, tiling.converts) {
        (AttentionGradOf::Queries, false) => &QUERIES,
        (AttentionGradOf::Queries, true) => &CONVERT_QUERIES,
        (AttentionGradOf::Keys, false) => &KEYS,
        (AttentionGradOf::Keys, true) => &CONVERT_KEYS,
    };
    let grid = e.flat_grid(groups);
    e.dispatch(kernel, &consts, &args, &params, grid);
    Ok(())
}

pub(super) fn params(
    e: &mut LoweringCtx<'_>,
    p: &AttentionProblem<'_>,
    dy: &SlotView,
    [first, second]: [&SlotView; 2],
    [tiles, groups]: [SymInt; 2],
) -> AttentionGradParams {
    let b = p.block.clone();
    let [first_batch, first_head, first_seq, _] = strides(e, p.op, first);
    let [second_batch, second_head, second_seq, _] = strides(e, p.op, second);
    AttentionGradParams {
        q_offset: b.q_offset,
        q_batch: b.q_batch,
        q_head: b.q_head,
        q_seq: b.q_seq,
        k_offset: b.k_offset,
        k_batch: b.k_batch,
        k_head: b.k_head,
        k_seq: b.k_seq,
        v_offset: b.v_offset,
        v_batch: b.v_batch,
        v_head: b.v_head,
        v_seq: b.v_seq,
        dy_offset: e.offset(dy),
        dy_batch: b.y_batch,
        dy_head: b.y_head,
        dy_seq: b.y_seq,
        mask_offset: b.mask_offset,
        mask_batch: b.mask_batch,
        mask_head: b.mask_head,
        mask_query: b.mask_query,
        mask_key: b.mask_key,
        first_batch,
        first_head,
        first_seq,
        second_batch,
        second_head,
        second_seq,
        lens_offset: b.lens_offset,
        lens_stride: b.lens_stride,
        has_lens: b.has_lens,
        causal: b.causal,
        window: b.window,
        queries: b.queries,
        keys: b.keys,
        kv_heads: b.kv_heads,
        group: b.group,
        head_dim: b.head_dim,
        value_dim: b.value_dim,
        tiles,
        groups,
        scale: b.scale,
        softcap: b.softcap,
    }
}

/// Tiling of the attention backward pass: how its rows are divided over workgroups, subgroups and
/// matrix fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GradTiling {
    /// Threads per subgroup.
    pub(super) subgroup: u32,
    /// Subgroups per workgroup.
    pub subgroups: u32,
    /// Number of row strips per subgroup; a strip has as many rows as a fragment.
    pub(super) strips: u32,
    /// The cooperative-matrix shape that the kernel uses, `m n k`.
    pub fragment: [u32; 3],
    /// Number of rows per loop step of the operands that a workgroup iterates over: keys and values
    /// for query gradients, queries and `dy` for gradients of keys and values.
    pub step: u32,
    /// Head size of queries and head size of values, both rounded up to whole fragments.
    pub dims: [u32; 2],
    /// True if the kernel converts the accumulator with the softmax weights directly into a matmul
    /// operand; false if it stores them to shared memory.
    pub(super) converts: bool,
}

impl GradTiling {
    /// The smallest tiling for these head sizes: one strip per subgroup, and loop steps of one
    /// fragment. `None` if the device lacks F16 cooperative matrices.
    pub(super) fn minimal(caps: &DeviceCaps, dims: [usize; 2]) -> Option<GradTiling> {
        let subgroup = caps.subgroup?;
        if !caps.spirv {
            return None;
        }
        let &CoopShape { m, n, k, .. } = coop::shape(caps)?;
        let whole = n.max(k);
        let dim = |size: usize| Some(u32::try_from(size).ok()?.next_multiple_of(whole));
        Some(GradTiling {
            subgroup,
            subgroups: 1,
            strips: 1,
            fragment: [m, n, k],
            step: whole,
            dims: [dim(dims[0])?, dim(dims[1])?],
            converts: caps.coop_converts && n == k,
        })
    }

    /// Selects the tiling of the backward pass for these head sizes. `None` if the device lacks F16
    /// cooperative matrices, or has too few registers or too little shared memory.
    pub fn choose(
        caps: &DeviceCaps,
        dims: [usize; 2],
        what: AttentionGradOf,
    ) -> Option<GradTiling> {
        let least = GradTiling::minimal(caps, dims)?;
        let of = |[subgroups, strips, parts]: [u32; 3]| GradTiling {
            subgroups,
            strips,
            step: parts * least.step,
            ..least
        };
        let room = caps.device.max_fragment_registers(least.subgroup);
        let fits = |t: &GradTiling| {
            // Several strips per subgroup are only profitable if two workgroups fit on a compute
            // unit, in registers and shared memory.
            let together = caps.device.resident_workgroups(t.shared_bytes());
            let most = if t.strips > 1 { 1 } else { coop::TOO_MANY_HELD };
            t.fragment_registers(what) <= most * room
                && (t.strips == 1 || together > 1)
                && t.shared_bytes() <= caps.workgroup_bytes
                && t.threads() <= caps.max_workgroup
                && t.step <= t.threads()
        };
        // The strips of a subgroup share each load from shared memory; the subgroups of a workgroup
        // share the staged rows. Longer loop steps need fewer barriers, but more shared memory.
        let all = [[4, 2, 2], [8, 1, 4], [8, 1, 2], [4, 1, 2], [2, 1, 2]].map(of);
        all.into_iter().find(fits)
    }

    /// 32-bit registers per thread that fragments occupy: two operand rows, gradient sums, and one
    /// fragment each of scores and of intermediate values.
    fn fragment_registers(&self, of: AttentionGradOf) -> u32 {
        let [head_dim, value_dim] = self.dims;
        let sums = match of {
            AttentionGradOf::Queries => head_dim,
            AttentionGradOf::Keys => head_dim + value_dim,
        };
        let columns = (head_dim + value_dim) / 2 + sums + 4 * self.fragment[1];
        self.strips * self.fragment[0] * columns / self.subgroup
    }

    /// Rows per workgroup.
    pub fn lines(&self) -> u32 {
        self.subgroups * self.strips * self.fragment[0]
    }

    /// Threads per workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroup * self.subgroups
    }

    /// Shared memory per workgroup in bytes, for the backward kernel (queries or keys) that needs
    /// more; computed as in the shader.
    pub fn shared_bytes(&self) -> u32 {
        let [fm, fn_, fk] = self.fragment;
        let [h_stride, v_stride] = self.dims.map(|d| d / 8 + 1);
        let stages = 2 * self.step * (h_stride + v_stride);
        let weights = match self.converts {
            true => 0,
            false => 2 * self.lines() * (fk.max(fn_) / 8 + 1),
        };
        let own = self.lines() * h_stride.max(v_stride);
        let most = self.dims[0].max(self.dims[1]) / fn_;
        let together = if (4..=8).contains(&most) { 4 } else { most };
        let results = self.subgroups * fm * (together * fn_ / 4 + 1);
        let rows = self.lines().max(2 * self.step);
        let words = (stages + weights).max(own).max(results) + rows;
        16 * (words + rows) + 4 * fm.max(fn_)
    }
}
