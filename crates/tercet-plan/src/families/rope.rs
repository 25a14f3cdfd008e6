//! Rotary position embedding, on views; into a cache where that is all that reads it.

use tercet_ir::ops::RopeStyle;
use tercet_ir::{CompileError, Dim, Node, NodeId, Op, OpKind, Shape, Type, Value};

use super::words::eight;
use super::{Family, always, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `rope.wgsl`.
    pub struct RopeParams {
        sizes: U32x8,
        window: U32x8,
        x_offset: U32,
        x_batch: U32,
        x_first: U32,
        x_second: U32,
        x_dim: U32,
        cos_offset: U32,
        cos_batch: U32,
        cos_first: U32,
        cos_second: U32,
        cos_pair: U32,
        sin_offset: U32,
        sin_batch: U32,
        sin_first: U32,
        sin_second: U32,
        sin_pair: U32,
        first: U32,
        second: U32,
        head_dim: U32,
        n_rot: U32,
        adjacent: U32,
        numel: U32,
        checks: U32,
    }
    /// The block of `rope_append.wgsl`.
    pub struct AppendParams {
        sizes: U32x8,
        window: U32x8,
        q_offset: U32,
        q_batch: U32,
        q_first: U32,
        q_second: U32,
        q_dim: U32,
        k_offset: U32,
        k_batch: U32,
        k_first: U32,
        k_second: U32,
        k_dim: U32,
        v_offset: U32,
        v_batch: U32,
        v_first: U32,
        v_second: U32,
        v_dim: U32,
        cos_offset: U32,
        cos_batch: U32,
        cos_first: U32,
        cos_second: U32,
        cos_pair: U32,
        sin_offset: U32,
        sin_batch: U32,
        sin_first: U32,
        sin_second: U32,
        sin_pair: U32,
        first: U32,
        q_heads: U32,
        k_heads: U32,
        n_rot: U32,
        adjacent: U32,
        q_numel: U32,
        k_numel: U32,
        checks: U32,
    }
}

/// Turns pairs of elements.
static ROPE: Kernel<RopeParams> = Kernel::wgsl(
    "rope",
    &[
        PRELUDE,
        portable!("rope_turn.wgsl"),
        portable!("rope.wgsl"),
        portable!("rope_whole.wgsl"),
    ],
    &[Access::Read, Access::Read, Access::Read, Access::Write],
    &["DTYPE", "COS", "SIN"],
);

/// Turns pairs of elements into a window of a state.
static UPDATE: Kernel<RopeParams> = Kernel::wgsl(
    "rope_update",
    &[
        PRELUDE,
        portable!("rope_turn.wgsl"),
        portable!("rope.wgsl"),
        portable!("window.wgsl"),
        portable!("rope_update.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Read,
    ],
    &["DTYPE", "COS", "SIN"],
);

/// Turns queries, and appends turned keys and values to their states.
static APPEND: Kernel<AppendParams> = Kernel::wgsl(
    "rope_append",
    &[
        PRELUDE,
        portable!("window.wgsl"),
        portable!("rope_turn.wgsl"),
        portable!("rope_append.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
        Access::Write,
        Access::Read,
    ],
    &["DTYPE", "COS", "SIN", "HEAD"],
);

/// `Rope`.
pub(crate) static FAMILY: Family = Family {
    name: "rope",
    ops: &[OpKind::Rope],
    kernels: &[&ROPE.def, &UPDATE.def, &APPEND.def],
    supports: always,
    lower,
};

/// Strides of batch, axis 1, axis 2 and pair of a table `[S, n]` or `[B, S, n]`.
fn table_strides(e: &mut Emit<'_>, table: &View, seq_axis: usize) -> [Num; 4] {
    let own = e.strides(table);
    let mut strides = [Num::ZERO; 4];
    match *own.as_slice() {
        [seq, pair] => {
            strides[seq_axis] = seq;
            strides[3] = pair;
        }
        [batch, seq, pair] => {
            strides[0] = batch;
            strides[seq_axis] = seq;
            strides[3] = pair;
        }
        _ => unreachable!("invariant: inference checked the rank of the tables"),
    }
    strides
}

/// An embedding to lower.
#[derive(Debug)]
struct Turn {
    operands: [View; 3],
    params: RopeParams,
}

/// The operands of a `Rope` and its numbers.
fn turn(e: &mut Emit<'_>, node: &Node) -> Turn {
    let Op::Rope(op) = &node.op else {
        unreachable!("invariant: this family has one operator")
    };
    let operands = [0, 1, 2].map(|i| e.view(node.inputs[i]));
    let [x, cos, sin] = &operands;
    let shape = &node.outputs[0].shape;
    let own = e.strides(x);
    let [cos_batch, cos_first, cos_second, cos_pair] = table_strides(e, cos, op.layout.seq_axis());
    let [sin_batch, sin_first, sin_second, sin_pair] = table_strides(e, sin, op.layout.seq_axis());
    let params = RopeParams {
        sizes: [Num::ONE; 8],
        window: [Num::ONE; 8],
        x_offset: e.offset(x),
        x_batch: own[0],
        x_first: own[1],
        x_second: own[2],
        x_dim: own[3],
        cos_offset: e.offset(cos),
        cos_batch,
        cos_first,
        cos_second,
        cos_pair,
        sin_offset: e.offset(sin),
        sin_batch,
        sin_first,
        sin_second,
        sin_pair,
        first: e.num(&shape[1]),
        second: e.num(&shape[2]),
        head_dim: e.num(&shape[3]),
        n_rot: Num::Const(op.n_rot as i64),
        adjacent: matches!(op.style, RopeStyle::GptJ).into(),
        numel: e.numel(shape),
        checks: Num::ZERO,
    };
    Turn { operands, params }
}

impl Turn {
    fn consts(&self) -> [u32; 3] {
        [0, 1, 2].map(|i| code(self.operands[i].dtype))
    }

    fn slots(&self) -> [SlotId; 3] {
        [0, 1, 2].map(|i| self.operands[i].slot)
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let y = e.result(0)?;
    let turn = turn(e, node);
    e.flush();
    if e.may_wait() && e.caps.max_storage_buffers as usize >= APPEND.def.args.len() {
        e.waiting.queries = Some((e.at, turn, y));
        return Ok(());
    }
    whole(e, &turn, &y);
    Ok(())
}

fn whole(e: &mut Emit<'_>, turn: &Turn, y: &View) {
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let [x, cos, sin] = turn.slots();
    let args = [x, cos, sin, y.slot];
    e.dispatch(&ROPE, &turn.consts(), &args, &turn.params, grid);
}

/// Queries, then keys, on their way: steps that wait for the values of the same tokens, which one kernel writes
/// with them; all of that waits for the attention that reads it.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    queries: Option<(NodeId, Turn, View)>,
    keys: Option<(NodeId, Keys)>,
    append: Option<Append>,
}

/// Keys that go into a window of a state at `starts`.
#[derive(Debug)]
struct Keys {
    turn: Turn,
    shape: Shape,
    state: View,
    starts: SlotId,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.queries.is_none() && self.keys.is_none() && self.append.is_none()
    }
}

/// Emits what waits as steps of their own.
pub(crate) fn emit_apart(e: &mut Emit<'_>, waiting: Waiting) {
    if let Some((at, turn, y)) = waiting.queries {
        (e.at, e.op) = (at, OpKind::Rope.doc().name);
        whole(e, &turn, &y);
    }
    if let Some((at, keys)) = waiting.keys {
        (e.at, e.op) = (at, OpKind::DynamicUpdateSlice.doc().name);
        into_window(e, &keys);
    }
    if let Some(append) = waiting.append {
        append.emit(e);
    }
}

/// Queries, keys and values of the same tokens on their way, as one step.
#[derive(Debug)]
pub(crate) struct Append {
    /// The embedding of the queries.
    at: NodeId,
    /// The turned queries.
    y: View,
    pub(crate) params: AppendParams,
    /// DTYPE, COS, SIN, HEAD.
    pub(crate) consts: [u32; 4],
    /// As the kernel takes them: what is turned and copied, tables, starts, then results.
    pub(crate) args: [SlotId; 9],
    /// The shapes of the window and of a state.
    pub(crate) shapes: [Shape; 2],
}

impl Append {
    /// Emits the step.
    pub(crate) fn emit(&self, e: &mut Emit<'_>) {
        let (k, q) = (self.params.k_numel, self.params.q_numel);
        let tape = e.tape();
        let both = tape.add(k, k);
        let all = tape.add(q, both);
        let words = tape.ceil_div(all, (4 / self.y.dtype.size_bytes()) as u32);
        let grid = e.grid_of(words, 256);
        let (at, op) = (e.at, e.op);
        (e.at, e.op) = (self.at, OpKind::Rope.doc().name);
        e.dispatch_guarded(&APPEND, &self.consts, &self.args, &self.params, grid);
        (e.at, e.op) = (at, op);
    }
}

/// What waits to be appended for an attention of these operands, if nothing else reads the queries, which are `of`.
pub(crate) fn take_append(e: &mut Emit<'_>, of: Value, operands: [&View; 3]) -> Option<Append> {
    let append = e.waiting.append.take()?;
    let [q, k, v] = operands;
    let states = [k, v].map(|view| view.layout.is_contiguous().then_some(view.slot));
    let own = [append.args[7], append.args[8]].map(Some);
    let is_it = append.at == of.node
        && append.y == *q
        && states == own
        && e.graph.use_counts()[of.node.index()][of.port as usize] == 1;
    if is_it {
        return Some(append);
    }
    e.waiting.append = Some(append);
    None
}

/// True if both turn elements of one dtype by the same angles.
fn turn_alike(q: &Turn, k: &Turn) -> bool {
    let angles = |p: &RopeParams| {
        let cos = [
            p.cos_offset,
            p.cos_batch,
            p.cos_first,
            p.cos_second,
            p.cos_pair,
        ];
        let sin = [
            p.sin_offset,
            p.sin_batch,
            p.sin_first,
            p.sin_second,
            p.sin_pair,
        ];
        (cos, sin, [p.first, p.head_dim, p.n_rot, p.adjacent])
    };
    let heads_vary = |p: &RopeParams| p.cos_second != Num::ZERO || p.sin_second != Num::ZERO;
    q.slots()[1..] == k.slots()[1..]
        && q.consts() == k.consts()
        && angles(&q.params) == angles(&k.params)
        && !heads_vary(&q.params)
}

/// Writes values into a window of `state` together with the queries and keys that wait, if they belong to each
/// other.
pub(crate) fn append(e: &mut Emit<'_>, update: &View, state: &View, starts: &View) -> bool {
    let waiting = std::mem::take(&mut e.waiting);
    let (Some((at, queries, y)), Some((_, keys))) = (&waiting.queries, &waiting.keys) else {
        e.waiting = waiting;
        return false;
    };
    // Windows are of heads of known lengths (`fits_state`).
    let head = keys.shape[3].known().unwrap_or(0);
    let alike = e.may_wait()
        && head > 0
        && update.layout.shape() == &keys.shape[..]
        && state.layout.shape() == keys.state.layout.shape()
        && (update.dtype, state.dtype) == (keys.state.dtype, keys.state.dtype)
        && starts.slot == keys.starts
        && state.slot != keys.state.slot;
    if !alike {
        e.waiting = waiting;
        return false;
    }
    let (q, k) = (&queries.params, &keys.turn.params);
    let own = e.strides(update);
    let params = AppendParams {
        sizes: eight(&e.sizes(state.layout.shape())),
        window: eight(&e.sizes(&keys.shape)),
        q_offset: q.x_offset,
        q_batch: q.x_batch,
        q_first: q.x_first,
        q_second: q.x_second,
        q_dim: q.x_dim,
        k_offset: k.x_offset,
        k_batch: k.x_batch,
        k_first: k.x_first,
        k_second: k.x_second,
        k_dim: k.x_dim,
        v_offset: e.offset(update),
        v_batch: own[0],
        v_first: own[1],
        v_second: own[2],
        v_dim: own[3],
        cos_offset: q.cos_offset,
        cos_batch: q.cos_batch,
        cos_first: q.cos_first,
        cos_second: q.cos_second,
        cos_pair: q.cos_pair,
        sin_offset: q.sin_offset,
        sin_batch: q.sin_batch,
        sin_first: q.sin_first,
        sin_second: q.sin_second,
        sin_pair: q.sin_pair,
        first: q.first,
        q_heads: q.second,
        k_heads: k.second,
        n_rot: q.n_rot,
        adjacent: q.adjacent,
        q_numel: q.numel,
        k_numel: k.numel,
        checks: Num::ZERO,
    };
    let [x, cos, sin] = queries.slots();
    let [dtype, cosines, sines] = queries.consts();
    e.waiting.append = Some(Append {
        at: *at,
        y: y.clone(),
        params,
        consts: [dtype, cosines, sines, head as u32],
        args: [
            x,
            keys.turn.slots()[0],
            update.slot,
            cos,
            sin,
            keys.starts,
            y.slot,
            keys.state.slot,
            state.slot,
        ],
        shapes: [keys.shape.clone(), Shape::new(state.layout.shape())],
    });
    true
}

/// True if the result of this node can be written straight into a state of this type, in whole words.
pub(crate) fn fits_state(node: &Node, state: &Type) -> bool {
    let Op::Rope(_) = &node.op else {
        return false;
    };
    let ty = &node.outputs[0];
    let head = (ty.shape[3].known(), state.shape.get(3).and_then(Dim::known));
    let lanes = 4 / ty.dtype.size_bytes().min(4);
    ty.dtype == state.dtype
        && matches!(head, (Some(own), Some(all)) if own == all && own % lanes == 0)
}

/// Writes the result of a `Rope` into the window of `state`, dense, at `starts`.
pub(crate) fn update(e: &mut Emit<'_>, node: &Node, state: &View, starts: &View) {
    let mut turn = turn(e, node);
    let shape = node.outputs[0].shape.clone();
    turn.params.sizes = eight(&e.sizes(state.layout.shape()));
    turn.params.window = eight(&e.sizes(&shape));
    let keys = Keys {
        turn,
        shape,
        state: state.clone(),
        starts: starts.slot,
    };
    let alike =
        |(_, q, y): &(NodeId, Turn, View)| turn_alike(q, &keys.turn) && y.dtype == state.dtype;
    if e.may_wait() && e.waiting.keys.is_none() && e.waiting.queries.as_ref().is_some_and(alike) {
        e.waiting.keys = Some((e.at, keys));
    } else {
        into_window(e, &keys);
    }
}

fn into_window(e: &mut Emit<'_>, keys: &Keys) {
    let words = e.words(keys.state.dtype, &keys.shape);
    let grid = e.grid_of(words, 256);
    let [x, cos, sin] = keys.turn.slots();
    let args = [x, cos, sin, keys.starts, keys.state.slot];
    let turn = &keys.turn;
    e.dispatch_guarded(&UPDATE, &turn.consts(), &args, &turn.params, grid);
}
