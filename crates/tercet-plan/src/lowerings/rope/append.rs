//! RoPE and KV append in one step (`KvAppendGroup` of `fusions`): RoPE of queries and keys, and the
//! writes of keys and values to their caches. The lowering of the attention that follows either
//! emits this step or fuses it into the attention kernel.

use tercet_ir::{CompileError, Node, NodeId, Op, Shape, Value};

use super::{RopeParams, turn};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::KvAppendGroup;
use crate::lowerings::words::{eight, lanes};
use crate::lowerings::{code, dynamic_slice, portable, scatter};
use crate::scalar::PRELUDE;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `rope_append.wgsl`.
    pub struct RopeAppendParams {
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

/// Arguments: queries, keys, values, tables, and starts or keys of slices; then the results.
const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Write,
    ArgAccess::Write,
    ArgAccess::Read,
];

const CONSTS: &[&str] = &["DTYPE", "COS", "SIN", "HEAD", "HEADS", "FROM"];

/// Applies RoPE to queries and keys, and writes keys and values to windows of their caches.
pub(crate) static APPEND: TypedKernel<RopeAppendParams> = TypedKernel::wgsl(
    "rope_append",
    &[
        PRELUDE,
        portable!("window.wgsl"),
        portable!("rope_turn.wgsl"),
        portable!("rope_append_window.wgsl"),
        portable!("rope_append.wgsl"),
    ],
    ARGS,
    CONSTS,
);

/// Applies RoPE to queries and keys, and scatters keys and values to slices of their caches.
pub(crate) static APPEND_SCATTER: TypedKernel<RopeAppendParams> = TypedKernel::wgsl(
    "rope_append_scatter",
    &[
        PRELUDE,
        portable!("rope_turn.wgsl"),
        portable!("rope_append_scatter.wgsl"),
        portable!("rope_append.wgsl"),
    ],
    ARGS,
    CONSTS,
);

/// Number of adjacent heads that each thread processes if there are many heads. A thread then
/// amortizes its address computation over several heads.
const TOGETHER: usize = 4;

/// True if the device supports the number of bindings of the kernel.
pub(crate) fn is_available(caps: &DeviceCaps) -> bool {
    caps.max_storage_buffers as usize >= APPEND.def.args.len()
}

/// A planned step of RoPE and KV append that is not emitted yet.
#[derive(Debug)]
pub(crate) struct RopeAppend {
    /// The RoPE node of the queries.
    at: NodeId,
    /// The queries after RoPE.
    queries: SlotView,
    kernel: &'static TypedKernel<RopeAppendParams>,
    pub(crate) params: RopeAppendParams,
    /// Values of the kernel constants `DTYPE`, `COS`, `SIN` and `HEAD`.
    pub(crate) consts: [u32; 4],
    /// Value of the kernel constant `FROM`: the dtype of queries, keys and values.
    pub(crate) from: u32,
    /// Heads per thread.
    heads: u32,
    /// Arguments in kernel order: queries, keys, values, tables and starts, then the results.
    pub(crate) args: [SlotId; 9],
    /// Shape of the slice appended to a cache.
    pub(crate) window: Shape,
    /// Shape of a cache.
    pub(crate) cache: Shape,
}

impl RopeAppend {
    /// Plans the RoPE and KV append step of a fusion group. Allocates the slots of the group's
    /// results, which the attention kernel (if fused) or a separate kernel writes.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::temp`] and [`LoweringCtx::dense`].
    pub(crate) fn new(
        e: &mut LoweringCtx<'_>,
        group: &KvAppendGroup,
    ) -> Result<RopeAppend, CompileError> {
        let graph = e.graph;
        let [queries, keys] = [group.query_rope, group.key_rope].map(|id| graph.node(id));
        let update = graph.node(group.value_append);
        let (q, k) = (turn(e, queries), turn(e, keys));
        let ty = &graph.node(group.queries()).outputs[0];
        let y = e.with_node(group.query_rope, |e| e.temp(ty.dtype, &ty.shape))?;
        e.set_places(group.queries(), vec![y.clone()]);
        let (key_cache, _) = cache(e, group.key_append)?;
        let (value_cache, starts) = cache(e, group.value_append)?;
        let (kernel, stored) = match update.op {
            Op::ScatterNd(_) => (&APPEND_SCATTER, update.inputs[2]),
            _ => (&APPEND, update.inputs[1]),
        };
        let v = match group.casts {
            Some(casts) => StridedRows::of_cast(e, graph.node(casts.value)),
            None => StridedRows::new(e, stored),
        };
        let window = keys.outputs[0].shape.clone();
        let sizes = eight(&e.sizes(&graph.ty(stored).shape));
        let params = params(e, [&q.params, &k.params], (&v, sizes), &value_cache);
        let [from, cosines, sines] = q.consts();
        // Rows of caches have a known length and consist of whole words.
        let head = window[3].known().unwrap_or(0);
        let has_groups = |shape: &Shape| {
            let heads = shape[2].known();
            heads.is_some_and(|n| n.is_multiple_of(TOGETHER))
        };
        let heads = match has_groups(&ty.shape) && has_groups(&window) {
            true => TOGETHER as u32,
            false => 1,
        };
        let ([x, cos, sin], [keys, ..]) = (q.slots(), k.slots());
        Ok(RopeAppend {
            at: group.query_rope,
            kernel,
            params,
            consts: [code(y.dtype), cosines, sines, head as u32],
            from,
            heads,
            args: [
                x,
                keys,
                v.slot,
                cos,
                sin,
                starts.slot,
                y.slot,
                key_cache.slot,
                value_cache.slot,
            ],
            window,
            cache: update.outputs[0].shape.clone(),
            queries: y,
        })
    }

    /// Emits the step.
    pub(crate) fn emit(&self, e: &mut LoweringCtx<'_>) {
        let (k, q) = (self.params.k_numel, self.params.q_numel);
        let tape = e.tape();
        let both = tape.add(k, k);
        let all = tape.add(q, both);
        let words = tape.ceil_div(all, self.heads * lanes(self.queries.dtype));
        let grid = e.grid_of(words, 256);
        let rest = [self.heads, self.from];
        let consts: Vec<u32> = self.consts.into_iter().chain(rest).collect();
        e.with_node(self.at, |e| {
            e.dispatch_guarded(self.kernel, &consts, &self.args, &self.params, grid);
        });
    }
}

/// The values that a step appends, as strides of batch, both axes of a token, and elements.
struct StridedRows {
    slot: SlotId,
    offset: SymInt,
    strides: [SymInt; 4],
}

impl StridedRows {
    fn new(e: &mut LoweringCtx<'_>, rows: Value) -> StridedRows {
        let view = e.view(rows);
        // Rows to scatter have no batch axis.
        let own = e.strides(&view);
        let missing = 4 - own.len();
        let mut strides = [SymInt::ZERO; 4];
        strides[missing..].copy_from_slice(&own);
        StridedRows {
            slot: view.slot,
            offset: e.offset(&view),
            strides,
        }
    }

    /// The operand of a cast, or of a map that only casts a strided view.
    fn of_cast(e: &mut LoweringCtx<'_>, cast: &Node) -> StridedRows {
        let Op::Map(map) = &cast.op else {
            return StridedRows::new(e, cast.inputs[0]);
        };
        let view = e.view(cast.inputs[0]);
        let own = e.strides(&view);
        let mut offset = e.offset(&view);
        let mut strides = [SymInt::ZERO; 4];
        for (axis, stride) in map.inputs[0].axes.iter().zip(own) {
            let start = e.tape().mul(stride, SymInt::Const(axis.start));
            offset = e.tape().add(offset, start);
            if let Some(from) = axis.from {
                let step = e.tape().mul(stride, SymInt::Const(axis.step));
                strides[from] = e.tape().add(strides[from], step);
            }
        }
        StridedRows {
            slot: view.slot,
            offset,
            strides,
        }
    }
}

/// The cache that an update writes in place, and the start indices of the slice or the keys of the
/// slices.
fn cache(e: &mut LoweringCtx<'_>, update: NodeId) -> Result<(SlotView, SlotView), CompileError> {
    let node = e.graph.node(update);
    let starts = e.with_node(update, |e| match node.op {
        Op::ScatterNd(_) => scatter::keys_of_update(e, node),
        _ => dynamic_slice::starts_of_update(e, node),
    })?;
    let cache = e.view(node.inputs[0]);
    e.set_places(update, vec![cache.clone()]);
    Ok((cache, starts))
}

/// Parameters of the kernel that applies RoPE to queries and keys, and appends the keys or the
/// values to a cache.
fn params(
    e: &mut LoweringCtx<'_>,
    [q, k]: [&RopeParams; 2],
    (values, window): (&StridedRows, [SymInt; 8]),
    cache: &SlotView,
) -> RopeAppendParams {
    let own = values.strides;
    RopeAppendParams {
        sizes: eight(&e.sizes(cache.layout.shape())),
        window,
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
        v_offset: values.offset,
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
        checks: SymInt::ZERO,
    }
}
