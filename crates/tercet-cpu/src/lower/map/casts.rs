//! Maps of a single conversion: converted in one pass, without registers. Elements of a view are
//! gathered into a buffer first.

use bytemuck::{Pod, cast_slice_mut};
use tercet_ir::ops::Map;
use tercet_ir::scalar::ScalarOp;
use tercet_ir::{DType, Graph, Node};

use super::TASK;
use super::body::MapBody;
use super::geometry::{MapGeometry, MapOperandWalk};
use crate::args::{KernelArgs, KernelView};
use crate::kernels::SimdLevel;
use crate::kernels::cast::{self, CastFn};
use crate::lower::elem::parts;
use crate::lower::{AcceptedLayout, LoweredNode};

/// Elements that are gathered before they are converted.
const GATHERED: usize = 1024;

/// Lowers a map that is one conversion of an operand. `None` for other maps.
pub(super) fn lower(
    graph: &Graph,
    node: &Node,
    map: &Map,
    inputs: &[DType],
    steps: &[DType],
) -> Option<LoweredNode> {
    let ([step], &[from]) = (map.body.as_slice(), inputs) else {
        return None;
    };
    let out = &node.outputs[0];
    let whole =
        map.inputs[0].is_identity(out.rank()) && graph.ty(node.inputs[0]).shape == out.shape;
    let convert =
        cast::function(from, out.dtype).filter(|_| matches!(step.op, ScalarOp::Cast(_)))?;
    let (from_bytes, to_bytes) = (from.size_bytes(), out.dtype.size_bytes());
    let level = SimdLevel::detect();
    if !whole {
        let is_shifted = map.inputs[0].axes.iter().any(|axis| axis.shift != 0);
        let body = MapBody::new(map, inputs, steps, &[]);
        return (!is_shifted).then(|| LoweredNode {
            accepts: vec![AcceptedLayout::Any],
            ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
                run_view(level, &body, (convert, to_bytes), args);
                Ok(())
            })
        });
    }
    Some(LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
        let (x, parallel) = (args.ins[0].dense_bytes(), args.parallel);
        parts(parallel, args.outs[0].bytes, TASK * to_bytes, |i, out| {
            let count = out.len() / to_bytes;
            let x = &x[i * TASK * from_bytes..][..count * from_bytes];
            convert(level, x, out);
        });
        Ok(())
    }))
}

/// Converts a view of an operand.
fn run_view(
    level: SimdLevel,
    body: &MapBody,
    (convert, to_bytes): (CastFn, usize),
    args: &mut KernelArgs<'_>,
) {
    let shape = args.outs[0].layout.shape();
    let geometry = MapGeometry::new(&body.inputs, &args.ins, shape, body.block);
    let (view, walk) = (&args.ins[0], &geometry.walks[0]);
    let gather = match view.dtype.size_bytes() {
        1 => gather::<u8>,
        2 => gather::<u16>,
        4 => gather::<u32>,
        _ => gather::<u64>,
    };
    parts(
        args.parallel,
        args.outs[0].bytes,
        TASK * to_bytes,
        |i, out| {
            let mut buffer = [0u64; GATHERED];
            let chunks = out.chunks_mut(GATHERED * to_bytes);
            for (chunk, out) in chunks.enumerate() {
                let first = i * TASK + chunk * GATHERED;
                let count = out.len() / to_bytes;
                let bytes = &mut cast_slice_mut(&mut buffer)[..count * view.dtype.size_bytes()];
                gather(&geometry, walk, view, first, bytes);
                convert(level, bytes, out);
            }
        },
    );
}

/// Copies the elements of a view from `first` on, counted in the order of the result.
fn gather<T: Pod>(
    geometry: &MapGeometry,
    walk: &MapOperandWalk,
    view: &KernelView<'_>,
    first: usize,
    to: &mut [u8],
) {
    let (root, mut to): (&[T], &mut [T]) = (view.root_as(), cast_slice_mut(to));
    let inner = geometry.inner;
    let (mut col, row) = (first % inner, first / inner);
    let stride = geometry.row(walk, row).1;
    for start in geometry.row_starts(walk, row) {
        let (part, rest) = to.split_at_mut(to.len().min(inner - col));
        let mut at = start + col as isize * stride;
        if stride == 1 {
            part.copy_from_slice(&root[at as usize..][..part.len()]);
        } else if stride > 1 {
            let from = root[at as usize..].iter().step_by(stride as usize);
            part.iter_mut().zip(from).for_each(|(to, x)| *to = *x);
        } else {
            for to in part {
                *to = root[at as usize];
                at += stride;
            }
        }
        (to, col) = (rest, 0);
        if to.is_empty() {
            return;
        }
    }
}
