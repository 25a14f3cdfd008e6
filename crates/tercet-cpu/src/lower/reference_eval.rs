//! `reference_eval`: runs an operator's own `eval` on copies of its operands. Slow, exact, and the
//! only kernel that allocates; the table says which operators and dtypes come to it.

use tercet_ir::{EvalError, Graph, Node, Tensor, TensorType};

use crate::args::Args;
use crate::lower::Lowered;

pub(crate) fn lower(_: &Graph, node: &Node) -> Lowered {
    let op = node.op.clone();
    let run = move |args: &mut Args<'_>| -> Result<(), EvalError> {
        let operands: Vec<Tensor> = args
            .ins
            .iter()
            .map(|v| v.to_tensor())
            .collect::<Result<_, _>>()?;
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
    };
    Lowered {
        fallible: true,
        ..Lowered::new(node.inputs.len(), run)
    }
}
