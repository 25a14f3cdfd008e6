//! Attention: `softmax(mask(softcap(scale q k^T))) v` without holding the scores.
//!
//! Two ways, on views of any strides. `attention` takes tiles of query rows through all keys that they
//! see, `attention_large` larger ones where there are enough, F16 on cooperative matrices where the device has
//! them (`attention_coop`, `attention_convert`; `attention_lanes` where it is known which invocation holds which element), F32 as pairs of F16 (`attention_split`, `attention_halves`, and
//! `attention_rest` for what pairs do not hold), with their keys in parts where tiles are few (`attention_join`); `attention_decode` takes few rows and splits the keys over
//! workgroups, whose results `attention_combine` puts together; `attention_one` takes one query, `attention_pieces` one on
//! cooperative matrices, `attention_token` that of a new token with what stands before it. Query heads of one key head are taken together, as rows. Where
//! the bound of the queries allows both, they are the arms of a choice.
//!
//! Invariant: no word of the result belongs to two workgroups. Rows of F16 and BF16 whose length is
//! odd are made in F32 first, and packed by `attention_pack`.

mod coop;
mod flash_decoding;
mod kernels;
mod one;
mod pairs;
mod parts;
mod token;
pub(crate) mod training;
pub(crate) mod training_pairs;
mod variants;
mod widened;

use tercet_ir::layout::Term;
use tercet_ir::ops::{Attention, MaskKind};
use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind};

use super::{Family, always, rope::append::Append};
use crate::emit::{Emit, View};
use crate::num::Num;
use crate::program::{CheckKind, SlotId};

use super::code;
use kernels::{
    AttentionParams, COMBINE, CombineParams, DECODE_WIDE, GATHER, GatherParams, JOIN, Kernels, ONE,
    PACK, PackParams, REST, SPLIT, SplitParams, VEC2, VEC4, WORDS,
};

/// `Attention`.
pub(crate) static FAMILY: Family = Family {
    name: "attention",
    ops: &[OpKind::Attention],
    kernels: &[
        &WORDS.tiles.def,
        &WORDS.large.def,
        &WORDS.decode.def,
        &VEC4.tiles.def,
        &VEC4.large.def,
        &VEC4.decode.def,
        &VEC2.tiles.def,
        &VEC2.large.def,
        &VEC2.decode.def,
        &DECODE_WIDE.def,
        &ONE.def,
        &token::TOKEN.def,
        &token::CHAINED.def,
        &COMBINE.def,
        &GATHER.def,
        &PACK.def,
        &kernels::WIDEN.def,
        &flash_decoding::F16.def,
        &coop::lanes::LANES_F16.def,
        &coop::F16.def,
        &coop::CONVERT_F16.def,
        &coop::PAIRS.def,
        &coop::CONVERT_PAIRS.def,
        &parts::F16.def,
        &parts::CONVERT_F16.def,
        &parts::PAIRS.def,
        &parts::CONVERT_PAIRS.def,
        &JOIN.def,
        &SPLIT.def,
        &REST.def,
    ],
    supports: always,
    lower,
};

/// An attention to lower: what both ways need.
struct AttentionProblem<'g> {
    op: &'g Attention,
    /// Of q, k, v, mask and lens.
    slots: [SlotId; 5],
    dtype: DType,
    batch: &'g Dim,
    queries: &'g Dim,
    keys: &'g Dim,
    head_dim: usize,
    value_dim: usize,
    /// How many elements of q, k and v lie together wherever they are read: 1, 4 or 8.
    together: usize,
    /// Portable kernels may read vectors of them. Not where the mask has the slot of one, for devices may ask for
    /// one type of all bindings of a slot.
    has_vectors: bool,
    /// Where the numbers that both ways share are; `tiles` to `groups` are those of each.
    block: AttentionParams,
}

impl AttentionProblem<'_> {
    /// Query heads of one key head.
    fn group(&self) -> usize {
        self.op.q_heads / self.op.kv_heads
    }

    /// The kernels that read the operands best.
    fn kernels(&self) -> &'static Kernels {
        match (self.together, self.dtype) {
            (1, _) => &WORDS,
            (_, _) if !self.has_vectors => &WORDS,
            (_, DType::F32) => &VEC4,
            (_, _) => &VEC2,
        }
    }

    /// The constants that both ways begin with, for results of this dtype.
    fn consts(&self, out: DType) -> Vec<u32> {
        let mask = match self.op.mask {
            MaskKind::None | MaskKind::Causal | MaskKind::Window(_) => 0,
            MaskKind::Keep => 1,
            MaskKind::Bias => 2,
        };
        let capped = u32::from(self.op.softcap.is_some());
        vec![code(self.dtype), code(out), mask, capped]
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    lower_after(e, node, None)
}

/// Lowers an attention together with what stands before it.
pub(crate) fn lower_after(
    e: &mut Emit<'_>,
    node: &Node,
    before: Option<Append>,
) -> Result<(), CompileError> {
    let Op::Attention(op) = &node.op else {
        unreachable!("invariant: this family has one operator")
    };
    let [q, k, v] = [0, 1, 2].map(|i| e.view(node.inputs[i]));
    let rest = Rest::of(e, op, node, 3)?;
    // Rows of an odd length share words.
    let known = |view: &View| view.layout.shape()[3].known().unwrap_or(0);
    let shares_words = node.outputs[0].dtype != DType::F32 && known(&v) % 2 == 1;
    let result = match e.facts.turned_attention.contains(&e.cursor.at) && !shares_words {
        true => turned_result(e, node)?,
        false => e.result(0)?,
    };
    let y = match shares_words {
        true => e.temp(DType::F32, result.layout.shape())?,
        false => result.clone(),
    };
    let problem = problem(e, op, [&q, &k, &v, &y], &rest)?;
    variants::emit(e, &problem, &y, before)?;
    if shares_words {
        let shape = result.layout.shape();
        let numel = e.numel(shape);
        let words = e.words(result.dtype, shape);
        let grid = e.grid_of(words, 256);
        let consts = [code(result.dtype)];
        let args = [y.slot, result.slot];
        e.dispatch(&PACK, &consts, &args, &PackParams { numel }, grid);
    }
    Ok(())
}

/// The result with positions before heads in memory.
fn turned_result(e: &mut Emit<'_>, node: &Node) -> Result<View, CompileError> {
    const TURN: [usize; 4] = [0, 2, 1, 3];
    let ty = &node.outputs[0];
    let shape = TURN.map(|axis| ty.shape[axis].clone());
    let dense = e.temp(ty.dtype, &shape)?;
    let result = View {
        layout: dense.layout.transpose(&TURN),
        ..dense
    };
    e.forward(0, result.clone());
    Ok(result)
}

/// The operands after queries, keys and values.
struct Rest {
    mask: Option<View>,
    lens: Option<View>,
}

impl Rest {
    /// Those of a node from this operand on; lengths are checked.
    fn of(
        e: &mut Emit<'_>,
        op: &Attention,
        node: &Node,
        from: usize,
    ) -> Result<Rest, CompileError> {
        let mask = op.has_mask_operand().then(|| e.view(node.inputs[from]));
        let lens = match op.kv_len {
            true => node.inputs.last().map(|v| e.view(*v)),
            false => None,
        };
        if let Some(lens) = &lens {
            let keys = &e.graph.ty(node.inputs[1]).shape[op.layout.seq_axis()];
            e.check_data(lens, CheckKind::KvLen, keys)?;
        }
        Ok(Rest { mask, lens })
    }

    /// The slots of the mask and of the lengths.
    fn slots(&self, e: &mut Emit<'_>) -> Result<[SlotId; 2], CompileError> {
        let mut optional = |view: &Option<View>| match view {
            Some(view) => Ok(view.slot),
            None => e.absent(),
        };
        Ok([optional(&self.mask)?, optional(&self.lens)?])
    }
}

/// The problem of these queries, keys, values and results.
fn problem<'g>(
    e: &mut Emit<'_>,
    op: &'g Attention,
    [q, k, v, y]: [&'g View; 4],
    rest: &Rest,
) -> Result<AttentionProblem<'g>, CompileError> {
    let known = |view: &View| view.layout.shape()[3].known().unwrap_or(0);
    let [mask_slot, lens_slot] = rest.slots(e)?;
    let seq = op.layout.seq_axis();
    Ok(AttentionProblem {
        op,
        slots: [q.slot, k.slot, v.slot, mask_slot, lens_slot],
        dtype: q.dtype,
        batch: &q.layout.shape()[0],
        queries: &q.layout.shape()[seq],
        keys: &k.layout.shape()[seq],
        head_dim: known(q),
        value_dim: known(v),
        together: together(e, [q, k, v])?,
        has_vectors: ![q.slot, k.slot, v.slot].contains(&mask_slot),
        block: block(e, op, [q, k, v, y], rest.mask.as_ref(), rest.lens.as_ref()),
    })
}

/// The most elements, 8, 4 or 1, that the rows of every view consist of.
fn together(e: &Emit<'_>, views: [&View; 3]) -> Result<usize, CompileError> {
    for view in views {
        for dim in view.layout.shape() {
            // Nothing is read, and the slot may be shorter than a vector.
            if e.bound(dim)? == 0 {
                return Ok(1);
            }
        }
    }
    let all = |n| views.into_iter().all(|view| is_whole(view, n));
    Ok([8, 4].into_iter().find(|n| all(*n)).unwrap_or(1))
}

/// True if the view's rows are `n` elements at a time, one after the other; `n` is a power of two.
fn is_whole(view: &View, n: usize) -> bool {
    let is_multiple = |t: &Term| t.power_of_two() >= n as u64;
    let shape = view.layout.shape();
    let (last, others) = view.layout.strides().split_last().expect("rank 4");
    let is_unit = last.factor() == 1 && *last.dim() == Dim::Known(1);
    is_unit
        && shape[3].known().is_some_and(|size| size.is_multiple_of(n))
        && others
            .iter()
            .zip(shape)
            .all(|(t, size)| size.is_one() || is_multiple(t))
        && view.layout.offset().iter().all(is_multiple)
}

/// Strides of batch, head, position and element.
fn strides(e: &mut Emit<'_>, op: &Attention, view: &View) -> [Num; 4] {
    let s = e.strides(view);
    let (head, seq) = (op.layout.head_axis(), op.layout.seq_axis());
    [s[0], s[head], s[seq], s[3]]
}

/// Strides of batch, head, query and key of a mask, 0 where it broadcasts.
fn mask_strides(e: &mut Emit<'_>, mask: &View) -> [Num; 4] {
    let shape = mask.layout.shape();
    let axes: &[usize] = match shape.len() {
        2 => &[0, 3],
        3 => &[0, 2, 3],
        _ => &[0, 1, 2, 3],
    };
    let own = e.strides(mask);
    let mut strides = [Num::ZERO; 4];
    for (axis, &to) in axes.iter().enumerate() {
        if !shape[axis].is_one() {
            strides[to] = own[axis];
        }
    }
    strides
}

/// Whether a query sees its last keys only, and how many of them.
fn seen(mask: MaskKind) -> (bool, usize) {
    // A window that holds every position: no sequence is as long.
    const UNBOUNDED: usize = 1 << 30;
    match mask {
        MaskKind::Causal => (true, UNBOUNDED),
        MaskKind::Window(w) => (true, w.min(UNBOUNDED)),
        MaskKind::None | MaskKind::Keep | MaskKind::Bias => (false, UNBOUNDED),
    }
}

/// The numbers that do not depend on the way.
fn block(
    e: &mut Emit<'_>,
    op: &Attention,
    [q, k, v, y]: [&View; 4],
    mask: Option<&View>,
    lens: Option<&View>,
) -> AttentionParams {
    let [q_batch, q_head, q_seq, q_dim] = strides(e, op, q);
    let [k_batch, k_head, k_seq, k_dim] = strides(e, op, k);
    let [v_batch, v_head, v_seq, v_dim] = strides(e, op, v);
    let [y_batch, y_head, y_seq, _] = strides(e, op, y);
    let [mask_batch, mask_head, mask_query, mask_key] = match mask {
        Some(mask) => mask_strides(e, mask),
        None => [Num::ZERO; 4],
    };
    let lens_stride = lens.and_then(|l| e.strides(l).first().copied());
    let seq = op.layout.seq_axis();
    let q_shape = q.layout.shape();
    let head_dim = q_shape[3].known().unwrap_or(0);
    let (causal, window) = seen(op.mask);
    AttentionParams {
        q_offset: e.offset(q),
        q_batch,
        q_head,
        q_seq,
        q_dim,
        k_offset: e.offset(k),
        k_batch,
        k_head,
        k_seq,
        k_dim,
        v_offset: e.offset(v),
        v_batch,
        v_head,
        v_seq,
        v_dim,
        mask_offset: mask.map_or(Num::ZERO, |m| e.offset(m)),
        mask_batch,
        mask_head,
        mask_query,
        mask_key,
        y_batch,
        y_head,
        y_seq,
        lens_offset: lens.map_or(Num::ZERO, |l| e.offset(l)),
        lens_stride: lens_stride.unwrap_or(Num::ZERO),
        has_lens: lens.is_some().into(),
        causal: causal.into(),
        window: Num::Const(window as i64),
        queries: e.num(&q_shape[seq]),
        keys: e.num(&k.layout.shape()[seq]),
        batch: e.num(&q_shape[0]),
        kv_heads: Num::Const(op.kv_heads as i64),
        group: Num::Const((op.q_heads / op.kv_heads) as i64),
        head_dim: Num::Const(head_dim as i64),
        value_dim: e.num(&v.layout.shape()[3]),
        tiles: Num::ZERO,
        slices: Num::ZERO,
        splits: Num::ONE,
        split_keys: Num::ZERO,
        groups: Num::ZERO,
        scale: op.scale_for(head_dim) as f32,
        softcap: op.softcap.map_or(1.0, |c| c.0 as f32),
    }
}
