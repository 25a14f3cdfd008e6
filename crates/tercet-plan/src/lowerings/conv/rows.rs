//! Convolutions with a single one-element window per batch entry, as in squeeze-and-excitation: a
//! skinny matmul that reads the weights once.

use tercet_ir::{CompileError, Dim};

use super::ConvProblem;
use crate::caps::MAX_SKINNY_ROWS;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::matmul::linear_into;
use crate::variant::{KernelVariant, needs};

pub(super) fn variant<'a>() -> KernelVariant<ConvProblem<'a>> {
    KernelVariant {
        name: "rows",
        supports: |e, c| {
            let are_rows = c.windows.are_elements() && c.windows.count.is_one();
            let few = e.bound(&c.x.layout.shape()[0])? <= MAX_SKINNY_ROWS;
            needs(
                are_rows && few && c.op.groups == 1 && !c.out_channels_dim.is_one(),
                "at most 8 batch entries with one single-element window, one group",
            )
        },
        // The estimated time is that of reading the weights once.
        cost: |e, c| {
            let elements = e.bound(&c.m)? as f64 * e.bound(&c.k)? as f64;
            let bytes = elements * c.w.dtype.size_bytes() as f64;
            Ok(bytes / e.caps.device.rates.bytes_per_s)
        },
        emit: |e, c| c.rows(e),
    }
}

impl ConvProblem<'_> {
    /// Emits a matmul whose left operand has one row per batch entry.
    fn rows(&self, e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
        let entries = self.x.layout.shape()[0].clone();
        let as_matrix = |view: SlotView, dims: [&Dim; 2]| -> SlotView {
            let layout = view.layout.reshape(&dims.map(Dim::clone));
            let layout = layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape"));
            SlotView { layout, ..view }
        };
        let x = as_matrix(e.dense(&self.x)?, [&entries, &self.k]);
        let w = as_matrix(self.w.clone(), [&self.m, &self.k]);
        let w = SlotView {
            layout: w.layout.transpose(&[1, 0]),
            ..w
        };
        let y = as_matrix(self.y.clone(), [&entries, &self.m]);
        linear_into(e, [&x, &w, &y], self.bias.clone(), self.op.activation)
    }
}
