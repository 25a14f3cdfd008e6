//! Attention that keeps the logarithms of its sums, and its gradients, on cooperative matrices of F16.
//!
//! The shader of the gradients is `shaders/vulkan/include/attention_grad.glsl`; its header says what the numbers mean.

use tercet_ir::ops::{AttentionGradOf, MaskKind};
use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Support};

use super::coop::{self, Factors};
use super::{AttentionProblem, Rest, is_whole, problem, strides};
use crate::caps::{Caps, CoopShape};
use crate::emit::{Emit, View};
use crate::families::{Family, missing};
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `attention_grad.glsl`.
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

/// A module of gradients, with the access of what follows operands, statistics, mask and lengths.
macro_rules! module {
    ($name:literal, $($more:expr),*) => {
        Kernel::spirv(
            $name,
            include_bytes!(concat!(
                env!("CARGO_MANIFEST_DIR"),
                "/../../shaders/vulkan/spirv/",
                $name,
                ".spv"
            )),
            &[
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Read,
                Access::Read,
                $($more,)*
            ],
            &[
                "THREADS", "SUBGROUP", "FM", "FN", "FK", "BM", "BN", "HEAD", "VALUE", "MASK", "CAPPED",
            ],
        )
    };
}

pub(super) use module;

static QUERIES: Kernel<AttentionGradParams> = module!("attention_grad_queries_f16", Access::Write);
static KEYS: Kernel<AttentionGradParams> =
    module!("attention_grad_keys_f16", Access::Write, Access::Write);
static CONVERT_QUERIES: Kernel<AttentionGradParams> =
    module!("attention_grad_queries_convert_f16", Access::Write);
static CONVERT_KEYS: Kernel<AttentionGradParams> = module!(
    "attention_grad_keys_convert_f16",
    Access::Write,
    Access::Write
);

/// `AttentionWithLse` and `AttentionGrad`.
pub(crate) static FAMILY: Family = Family {
    name: "attention_training",
    ops: &[OpKind::AttentionWithLse, OpKind::AttentionGrad],
    kernels: &[
        &QUERIES.def,
        &KEYS.def,
        &CONVERT_QUERIES.def,
        &CONVERT_KEYS.def,
    ],
    supports,
    lower,
};

/// Elements that the kernels load at a time.
const LOAD: usize = 8;

fn supports(graph: &Graph, node: &Node, caps: &Caps) -> Support {
    let [q, k, v] = [0, 1, 2].map(|at| graph.ty(node.inputs[at]));
    if q.dtype != DType::F16 {
        return missing("gradients of attention without its scores are made in F16");
    }
    let (Some(head_dim), Some(value_dim)) = (q.shape[3].known(), v.shape[3].known()) else {
        return missing("the head dims are not known");
    };
    let is_empty = |dim: &tercet_ir::Dim| dim.known() == Some(0);
    let sizes = [q, k, v].into_iter().flat_map(|ty| &ty.shape[..]);
    if sizes.into_iter().any(is_empty) || head_dim % LOAD != 0 || value_dim % LOAD != 0 {
        return missing("head dims are not whole vectors of eight, or something is empty");
    }
    let forward = coop::AttentionTiling::choose(caps, [head_dim, value_dim], 1, 1, Factors::Halves);
    let backward = [AttentionGradOf::Queries, AttentionGradOf::Keys]
        .map(|of| GradTiling::choose(caps, [head_dim, value_dim], of));
    if forward.is_none() || backward.contains(&None) {
        return missing("it needs cooperative matrices of F16 and room for heads of this size");
    }
    Support::Native
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    match &node.op {
        Op::AttentionWithLse(op) => {
            let op = op.attention();
            let [q, k, v] = vectors(e, node)?;
            let rest = Rest::of(e, &op, node, 3)?;
            let (y, lse) = (e.result(0)?, e.result(1)?);
            let p = problem(e, &op, [&q, &k, &v, &y], &rest)?;
            let queries = e.bound(p.queries)?;
            let Some(tiling) = coop::tiling(e, &p, &y, queries)? else {
                unreachable!("invariant: the family supports it")
            };
            let results = (y.slot, &[lse.slot][..]);
            coop::dispatch(e, &p, [q.slot, k.slot, v.slot], results, &tiling);
            Ok(())
        }
        Op::AttentionGrad(op) => lower_grad(e, node, op.of),
        _ => unreachable!("invariant: a family lowers its own operators"),
    }
}

/// Queries, keys, values and `dy` as rows of whole vectors, copied where they are not.
fn vectors<const N: usize>(e: &mut Emit<'_>, node: &Node) -> Result<[View; N], CompileError> {
    let mut views = Vec::with_capacity(N);
    for at in 0..N {
        let view = e.view(node.inputs[at]);
        views.push(match is_whole(&view, LOAD) {
            true => view,
            false => e.dense(&view)?,
        });
    }
    let Ok(views) = views.try_into() else {
        unreachable!("invariant: as many views as asked for")
    };
    Ok(views)
}

fn lower_grad(e: &mut Emit<'_>, node: &Node, of: AttentionGradOf) -> Result<(), CompileError> {
    let Op::AttentionGrad(op) = &node.op else {
        unreachable!("invariant: asked for this operator alone")
    };
    let op = op.attention();
    let [q, k, v, dy] = vectors(e, node)?;
    let (lse, delta) = (e.view(node.inputs[4]), e.view(node.inputs[5]));
    let (lse, delta) = (e.dense(&lse)?, e.dense(&delta)?);
    let rest = Rest::of(e, &op, node, 6)?;
    let p = problem(e, &op, [&q, &k, &v, &dy], &rest)?;
    let Some(tiling) = GradTiling::choose(e.caps, [p.head_dim, p.value_dim], of) else {
        unreachable!("invariant: the family supports it")
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
    e: &mut Emit<'_>,
    p: &AttentionProblem<'_>,
    dy: &View,
    [first, second]: [&View; 2],
    [tiles, groups]: [Num; 2],
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

/// How gradients of attention are divided over workgroups, subgroups and fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GradTiling {
    /// Invocations of a subgroup.
    pub(super) subgroup: u32,
    /// Subgroups of a workgroup.
    pub(super) subgroups: u32,
    /// Strips of lines of a subgroup, each of a fragment's rows.
    pub(super) strips: u32,
    /// The device's matrices, `m n k`.
    pub(super) fragment: [u32; 3],
    /// Walked lines of a step.
    pub(super) step: u32,
    /// Elements of a query and of a value, in whole fragments.
    pub(super) dims: [u32; 2],
    /// Weights become factors by a conversion.
    pub(super) converts: bool,
}

impl GradTiling {
    /// One strip, and steps of one fragment, for heads of these sizes; none where the device has no cooperative matrices of F16.
    pub(super) fn least(caps: &Caps, dims: [usize; 2]) -> Option<GradTiling> {
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

    /// The tiling for heads of these sizes; none where the device has no cooperative matrices of F16, or not the room.
    fn choose(caps: &Caps, dims: [usize; 2], what: AttentionGradOf) -> Option<GradTiling> {
        let least = GradTiling::least(caps, dims)?;
        let of = |[subgroups, strips, parts]: [u32; 3]| GradTiling {
            subgroups,
            strips,
            step: parts * least.step,
            ..least
        };
        let room = caps.device.held(least.subgroup);
        let fits = |t: &GradTiling| {
            // Several strips are worth it where two workgroups of a unit have all that they hold in registers.
            let together = caps.device.together(t.shared_bytes());
            let most = if t.strips > 1 { 1 } else { coop::TOO_MANY_HELD };
            t.held(what) <= most * room
                && (t.strips == 1 || together > 1)
                && t.shared_bytes() <= caps.workgroup_bytes
                && t.threads() <= caps.max_workgroup
                && t.step <= t.threads()
        };
        // Strips share what a subgroup loads, subgroups what is staged; more lines of a step meet less often, and take
        // shared memory.
        let all = [[4, 2, 2], [8, 1, 4], [8, 1, 2], [4, 1, 2], [2, 1, 2]].map(of);
        all.into_iter().find(fits)
    }

    /// The 32-bit numbers of an invocation in fragments: own operands, sums, and those of one fragment of scores.
    fn held(&self, of: AttentionGradOf) -> u32 {
        let [head_dim, value_dim] = self.dims;
        let sums = match of {
            AttentionGradOf::Queries => head_dim,
            AttentionGradOf::Keys => head_dim + value_dim,
        };
        let columns = (head_dim + value_dim) / 2 + sums + 4 * self.fragment[1];
        self.strips * self.fragment[0] * columns / self.subgroup
    }

    /// Own lines of a workgroup.
    pub(super) fn lines(&self) -> u32 {
        self.subgroups * self.strips * self.fragment[0]
    }

    /// Invocations of a workgroup.
    pub(super) fn threads(&self) -> u32 {
        self.subgroup * self.subgroups
    }

    /// Shared memory of a workgroup, of the kernel that takes more. As in the shader.
    fn shared_bytes(&self) -> u32 {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::gemm_coop;

    #[test]
    fn the_modules_declare_the_block_the_arguments_and_the_constants() {
        for kernel in FAMILY.kernels {
            gemm_coop::tests::agrees(kernel);
        }
    }

    #[test]
    fn tilings_keep_the_constraints_of_the_shader() {
        for caps in [Caps::h200(), Caps::rdna3(32), Caps::rdna3(64), Caps::arc()] {
            let dims = [[8, 8], [40, 24], [64, 64], [128, 128], [80, 128]];
            let of = [AttentionGradOf::Queries, AttentionGradOf::Keys];
            for (dims, of) in dims.into_iter().flat_map(|dims| of.map(|of| (dims, of))) {
                let Some(t) = GradTiling::choose(&caps, dims, of) else {
                    continue;
                };
                let [fm, fn_, fk] = t.fragment;
                assert!(t.step % fn_ == 0 && t.step % fk == 0, "{t:?}");
                assert!(t.step <= t.threads() && t.lines() % fm == 0, "{t:?}");
                assert!(t.dims.iter().all(|d| d % fn_ == 0 && d % fk == 0), "{t:?}");
                assert!(t.dims[0] as usize >= dims[0] && t.dims[1] as usize >= dims[1]);
                assert!(t.shared_bytes() <= caps.workgroup_bytes, "{t:?}");
            }
        }
        let h200 = |of| GradTiling::choose(&Caps::h200(), [64, 64], of).unwrap();
        let (queries, keys) = (h200(AttentionGradOf::Queries), h200(AttentionGradOf::Keys));
        assert_eq!(
            (queries.subgroups, queries.lines(), queries.step),
            (4, 128, 32)
        );
        let wide = GradTiling::choose(&Caps::h200(), [128, 128], AttentionGradOf::Keys).unwrap();
        assert_eq!((wide.subgroups, wide.lines(), wide.step), (8, 128, 32));
        assert_eq!((keys.subgroups, keys.lines(), keys.step), (8, 128, 64));
        let browser = GradTiling::choose(&Caps::browser(), [64, 64], AttentionGradOf::Keys);
        assert_eq!(browser, None);
    }
}
