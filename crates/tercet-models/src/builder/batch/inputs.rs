//! The inputs of a run.

use tercet::{DType, Tensor, TensorType};

/// New tokens of a slot.
pub(super) struct Part {
    pub(super) slot: usize,
    /// The position of the first.
    pub(super) start: usize,
    pub(super) tokens: Vec<u32>,
}

/// The inputs of the graph with their names: [`COMMON`], then [`OF_SLOT`] for each slot.
pub(super) struct Inputs {
    names: Vec<String>,
    tensors: Vec<Tensor>,
}

const COMMON: [&str; 4] = ["tokens", "positions", "rows", "idle"];
const OF_SLOT: [&str; 3] = ["rows", "start", "kv_len"];

impl Inputs {
    pub(super) fn new(slots: usize) -> Inputs {
        let of_slots = (0..slots).flat_map(|k| OF_SLOT.map(|name| format!("{name}.{k}")));
        let names: Vec<String> = COMMON
            .map(String::from)
            .into_iter()
            .chain(of_slots)
            .collect();
        let tensors = names.iter().map(|_| {
            Tensor::zeros(TensorType::new(DType::I32, &[0]))
                .expect("invariant: an empty tensor fits memory")
        });
        Inputs {
            tensors: tensors.collect(),
            names,
        }
    }

    /// Those of a run of these parts, in the order of their slots, and so many rows of no slot. Of a part of one slot alone
    /// the last token gives logits, otherwise all rows do: a run has as many rows of logits as another of as many rows.
    pub(super) fn fill(&mut self, parts: &[Part], idle: usize) {
        let tokens = parts.iter().flat_map(|part| &part.tokens);
        let idle_rows = std::iter::repeat_n(0, idle);
        let tokens: Vec<i32> = tokens.map(|t| *t as i32).chain(idle_rows.clone()).collect();
        let positions = parts
            .iter()
            .flat_map(|part| (part.start..).take(part.tokens.len()));
        let positions: Vec<i32> = positions.map(|p| p as i32).chain(idle_rows).collect();
        let all = tokens.len();
        let logits: Vec<i32> = match parts {
            [part] if idle == 0 && part.tokens.len() > 1 => vec![all as i32 - 1],
            _ => (0..all as i32).collect(),
        };
        self.write(0, &[all], &tokens);
        self.write(1, &[all], &positions);
        self.write(2, &[logits.len()], &logits);
        self.write(3, &[idle], &vec![0; idle]);
        let mut parts = parts.iter().peekable();
        let mut row = 0;
        let slots = (self.names.len() - COMMON.len()) / OF_SLOT.len();
        for slot in 0..slots {
            let part = parts.next_if(|part| part.slot == slot);
            // Without rows it goes on where it is: only at 0 are states those of a beginning.
            let (start, count) = part.map_or((1, 0), |part| (part.start, part.tokens.len()));
            let own: Vec<i32> = (row..row + count as i32).collect();
            row += count as i32;
            let at = COMMON.len() + slot * OF_SLOT.len();
            self.write(at, &[count], &own);
            self.write(at + 1, &[4], &[0, start as i32, 0, 0]);
            self.write(at + 2, &[], &[part.map_or(0, |_| (start + count) as i32)]);
        }
        debug_assert!(parts.next().is_none(), "parts are in the order of slots");
    }

    fn write(&mut self, at: usize, shape: &[usize], values: &[i32]) {
        let tensor = &mut self.tensors[at];
        tensor
            .reset_to(DType::I32, shape)
            .expect("invariant: small shapes fit memory");
        let elements = tensor.as_slice_mut::<i32>();
        let elements = elements.expect("invariant: the inputs are I32");
        elements.copy_from_slice(values);
    }

    pub(super) fn named(&self) -> Vec<(&str, &Tensor)> {
        self.names
            .iter()
            .map(String::as_str)
            .zip(&self.tensors)
            .collect()
    }
}
