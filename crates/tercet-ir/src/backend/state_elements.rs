//! Parts of states: consecutive elements in row-major order.

use std::ops::Range;

use tercet_tensor::{Bindings, Tensor, TensorType};

use super::Port;
use crate::error::RunError;

/// The type of these elements of a state, as a tensor of one axis.
///
/// ```
/// use tercet_ir::backend::elements_of;
/// use tercet_ir::{DType, Graph, Signature, Type};
/// let mut g = Graph::new();
/// let s = g.state("s", Type::new(DType::F32, [2, 3]))?;
/// g.output("y", s)?;
/// let signature = Signature::of(&g);
/// assert_eq!(elements_of(&signature.states[0], &(2..6))?.shape, [4]);
/// assert!(elements_of(&signature.states[0], &(2..7)).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`RunError::Elements`] when the range exceeds the state.
pub fn elements_of(port: &Port, elements: &Range<usize>) -> Result<TensorType, RunError> {
    let ty = port.ty.eval(&Bindings::new())?;
    match elements.start <= elements.end && elements.end <= ty.numel() {
        true => Ok(TensorType::new(ty.dtype, &[elements.len()])),
        false => Err(RunError::Elements {
            name: port.name.clone(),
            ty,
            start: elements.start,
            end: elements.end,
        }),
    }
}

/// Checks that a tensor can replace the elements of a state from `first` on, and returns their range.
///
/// # Errors
/// [`RunError::Type`] for another dtype, [`RunError::Elements`] when the elements exceed the state.
pub fn replaced_elements(
    port: &Port,
    first: usize,
    values: &Tensor,
) -> Result<Range<usize>, RunError> {
    let elements = first..first.saturating_add(values.numel());
    match elements_of(port, &elements)?.dtype == values.dtype() {
        true => Ok(elements),
        false => Err(RunError::Type {
            what: "state",
            name: port.name.clone(),
            expected: port.ty.clone(),
            found: values.ty().clone(),
        }),
    }
}
