//! `reference_eval`: runs an operator's reference implementation (`eval`) on copies of its
//! operands.
//!
//! This kernel is slow and exact, and the only one that allocates. The kernel table lists the
//! operators and dtypes that use this kernel. Other kernels call the reference implementation if
//! operand data is invalid, so that error messages are defined in one place.
//!
//! Operators that use `reference_eval`, with their dtypes ("in part": only some cases):
//!
//! - `grouped_mat_mul`: f64
//! - `resize`: f64 (in part)
//! - `attention`: bf16 (in part), f16 (in part), f32 (in part), f64
//! - `custom`: f32
//! - `sample`: f64
//! - `fft`: f64
//! - `selective_scan`: f64
//! - `mamba2`: f64
//! - `gated_delta_net`: f64
//! - `recurrence`: f64
//! - `gaussian_splat_prepare`: f64
//! - `gaussian_splat_rasterize`: f64
//! - `gaussian_splat_rasterize_grad`: f64

use tercet_ir::{EvalError, Graph, Node, Op, Tensor, TensorType};

use crate::args::{KernelArgs, KernelView};
use crate::lower::{LoweredNode, copy_view};

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let op = node.op.clone();
    LoweredNode {
        fallible: true,
        ..LoweredNode::new(node.inputs.len(), move |args| evaluate(&op, args))
    }
}

/// Evaluates an operator on operands of any layout.
///
/// # Errors
/// Errors of the operator.
pub(crate) fn evaluate(op: &Op, args: &mut KernelArgs<'_>) -> Result<(), EvalError> {
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

fn copy(view: &KernelView<'_>) -> Result<Tensor, EvalError> {
    let mut tensor = Tensor::zeros(TensorType::new(view.dtype, view.shape()))?;
    copy_view(view, tensor.bytes_mut(), false);
    Ok(tensor)
}
