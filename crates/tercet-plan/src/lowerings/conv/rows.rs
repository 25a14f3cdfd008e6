//! Windows of one element, one of each batch entry: few rows times a matrix, which reads weights once and nothing else. What squeezes
//! and excites the channels of pictures is that.

use tercet_ir::{CompileError, Dim};

use super::Given;
use crate::caps::FEW_ROWS;
use crate::emit::{Emit, View};
use crate::families::matmul::linear_into;
use crate::variant::{Variant, needs};

pub(super) fn variant<'a>() -> Variant<Given<'a>> {
    Variant {
        name: "rows",
        supports: |e, c| {
            let are_rows = c.windows.are_elements() && c.windows.count.is_one();
            let few = e.bound(&c.x.layout.shape()[0])? <= FEW_ROWS;
            needs(
                are_rows && few && c.op.groups == 1 && !c.own.is_one(),
                "up to 8 batch entries of one window of one element, in one group",
            )
        },
        // Reading the weights.
        cost: |e, c| {
            let elements = e.bound(&c.m)? as f64 * e.bound(&c.k)? as f64;
            let bytes = elements * c.w.dtype.size_bytes() as f64;
            Ok(bytes / e.caps.device.rates.bytes_per_s)
        },
        emit: |e, c| c.rows(e),
    }
}

impl Given<'_> {
    /// Batch entries as rows of a product.
    fn rows(&self, e: &mut Emit<'_>) -> Result<(), CompileError> {
        let entries = self.x.layout.shape()[0].clone();
        let as_matrix = |view: View, dims: [&Dim; 2]| -> View {
            let layout = view.layout.reshape(&dims.map(Dim::clone));
            let layout = layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape"));
            View { layout, ..view }
        };
        let x = as_matrix(e.dense(&self.x)?, [&entries, &self.k]);
        let w = as_matrix(self.w.clone(), [&self.m, &self.k]);
        let w = View {
            layout: w.layout.transpose(&[1, 0]),
            ..w
        };
        let y = as_matrix(self.y.clone(), [&entries, &self.m]);
        linear_into(e, [&x, &w, &y], self.bias.clone(), self.op.activation)
    }
}
