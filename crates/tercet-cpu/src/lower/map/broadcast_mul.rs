//! Broadcast multiplication: rows times one row per batch entry. Squeeze-and-excitation gates of
//! channels-last tensors have this form.

use tercet_ir::scalar::BinaryFn;
use tercet_ir::{DType, Graph, Node, Op};

use crate::args::{KernelArgs, KernelView};
use crate::lower::elem::parts;

/// Minimum elements of a parallel task.
const TASK: usize = 1 << 14;

/// True if a node may be a broadcast multiplication; whether it is one depends on the layouts of a
/// run.
pub(super) fn may(graph: &Graph, node: &Node) -> bool {
    let is_f32 = |v: &tercet_ir::Value| graph.ty(*v).dtype == DType::F32;
    let multiplies = matches!(&node.op, Op::Binary(b) if b.f == BinaryFn::Mul);
    let differ = || graph.ty(node.inputs[0]).shape != graph.ty(node.inputs[1]).shape;
    multiplies && node.inputs.iter().all(is_f32) && node.outputs[0].rank() == 4 && differ()
}

/// Computes the product if the layouts match. Returns false otherwise.
pub(super) fn run(args: &mut KernelArgs<'_>) -> bool {
    let &[a, b] = args.ins.as_slice() else {
        return false;
    };
    let out = &mut args.outs[0];
    let &[entries, height, width, columns] = out.shape() else {
        return false;
    };
    let whole =
        |v: &KernelView<'_>| v.layout.is_dense() && v.shape() == [entries, height, width, columns];
    let gates = |v: &KernelView<'_>| {
        let strides = v.layout.strides();
        v.shape() == [entries, 1, 1, columns] && strides[3] == 1 && strides[0] >= 0
    };
    let (x, gate) = match (whole(&a), whole(&b)) {
        (true, _) if gates(&b) => (a, b),
        (_, true) if gates(&a) => (b, a),
        (_, _) => return false,
    };
    if out.layout.numel() == 0 {
        return true;
    }
    let (x, factors): (&[f32], &[f32]) = (x.dense(), gate.tail());
    let step = gate.layout.strides()[0] as usize;
    let rows = TASK.div_ceil(columns);
    let task = rows * columns;
    parts(args.parallel, out.as_mut(), task, |i, y: &mut [f32]| {
        let x = x[i * task..].chunks_exact(columns);
        for (j, (y, x)) in y.chunks_exact_mut(columns).zip(x).enumerate() {
            let entry = (i * rows + j) / (height * width);
            let factors = &factors[entry * step..][..columns];
            for ((y, x), factor) in y.iter_mut().zip(x).zip(factors) {
                *y = x * factor;
            }
        }
    });
    true
}
