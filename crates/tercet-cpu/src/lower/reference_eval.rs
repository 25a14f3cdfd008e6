//! `reference_eval`: runs an operator's own `eval` on copies of its operands. Slow, exact, and the
//! only kernel that allocates; the table says which operators and dtypes come to it. Other kernels
//! come to it for operand data that the operator does not accept, so that its errors are said once.

use tercet_ir::{EvalError, Graph, Node, Op, Tensor, TensorType};

use crate::args::{Args, View};
use crate::lower::{Lowered, copy_view};

pub(crate) fn lower(_: &Graph, node: &Node) -> Lowered {
    let op = node.op.clone();
    Lowered {
        fallible: true,
        ..Lowered::new(node.inputs.len(), move |args| evaluate(&op, args))
    }
}

/// Evaluates an operator on operands of any layout.
///
/// # Errors
/// Those of the operator.
pub(crate) fn evaluate(op: &Op, args: &mut Args<'_>) -> Result<(), EvalError> {
    let operands: Vec<Tensor> = args.ins.iter().map(copy).collect::<Result<_, _>>()?;
    let operands: Vec<&Tensor> = operands.iter().collect();
    let results: Vec<TensorType> = args
        .outs
        .iter()
        .map(|o| TensorType::new(o.dtype, o.shape()))
        .collect();
    let values = op.eval(&args.ctx, &operands, &results)?;
    for (out, value) in args.outs.iter_mut().zip(&values) {
        out.bytes.copy_from_slice(value.bytes());
    }
    Ok(())
}

fn copy(view: &View<'_>) -> Result<Tensor, EvalError> {
    let mut tensor = Tensor::zeros(TensorType::new(view.dtype, view.shape()))?;
    copy_view(view, tensor.bytes_mut(), false);
    Ok(tensor)
}
