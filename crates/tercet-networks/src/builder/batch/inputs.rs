//! Input tensors of a batch run.

use tercet::{DType, Tensor, TensorType};

use super::windows::WindowInputs;

/// New tokens of one slot in a run.
pub(super) struct SlotChunk {
    pub(super) slot: usize,
    /// Index of the adapter that the slot's sequence selected.
    pub(super) adapter: Option<usize>,
    /// Position of the first new token.
    pub(super) start: usize,
    /// Buffers of the slot's window caches: the one that is read, and the one that is written.
    pub(super) banks: [usize; 2],
    pub(super) tokens: Vec<u32>,
}

/// Rows of a run: either one decode step of several sequences, or one prefill chunk.
pub(super) enum BatchRunRows<'a> {
    /// Decode step: one new token for each slot in the list, in order, followed by a number of
    /// padding rows.
    Tokens(&'a [SlotChunk], usize),
    /// One prefill chunk of a prompt.
    Prompt(&'a SlotChunk),
    /// The last token of a sequence and its draft, all with logits.
    Draft(&'a SlotChunk),
}

impl BatchRunRows<'_> {
    pub(super) fn parts(&self) -> &[SlotChunk] {
        match self {
            BatchRunRows::Tokens(parts, _) => parts,
            BatchRunRows::Prompt(part) | BatchRunRows::Draft(part) => std::slice::from_ref(part),
        }
    }

    /// Total number of rows, including padding rows.
    pub(super) fn count(&self) -> usize {
        let own: usize = self.parts().iter().map(|part| part.tokens.len()).sum();
        own + self.idle()
    }

    pub(super) fn idle(&self) -> usize {
        match self {
            BatchRunRows::Tokens(_, idle) => *idle,
            BatchRunRows::Prompt(_) | BatchRunRows::Draft(_) => 0,
        }
    }
}

/// Named inputs of the graph: [`COMMON`], then [`OF_SLOT`] per slot if the graph has them, then
/// [`ADAPTERS`], then the window inputs.
pub(super) struct BatchInputs {
    names: Vec<String>,
    tensors: Vec<Tensor>,
    slots: usize,
    context: usize,
    have_adapters: bool,
    windows: Vec<WindowInputs>,
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
    /// slot, `have_adapters` adds the adapter input. `windows` lists the sliding windows with
    /// separate caches. `decodes` marks caches that are decoded before attention.
    pub(super) fn new(
        [slots, context]: [usize; 2],
        are_apart: bool,
        have_adapters: bool,
        (windows, decodes): (&[usize], bool),
    ) -> BatchInputs {
        let apart = if are_apart { slots } else { 0 };
        let of_slots = (0..apart).flat_map(|k| OF_SLOT.map(|name| format!("{name}.{k}")));
        let names: Vec<String> = COMMON
            .map(String::from)
            .into_iter()
            .chain(of_slots)
            .chain(have_adapters.then(|| ADAPTERS.to_string()))
            .collect();
        let empty = || {
            Tensor::zeros(TensorType::new(DType::I32, &[0]))
                .expect("invariant: an empty tensor fits memory")
        };
        let tensors = names.iter().map(|_| empty());
        BatchInputs {
            tensors: tensors.collect(),
            names,
            slots,
            context,
            have_adapters,
            filled: decodes.then(empty),
            windows: windows
                .iter()
                .map(|w| WindowInputs::new(*w, slots))
                .collect(),
        }
    }

    /// Fills the inputs for a run. A prefill chunk produces logits only for its last token, a
    /// decode run and a draft run for every row.
    pub(super) fn fill(&mut self, rows: &BatchRunRows<'_>) {
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
            BatchRunRows::Tokens(parts, _) => {
                for (row, part) in parts.iter().enumerate() {
                    row_of_slot[part.slot] = row as i32;
                    kv_lens[part.slot] = part.start as i32 + 1;
                    results.push(part.slot as i32);
                }
            }
            BatchRunRows::Prompt(part) | BatchRunRows::Draft(part) => {
                prompt = (&counted, part.slot, part.start + part.tokens.len());
                if let BatchRunRows::Prompt(_) = rows {
                    logits = &counted[all - 1..];
                }
                results.extend(counted.iter().map(|row| self.slots as i32 + row));
            }
        }
        results.resize(all, 0);
        if let Some(filled) = &mut self.filled {
            let most = kv_lens.iter().copied().max().unwrap_or(1) as usize;
            write(filled, &[most], &vec![0; most]);
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
        for window in &mut self.windows {
            window.fill(rows);
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
        write(&mut self.tensors[at], shape, values);
    }

    pub(super) fn named(&self) -> Vec<(&str, &Tensor)> {
        self.names
            .iter()
            .map(String::as_str)
            .zip(&self.tensors)
            .chain(self.filled.iter().map(|filled| (FILLED, filled)))
            .chain(self.windows.iter().flat_map(WindowInputs::named))
            .collect()
    }
}

/// Resizes an I32 input and fills it with these values.
pub(super) fn write(tensor: &mut Tensor, shape: &[usize], values: &[i32]) {
    tensor
        .reset_to(DType::I32, shape)
        .expect("invariant: small shapes fit memory");
    let elements = tensor.as_slice_mut::<i32>();
    let elements = elements.expect("invariant: the inputs are I32");
    elements.copy_from_slice(values);
}
