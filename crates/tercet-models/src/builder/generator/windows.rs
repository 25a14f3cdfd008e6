//! Caches of layers with a window, whose first position moves along the text.

use tercet::{DType, Executable, Tensor, TensorType};

use super::super::ModelError;
use super::super::decoder::windows::{Windowed, inputs};
use crate::waits::Waits;

/// The caches of the layers of one window.
pub(super) struct WindowStates {
    window: usize,
    positions: usize,
    /// The position of the text that is the first of the caches.
    base: usize,
    states: Vec<String>,
    names: [String; 2],
    tensors: [Tensor; 2],
}

impl WindowStates {
    pub(super) fn new(of: Windowed) -> WindowStates {
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

    /// Whether a text may go on at `position`: all that its window reaches is there.
    pub(super) fn reaches(&self, position: usize) -> bool {
        self.base <= self.first(position)
    }

    /// The first position that a token at `position` sees.
    fn first(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }

    /// Makes room for `rows` tokens from `start` on, and says where they go. Nothing is moved where there is room.
    ///
    /// # Errors
    /// [`ModelError::Run`]; then nothing that the caches hold counts any more.
    pub(super) async fn make_room(
        &mut self,
        exe: &mut dyn Executable,
        [start, rows]: [usize; 2],
        waits: Waits,
    ) -> Result<(), ModelError> {
        if start == 0 {
            self.base = 0;
        }
        if start + rows - self.base > self.positions {
            let first = self.first(start);
            for name in &self.states {
                let mut state = match waits {
                    Waits::Blocking => exe.read_state(name)?,
                    Waits::Awaiting => exe.fetch_state(name)?.await?,
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

    /// The inputs of a run.
    pub(super) fn inputs(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }
}
