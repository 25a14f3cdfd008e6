//! Sliding-window caches whose first position moves along the sequence.

use tercet::{DType, Executable, Tensor, TensorType};

use super::super::ModelError;
use super::super::decoder::windows::{WindowedLayers, inputs};
use crate::maybe_async::WaitMode;

/// Caches of all layers with the same sliding window.
pub(super) struct WindowStates {
    window: usize,
    positions: usize,
    /// Sequence position of the first cache entry.
    base: usize,
    states: Vec<String>,
    names: [String; 2],
    tensors: [Tensor; 2],
}

impl WindowStates {
    pub(super) fn new(of: WindowedLayers) -> WindowStates {
        let empty = |shape: &[usize]| {
            Tensor::zeros(TensorType::new(DType::I32, shape))
                .expect("invariant: small shapes fit memory")
        };
        WindowStates {
            window: of.window,
            positions: of.positions,
            base: 0,
            states: of.states(),
            names: inputs(of.window),
            tensors: [empty(&[4]), empty(&[])],
        }
    }

    /// True if the cache still covers the window of a token at `position`.
    pub(super) fn reaches(&self, position: usize) -> bool {
        self.base <= self.first(position)
    }

    /// First position that a token at `position` attends to.
    fn first(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }

    /// Makes room for `rows` tokens from position `start` on and sets their cache offsets. If the
    /// cache is full, the entries in the window move to the front.
    ///
    /// # Errors
    /// [`ModelError::Run`]; the cache contents are then invalid.
    pub(super) async fn reserve(
        &mut self,
        exe: &mut dyn Executable,
        [start, rows]: [usize; 2],
        waits: WaitMode,
    ) -> Result<(), ModelError> {
        if start == 0 {
            self.base = 0;
        }
        if start + rows - self.base > self.positions {
            let first = self.first(start);
            for name in &self.states {
                let mut state = match waits {
                    WaitMode::Blocking => exe.read_state(name)?,
                    WaitMode::Awaiting => exe.fetch_state(name)?.await?,
                };
                let row = state.bytes().len() / self.positions;
                let kept = (first - self.base) * row..(start - self.base) * row;
                state.bytes_mut().copy_within(kept, 0);
                exe.write_state(name, &state)?;
            }
            self.base = first;
        }
        let [at, kv_len] = &mut self.tensors;
        let own = start - self.base;
        let (places, filled) = ([0, own, 0, 0], [own + rows]);
        let numbers = [(at, &places[..]), (kv_len, &filled[..])];
        for (tensor, values) in numbers {
            let slots = tensor.as_slice_mut::<i32>();
            let slots = slots.expect("invariant: the inputs are I32");
            for (slot, value) in slots.iter_mut().zip(values) {
                *slot = *value as i32;
            }
        }
        Ok(())
    }

    /// Names and tensors of the inputs of a run.
    pub(super) fn inputs(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }
}
