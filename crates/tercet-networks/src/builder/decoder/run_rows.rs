//! Rows of a run of a decoder graph, and I32 inputs that describe them.

use tercet::{DType, Tensor, TensorType};

/// New tokens of one slot in a run.
pub(crate) struct SlotChunk {
    pub(crate) slot: usize,
    /// Index of the adapter that the slot's sequence selected.
    pub(crate) adapter: Option<usize>,
    /// Position of the first new token.
    pub(crate) start: usize,
    /// Buffers of the slot's window caches: the one that is read, and the one that is written.
    pub(crate) banks: [usize; 2],
    pub(crate) tokens: Vec<u32>,
}

/// The tokens of a chunk that produce logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogitRows {
    /// Only the last token, from which the next one is sampled.
    Last,
    /// All tokens, as a draft needs them.
    All,
}

/// Rows of a run: either one decode step of several sequences, or consecutive tokens of one.
pub(crate) enum RunRows<'a> {
    /// Decode step: one new token for each slot in the list, in order, followed by a number of
    /// padding rows.
    Tokens(&'a [SlotChunk], usize),
    /// Consecutive tokens of one sequence.
    Chunk(&'a SlotChunk, LogitRows),
}

impl RunRows<'_> {
    pub(crate) fn parts(&self) -> &[SlotChunk] {
        match self {
            RunRows::Tokens(parts, _) => parts,
            RunRows::Chunk(part, _) => std::slice::from_ref(part),
        }
    }

    /// Total number of rows, including padding rows.
    pub(crate) fn count(&self) -> usize {
        let own: usize = self.parts().iter().map(|part| part.tokens.len()).sum();
        own + self.idle()
    }

    pub(crate) fn idle(&self) -> usize {
        match self {
            RunRows::Tokens(_, idle) => *idle,
            RunRows::Chunk(..) => 0,
        }
    }
}

/// An I32 input without elements.
pub(crate) fn empty_input() -> Tensor {
    let empty = Tensor::zeros(TensorType::new(DType::I32, &[0]));
    empty.expect("invariant: an empty tensor fits memory")
}

/// Resizes an I32 input and fills it with values for all its elements.
pub(crate) fn write_input(
    tensor: &mut Tensor,
    shape: &[usize],
    values: impl IntoIterator<Item = i32>,
) {
    let sized = tensor.reset_to(DType::I32, shape);
    sized.expect("invariant: small shapes fit memory");
    let elements = tensor.as_slice_mut::<i32>();
    let elements = elements.expect("invariant: the inputs are I32");
    let mut values = values.into_iter();
    elements
        .iter_mut()
        .zip(&mut values)
        .for_each(|(element, value)| *element = value);
}
