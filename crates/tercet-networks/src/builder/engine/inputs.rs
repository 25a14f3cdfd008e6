//! Input tensors of a run: how the programs of an engine address the positions of its slots.

use tercet::Tensor;

use super::super::decoder::SEEN;
use super::super::decoder::run_rows::{LogitRows, RunRows, SlotChunk, empty_input, write_input};

/// Inputs of a run, by the kind of the engine's programs.
pub(crate) enum ProgramInputs {
    /// Programs of one text with contiguous caches.
    Text(Box<TextInputs>),
    /// Programs of several slots: caches have a slot axis.
    Slots(BatchInputs),
}

impl ProgramInputs {
    /// Fills the inputs for a run.
    pub(super) fn fill(&mut self, rows: &RunRows<'_>) {
        match self {
            ProgramInputs::Text(inputs) => inputs.fill(rows),
            ProgramInputs::Slots(inputs) => inputs.fill(rows),
        }
    }

    pub(super) fn named(&self) -> Vec<(&str, &Tensor)> {
        match self {
            ProgramInputs::Text(inputs) => inputs.named(),
            ProgramInputs::Slots(inputs) => inputs.named(),
        }
    }

    /// True if the programs serve one text only.
    pub(super) fn is_text(&self) -> bool {
        matches!(self, ProgramInputs::Text(_))
    }

    /// True if a run with these rows may round matmul inputs, so that its logits are checked.
    pub(super) fn may_round(&self, rows: &RunRows<'_>) -> bool {
        /// No executor rounds matmul inputs in a run of at most this many rows.
        const NOT_ROUNDED: usize = 8;
        let is_prompt = self.is_text() || matches!(rows, RunRows::Chunk(_, LogitRows::Last));
        rows.count() > if is_prompt { 1 } else { NOT_ROUNDED }
    }
}

/// Named inputs of a graph of one text.
pub(crate) struct TextInputs {
    tensors: [Tensor; 5],
    /// Input whose length is the filled part of the caches, for caches that are decoded to another
    /// dtype.
    filled: Option<Tensor>,
}

/// Input names, in the order of [`TextInputs::tensors`].
const TEXT_INPUTS: [&str; 5] = ["tokens", "positions", "start", "kv_len", "rows"];

impl TextInputs {
    /// Allocates the inputs. `decodes` marks caches that are decoded before attention.
    pub(crate) fn new(decodes: bool) -> TextInputs {
        TextInputs {
            tensors: TEXT_INPUTS.map(|_| empty_input()),
            filled: decodes.then(empty_input),
        }
    }

    fn fill(&mut self, rows: &RunRows<'_>) {
        let Some(part) = rows.parts().first() else {
            return;
        };
        let tokens = part.tokens.iter().map(|token| *token as i32);
        write_input(&mut self.tensors[0], &[part.tokens.len()], tokens);
        let wanted = match rows {
            RunRows::Chunk(part, LogitRows::All) => part.tokens.len(),
            RunRows::Chunk(_, LogitRows::Last) | RunRows::Tokens(..) => 1,
        };
        self.place(part.start, part.tokens.len(), wanted);
    }

    /// Fills all inputs except the tokens. The run has `n` tokens from position `start` on; its last
    /// `wanted` tokens produce logits.
    fn place(&mut self, start: usize, n: usize, wanted: usize) {
        let [_, positions, at, kv_len, rows] = &mut self.tensors;
        let numbers = |from: usize, to: usize| (from..to).map(|i| i as i32);
        write_input(positions, &[n], numbers(start, start + n));
        write_input(at, &[4], [0, start as i32, 0, 0]);
        write_input(kv_len, &[], [(start + n) as i32]);
        write_input(rows, &[wanted], numbers(n - wanted, n));
        if let Some(filled) = &mut self.filled {
            write_input(filled, &[start + n], std::iter::repeat_n(0, start + n));
        }
    }

    fn named(&self) -> Vec<(&str, &Tensor)> {
        let own = TEXT_INPUTS.into_iter().zip(&self.tensors);
        own.chain(self.filled.iter().map(|filled| (SEEN, filled)))
            .collect()
    }

    /// Inputs of the next token at position `start`, which the device passes from the run before it;
    /// `None` if the shapes of the caches depend on the position.
    pub(super) fn ahead(&mut self, start: usize) -> Option<Vec<(&str, &Tensor)>> {
        if self.filled.is_some() {
            return None;
        }
        self.place(start, 1, 1);
        Some(self.named().split_off(1))
    }
}

/// Named inputs of a graph of slots: [`COMMON`], then [`OF_SLOT`] per slot if the graph has them,
/// then [`ADAPTERS`].
pub(crate) struct BatchInputs {
    names: Vec<String>,
    tensors: Vec<Tensor>,
    slots: usize,
    context: usize,
    have_adapters: bool,
    /// Input whose length is the filled length of the fullest slot, for caches that are decoded to
    /// another dtype.
    filled: Option<Tensor>,
}

const FILLED: &str = "slots.seen";

const COMMON: [&str; 12] = [
    "tokens",
    "positions",
    "rows",
    "idle",
    "places",
    "slots.row",
    "slots.kv_len",
    "results",
    "prompt.rows",
    "prompt.start",
    "prompt.kv_len",
    "prompt.seen",
];
const OF_SLOT: [&str; 2] = ["rows", "start"];
/// Adapter index of each row, for models with selectable adapters; it is the last input.
const ADAPTERS: &str = "adapters";

impl BatchInputs {
    /// Allocates the inputs for `slots` caches of length `context`. `are_apart` adds row inputs per
    /// slot, `have_adapters` adds the adapter input. `decodes` marks caches that are decoded before
    /// attention.
    pub(crate) fn new(
        [slots, context]: [usize; 2],
        are_apart: bool,
        have_adapters: bool,
        decodes: bool,
    ) -> BatchInputs {
        let apart = if are_apart { slots } else { 0 };
        let of_slots = (0..apart).flat_map(|k| OF_SLOT.map(|name| format!("{name}.{k}")));
        let names: Vec<String> = COMMON
            .map(String::from)
            .into_iter()
            .chain(of_slots)
            .chain(have_adapters.then(|| ADAPTERS.to_string()))
            .collect();
        let tensors = names.iter().map(|_| empty_input());
        BatchInputs {
            tensors: tensors.collect(),
            names,
            slots,
            context,
            have_adapters,
            filled: decodes.then(empty_input),
        }
    }

    /// Fills the inputs for a run. A prefill chunk produces logits only for its last token, a
    /// decode run and a draft run for every row.
    fn fill(&mut self, rows: &RunRows<'_>) {
        let (parts, idle) = (rows.parts(), rows.idle());
        let all = rows.count();
        let none = std::iter::repeat_n(0, idle);
        let tokens = parts.iter().flat_map(|part| &part.tokens);
        let tokens: Vec<i32> = tokens.map(|t| *t as i32).chain(none.clone()).collect();
        let positions =
            |part: &SlotChunk| (part.start..part.start + part.tokens.len()).map(|p| p as i32);
        let own = parts.iter().flat_map(&positions);
        let at: Vec<i32> = own.chain(none).collect();
        let own = parts
            .iter()
            .flat_map(|part| positions(part).flat_map(|p| [part.slot as i32, p]));
        let trash = [0, self.context as i32];
        let places: Vec<i32> = own.chain((0..idle).flat_map(|_| trash)).collect();
        let mut row_of_slot = vec![0; self.slots];
        let mut kv_lens = vec![1; self.slots];
        let mut results = Vec::with_capacity(all);
        let mut prompt: (&[i32], usize, usize) = (&[], 0, 0);
        let counted: Vec<i32> = (0..all as i32).collect();
        let mut logits = counted.as_slice();
        match rows {
            RunRows::Tokens(parts, _) => {
                for (row, part) in parts.iter().enumerate() {
                    row_of_slot[part.slot] = row as i32;
                    kv_lens[part.slot] = part.start as i32 + 1;
                    results.push(part.slot as i32);
                }
            }
            RunRows::Chunk(part, wanted) => {
                prompt = (&counted, part.slot, part.start + part.tokens.len());
                if *wanted == LogitRows::Last {
                    logits = &counted[all - 1..];
                }
                results.extend(counted.iter().map(|row| self.slots as i32 + row));
            }
        }
        results.resize(all, 0);
        if let Some(filled) = &mut self.filled {
            let most = kv_lens.iter().copied().max().unwrap_or(1) as usize;
            write_input(filled, &[most], vec![0; most]);
        }
        let (of_prompt, slot, seen) = prompt;
        self.write(0, &[all], &tokens);
        self.write(1, &[all], &at);
        self.write(2, &[logits.len()], logits);
        self.write(3, &[idle], &vec![0; idle]);
        self.write(4, &[all, 2], &places);
        self.write(5, &[self.slots], &row_of_slot);
        self.write(6, &[self.slots], &kv_lens);
        self.write(7, &[all], &results);
        self.write(8, &[of_prompt.len()], of_prompt);
        self.write(9, &[4], &[slot as i32, 0, 0, 0]);
        self.write(10, &[], &[seen as i32]);
        self.write(11, &[seen], &vec![0; seen]);
        self.fill_apart(parts);
        if self.have_adapters {
            let own = parts.iter().flat_map(|part| {
                let adapter = part.adapter.map_or(0, |at| at as i32 + 1);
                std::iter::repeat_n(adapter, part.tokens.len())
            });
            let own: Vec<i32> = own.chain(std::iter::repeat_n(0, idle)).collect();
            self.write(self.names.len() - 1, &[all], &own);
        }
    }

    /// Fills the row inputs per slot, for layers that compute each slot separately.
    fn fill_apart(&mut self, parts: &[SlotChunk]) {
        let apart = (self.names.len() - COMMON.len()) / OF_SLOT.len();
        // The division above rounds down, so a single adapter input after the slot inputs does not
        // count.
        let mut parts = parts.iter().peekable();
        let mut row = 0;
        for slot in 0..apart {
            let part = parts.next_if(|part| part.slot == slot);
            // Slots without rows use start 1: start 0 would reset their recurrent states.
            let (start, count) = part.map_or((1, 0), |part| (part.start, part.tokens.len()));
            let own: Vec<i32> = (row..row + count as i32).collect();
            row += count as i32;
            let at = COMMON.len() + slot * OF_SLOT.len();
            self.write(at, &[count], &own);
            self.write(at + 1, &[4], &[0, start as i32, 0, 0]);
        }
    }

    fn write(&mut self, at: usize, shape: &[usize], values: &[i32]) {
        write_input(&mut self.tensors[at], shape, values.iter().copied());
    }

    fn named(&self) -> Vec<(&str, &Tensor)> {
        self.names
            .iter()
            .map(String::as_str)
            .zip(&self.tensors)
            .chain(self.filled.iter().map(|filled| (FILLED, filled)))
            .collect()
    }
}
