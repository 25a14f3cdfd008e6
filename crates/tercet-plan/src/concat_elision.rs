//! Concat elision: parameters placed contiguously in one buffer, so that their concatenation along
//! axis 0 needs no copy. If matmuls with a common left operand are fused into one, the
//! concatenation of their weights thus needs no second copy of the weights.

use std::collections::HashMap;

use tercet_ir::{Graph, Node, NodeId, Op, Signature, Value};

use crate::caps::DeviceCaps;
use crate::emit::all_known;
use tercet_program::SoaLayout;
use tercet_program::device_dtype;

/// Parameters that are placed contiguously in a shared buffer, and the concatenations that this
/// placement makes unnecessary.
#[derive(Debug, Default)]
pub(crate) struct ElidedConcats {
    /// By signature index of a parameter: the index of the first parameter in the same buffer, and
    /// the byte offset of the parameter in that buffer.
    pub(crate) buffer_offsets: HashMap<u32, (u32, u64)>,
    /// Elided concatenations, each with the signature index of the first parameter in its buffer.
    pub(crate) nodes: HashMap<NodeId, u32>,
}

impl ElidedConcats {
    /// Finds the concatenations of parameters whose results fit into one binding. Other readers of
    /// such a parameter, such as backward kernels, bind its range of the shared buffer. `planes`
    /// holds the quantized parameters that are stored as structure of arrays.
    pub(crate) fn new(
        graph: &Graph,
        signature: &Signature,
        planes: &HashMap<Value, SoaLayout>,
        caps: &DeviceCaps,
    ) -> ElidedConcats {
        let mut uses: HashMap<Value, usize> = HashMap::new();
        let inputs = graph.nodes().flat_map(|(_, node)| node.inputs.iter());
        for value in inputs.copied().chain(graph.results()) {
            *uses.entry(value).or_default() += 1;
        }
        let mut joined = ElidedConcats::default();
        for (id, node) in graph.nodes() {
            let Some(parts) = parts(graph, signature, planes, node) else {
                continue;
            };
            let is_only_reader = node.inputs.iter().all(|v| uses.get(v) == Some(&1));
            let align = u64::from(caps.storage_align_bytes);
            let can_be_bound = parts.iter().all(|(_, bytes)| bytes.is_multiple_of(align));
            let mut places: Vec<u32> = parts.iter().map(|(param, _)| *param).collect();
            places.sort_unstable();
            let is_twice = places.windows(2).any(|pair| pair[0] == pair[1]);
            let has_place = places
                .iter()
                .any(|param| joined.buffer_offsets.contains_key(param));
            if is_twice || has_place || !(is_only_reader || can_be_bound) {
                continue;
            }
            let total: u64 = parts.iter().map(|(_, bytes)| bytes).sum();
            let [(first, _), ..] = parts[..] else {
                continue;
            };
            if total > caps.max_binding_bytes {
                continue;
            }
            let mut offset = 0;
            for (param, bytes) in parts {
                joined.buffer_offsets.insert(param, (first, offset));
                offset += bytes;
            }
            joined.nodes.insert(id, first);
        }
        joined
    }
}

/// The parameters that a node concatenates along axis 0, with their sizes in bytes. `None` for
/// other nodes, or if an operand would not start at a whole word.
fn parts(
    graph: &Graph,
    signature: &Signature,
    planes: &HashMap<Value, SoaLayout>,
    node: &Node,
) -> Option<Vec<(u32, u64)>> {
    let Op::Concat(concat) = &node.op else {
        return None;
    };
    if concat.axis != 0 || node.inputs.len() < 2 {
        return None;
    }
    let parts = node.inputs.iter().map(|v| {
        let Op::Param(param) = &graph.node(v.node).op else {
            return None;
        };
        let at = signature.params.iter().position(|p| p.name == param.name)?;
        let ty = graph.ty(*v);
        if !all_known(&ty.shape) || device_dtype(signature.params[at].ty.dtype) != ty.dtype {
            return None;
        }
        let sizes = ty.shape.iter().filter_map(|d| d.known());
        let bytes = sizes.fold(ty.dtype.size_bytes() as u64, |n, d| {
            n.saturating_mul(d as u64)
        });
        let bytes = planes.get(v).map_or(bytes, |planes| {
            bytes / planes.row_bytes as u64 * planes.stride_bytes() as u64
        });
        (bytes > 0).then_some((at as u32, bytes))
    });
    let parts: Vec<(u32, u64)> = parts.collect::<Option<_>>()?;
    let (_, all_but_last) = parts.split_last()?;
    let are_words = all_but_last.iter().all(|(_, bytes)| bytes % 4 == 0);
    are_words.then_some(parts)
}
