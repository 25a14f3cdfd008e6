//! Inputs that map rows to positions in the window caches of each slot.

use tercet::{DType, Tensor, TensorType};

use super::super::decoder::slot_windows::{BANKS, inputs};
use super::inputs::{BatchRunRows, SlotChunk, write};

/// Inputs of all layers with the same sliding window.
pub(super) struct WindowInputs {
    window: usize,
    slots: usize,
    names: [String; 7],
    tensors: [Tensor; 7],
}

impl WindowInputs {
    pub(super) fn new(window: usize, slots: usize) -> WindowInputs {
        let empty = || {
            Tensor::zeros(TensorType::new(DType::I32, &[0]))
                .expect("invariant: an empty tensor fits memory")
        };
        WindowInputs {
            window,
            slots,
            names: inputs(window),
            tensors: std::array::from_fn(|_| empty()),
        }
    }

    pub(super) fn named(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.names.iter().map(String::as_str).zip(&self.tensors)
    }

    /// Fills the inputs for a run.
    pub(super) fn fill(&mut self, rows: &BatchRunRows<'_>) {
        let places = BANKS * self.slots;
        let (mut row_of_place, mut kv_lens) = (vec![0; places], vec![1; places]);
        let mut results = Vec::with_capacity(rows.count());
        let mut old = Vec::new();
        let mut prompt_len = 0;
        match rows {
            BatchRunRows::Tokens(parts, _) => {
                for (row, part) in parts.iter().enumerate() {
                    let place = self.place(part, part.banks[1]);
                    row_of_place[place] = row as i32;
                    kv_lens[place] = (part.start + 1).min(self.window) as i32;
                    results.push(place as i32);
                }
            }
            BatchRunRows::Prompt(part) | BatchRunRows::Draft(part) => {
                old = (self.first(part.start)..part.start).collect();
                prompt_len = old.len() + part.tokens.len();
                results.extend((places..places + part.tokens.len()).map(|at| at as i32));
            }
        }
        results.resize(rows.count(), 0);
        let from = |part: &SlotChunk, p: usize| {
            let place = self.place(part, part.banks[0]);
            [place as i32, (p % self.window) as i32]
        };
        let of_prompt = rows.parts().iter().take(1);
        let old_from: Vec<i32> = (of_prompt.clone())
            .flat_map(|part| old.iter().flat_map(move |p| from(part, *p)))
            .collect();
        let old_to: Vec<i32> = of_prompt
            .flat_map(|part| old.iter().flat_map(|p| self.to(part, *p)))
            .collect();
        let of_part = |part: &SlotChunk| part.start..part.start + part.tokens.len();
        let own = rows.parts().iter();
        let own = own.flat_map(|part| of_part(part).flat_map(|p| self.to(part, p)));
        let idle = std::iter::repeat_n(self.nowhere(), rows.idle()).flatten();
        let own: Vec<i32> = own.chain(idle).collect();
        let shapes: [&[usize]; 7] = [
            &[old.len(), 2],
            &[old.len(), 2],
            &[rows.count(), 2],
            &[places],
            &[places],
            &[rows.count()],
            &[],
        ];
        let prompt_len = [prompt_len as i32];
        let values: [&[i32]; 7] = [
            &old_from,
            &old_to,
            &own,
            &row_of_place,
            &kv_lens,
            &results,
            &prompt_len,
        ];
        for ((tensor, shape), values) in self.tensors.iter_mut().zip(shapes).zip(values) {
            write(tensor, shape, values);
        }
    }

    fn place(&self, part: &SlotChunk, bank: usize) -> usize {
        bank * self.slots + part.slot
    }

    /// First position that a token at `position` attends to.
    fn first(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window)
    }

    /// Cache index of position `p`; the discard position if a later token of the same chunk
    /// overwrites it.
    fn to(&self, part: &SlotChunk, p: usize) -> [i32; 2] {
        let end = part.start + part.tokens.len();
        match p + self.window < end {
            true => self.nowhere(),
            false => {
                let place = self.place(part, part.banks[1]);
                [place as i32, (p % self.window) as i32]
            }
        }
    }

    /// Discard position of the cache, which no attention reads.
    fn nowhere(&self) -> [i32; 2] {
        [0, self.window as i32]
    }
}
