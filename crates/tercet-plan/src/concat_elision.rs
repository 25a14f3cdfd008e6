//! Parameters that lie behind each other in one buffer, so that their concatenation along the first axis
//! is there without a copy: products of one operand that became one hold their weights once.

use std::collections::HashMap;

use tercet_ir::{Graph, Node, NodeId, Op, Signature, Value};

use crate::caps::Caps;
use crate::driver::device_dtype;
use crate::emit::all_known;
use crate::planes::Planes;

/// Which parameters lie where, and what they are together.
#[derive(Debug, Default)]
pub(crate) struct Joined {
    /// For a parameter, by its place in the signature: the first one of its buffer, and its offset in
    /// bytes.
    pub(crate) homes: HashMap<u32, (u32, u64)>,
    /// Concatenations that need no copy, with the first parameter of the buffer that they are.
    pub(crate) nodes: HashMap<NodeId, u32>,
}

impl Joined {
    /// The concatenations of parameters, up to what a binding takes each. What else reads one of these parameters, as
    /// gradients do, binds it where it begins. Some hold packed rows in planes.
    pub(crate) fn of(
        graph: &Graph,
        signature: &Signature,
        planes: &HashMap<Value, Planes>,
        caps: &Caps,
    ) -> Joined {
        let mut uses: HashMap<Value, usize> = HashMap::new();
        let inputs = graph.nodes().flat_map(|(_, node)| node.inputs.iter());
        for value in inputs.copied().chain(graph.results()) {
            *uses.entry(value).or_default() += 1;
        }
        let mut joined = Joined::default();
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
            let has_place = places.iter().any(|param| joined.homes.contains_key(param));
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
                joined.homes.insert(param, (first, offset));
                offset += bytes;
            }
            joined.nodes.insert(id, first);
        }
        joined
    }
}

/// The operands of a concatenation along the first axis as parameters with their sizes in bytes; none
/// where the bytes of one do not begin with a word.
fn parts(
    graph: &Graph,
    signature: &Signature,
    planes: &HashMap<Value, Planes>,
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
