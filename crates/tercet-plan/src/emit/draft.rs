//! The program while it is made.

use std::collections::HashMap;

use tercet_ir::{DType, Dim, Tensor};

use super::View;
use super::decoding::Decoding;
use crate::flow::{Flow, Site};
use crate::kernel::{Instance, Word};
use crate::num::{Num, Tape};
use crate::program::{
    Buffer, Chain, CheckKind, Choice, DataCheck, KernelId, SizeCheck, SlotId, Step,
};
use crate::variant::Taken;

/// What memory a slot gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A range of the arena, shared over time.
    Arena,
    /// A range of the prepared values.
    Prepared,
    /// A range of the outputs.
    Output,
    /// A range of the inputs.
    Input,
    /// A range of the counters.
    Counters,
    /// A buffer, from this offset.
    At(Buffer, u64),
    /// A part of an input or output that no kernel binds as a whole, from this offset.
    Within(SlotId, u64),
}

impl Home {
    /// True if the contents are the same in every run with the same parameters.
    pub(crate) fn is_constant(self) -> bool {
        match self {
            Home::Prepared | Home::At(Buffer::Const(_) | Buffer::Param(_), _) => true,
            Home::Arena
            | Home::Output
            | Home::Input
            | Home::Counters
            | Home::At(..)
            | Home::Within(..) => false,
        }
    }
}

/// A slot while the program is made.
#[derive(Clone, Debug)]
pub(crate) struct SlotDraft {
    pub(crate) bytes: u64,
    pub(crate) dtype: DType,
    /// Elements, to tell whether a view is the whole slot.
    pub(crate) numel: Option<Dim>,
    pub(crate) home: Home,
}

/// A program while it is made.
#[derive(Debug, Default)]
pub(crate) struct Draft {
    pub(crate) slots: Vec<SlotDraft>,
    pub(crate) kernels: Vec<Instance>,
    pub(super) known: HashMap<Instance, KernelId>,
    pub(crate) prepare: Vec<Step>,
    /// The steps of the stage that is open.
    pub(crate) steps: Vec<Step>,
    /// Weights that are decoded, and when.
    pub(crate) decoding: Decoding,
    /// What is closed, in the graph at hand.
    pub(crate) flow: Vec<Flow<Vec<Step>>>,
    pub(crate) params: Vec<Word>,
    /// Constants of the graph and tables of families, by the number of their buffer.
    pub(crate) consts: Vec<Tensor>,
    pub(crate) choices: Vec<Choice>,
    pub(crate) tape: Tape,
    pub(crate) data_checks: Vec<DataCheck>,
    pub(crate) size_checks: Vec<SizeCheck>,
    /// Words of parameter blocks that take the number of data checks.
    pub(crate) guards: Vec<usize>,
    /// Slots over the records of some data checks, which one dispatch writes.
    pub(crate) joined_records: HashMap<SlotId, Vec<SlotId>>,
    /// The slot over all records of data checks.
    pub(crate) faults: Option<SlotId>,
    /// The chains of dispatches, where there are any.
    pub(crate) chain: Option<Chain>,
    /// The first node of them, until their counters have a place.
    pub(super) chain_site: Option<Site>,
    /// The variants of kernels that were taken.
    pub(crate) variants: Vec<Taken>,
    /// Checks made so far: operand, kind, size.
    pub(super) checked: Vec<(View, CheckKind, Num)>,
    /// Slots whose elements are indices of an axis of this size by how they are made.
    pub(super) within: Vec<(SlotId, Num)>,
}

impl Draft {
    pub(crate) fn home(&self, slot: SlotId) -> Home {
        self.slots[slot.0 as usize].home
    }
}
