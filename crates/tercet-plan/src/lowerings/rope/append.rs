//! What stands before attention over a KV cache, in one step: RoPE of queries and keys, and the appends of keys and
//! values to their caches (`KvAppend` of `fusions`). The attention that follows emits it, or does it itself.

use tercet_ir::{CompileError, NodeId, Shape};

use super::{RopeParams, turn};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::families::words::{eight, lanes};
use crate::families::{dynamic_slice, portable};
use crate::fusions::KvAppend;
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::program::SlotId;
use crate::scalar::PRELUDE;

crate::params! {
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

/// RoPE of queries and keys; keys and values go into their caches.
pub(super) static APPEND: Kernel<AppendParams> = Kernel::wgsl(
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
    &["DTYPE", "COS", "SIN", "HEAD", "HEADS"],
);

/// Neighbouring heads of which an invocation takes the same element, where heads are so many: most of its work is where they
/// begin.
const TOGETHER: usize = 4;

/// True if the device binds as much as the kernel takes.
pub(crate) fn is_available(caps: &Caps) -> bool {
    caps.max_storage_buffers as usize >= APPEND.def.args.len()
}

/// The step, as plain data.
#[derive(Debug)]
pub(crate) struct Append {
    /// RoPE of the queries.
    at: NodeId,
    /// The queries with their positions.
    queries: View,
    pub(crate) params: AppendParams,
    /// DTYPE, COS, SIN, HEAD.
    pub(crate) consts: [u32; 4],
    /// Heads that an invocation takes.
    heads: u32,
    /// As the kernel takes them: queries, keys and values, tables, starts, then results.
    pub(crate) args: [SlotId; 9],
    /// The shape of what is appended to a cache.
    pub(crate) window: Shape,
    /// The shape of a cache.
    pub(crate) cache: Shape,
}

impl Append {
    /// The step of a group. Its results get their places here, whoever writes them.
    ///
    /// # Errors
    /// Those of [`Emit::temp`] and [`Emit::dense`].
    pub(crate) fn of(e: &mut Emit<'_>, group: &KvAppend) -> Result<Append, CompileError> {
        let graph = e.graph;
        let [queries, keys] = [group.query_rope, group.key_rope].map(|id| graph.node(id));
        let update = graph.node(group.value_append);
        let (q, k) = (turn(e, queries), turn(e, keys));
        let ty = &queries.outputs[0];
        let y = e.with_node(group.query_rope, |e| e.temp(ty.dtype, &ty.shape))?;
        e.set_places(group.query_rope, vec![y.clone()]);
        let (key_cache, _) = cache(e, group.key_append)?;
        let (value_cache, starts) = cache(e, group.value_append)?;
        let v = e.view(update.inputs[1]);
        let window = keys.outputs[0].shape.clone();
        let params = params(e, [&q.params, &k.params], &v, &value_cache);
        let [dtype, cosines, sines] = q.consts();
        // Rows of caches are whole words of known length.
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
        Ok(Append {
            at: group.query_rope,
            params,
            consts: [dtype, cosines, sines, head as u32],
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
    pub(crate) fn emit(&self, e: &mut Emit<'_>) {
        let (k, q) = (self.params.k_numel, self.params.q_numel);
        let tape = e.tape();
        let both = tape.add(k, k);
        let all = tape.add(q, both);
        let words = tape.ceil_div(all, self.heads * lanes(self.queries.dtype));
        let grid = e.grid_of(words, 256);
        let consts: Vec<u32> = self.consts.into_iter().chain([self.heads]).collect();
        e.with_node(self.at, |e| {
            e.dispatch_guarded(&APPEND, &consts, &self.args, &self.params, grid);
        });
    }
}

/// Where the cache lies that an update writes, which is also where its result does, and the starts of the window.
fn cache(e: &mut Emit<'_>, update: NodeId) -> Result<(View, View), CompileError> {
    let node = e.graph.node(update);
    let starts = e.with_node(update, |e| dynamic_slice::starts_of_update(e, node))?;
    let cache = e.view(node.inputs[0]);
    e.set_places(update, vec![cache.clone()]);
    Ok((cache, starts))
}

/// The block of queries and keys with their positions, of values and of a cache.
fn params(e: &mut Emit<'_>, [q, k]: [&RopeParams; 2], values: &View, cache: &View) -> AppendParams {
    let own = e.strides(values);
    AppendParams {
        sizes: eight(&e.sizes(cache.layout.shape())),
        window: eight(&e.sizes(values.layout.shape())),
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
        v_offset: e.offset(values),
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
    }
}
