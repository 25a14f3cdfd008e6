//! The program under construction.

use std::collections::HashMap;

use tercet_ir::{DType, Dim, Tensor};

use super::SlotView;
use super::dequant_schedule::DequantSchedule;
use crate::caps::DeviceCaps;
use crate::variant::UnmetForce;
use tercet_program::{
    CheckKind, DataCheck, DependentLaunches, KernelId, LaunchSizeCheck, ProgramBuffer, ProgramStep,
    ShapeSwitch, SlotId, VariantSelection,
};
use tercet_program::{ControlFlowGraph, NodeLocation};
use tercet_program::{ExprArena, SymInt};
use tercet_program::{KernelInstance, ParamWord};

/// Placement of a slot: the arena or the buffer that memory planning allocates it in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotPlacement {
    /// The slot is in the arena, where slots with disjoint lifetimes share memory.
    Arena,
    /// The slot is in the buffer of values that are computed once before the first run.
    Prepared,
    /// The output buffer.
    Output,
    /// The input buffer.
    Input,
    /// The counter buffer.
    Counters,
    /// The slot is at this byte offset of this buffer.
    At(ProgramBuffer, u64),
    /// The slot is a part of another slot above the binding limit, at this byte offset of that
    /// slot.
    Within(SlotId, u64),
}

impl SlotPlacement {
    /// True if a slot with this placement has the same contents in every run with the same
    /// parameters.
    pub(crate) fn is_constant(self) -> bool {
        match self {
            SlotPlacement::Prepared
            | SlotPlacement::At(ProgramBuffer::Const(_) | ProgramBuffer::Param(_), _) => true,
            SlotPlacement::Arena
            | SlotPlacement::Output
            | SlotPlacement::Input
            | SlotPlacement::Counters
            | SlotPlacement::At(..)
            | SlotPlacement::Within(..) => false,
        }
    }
}

/// A slot that has no buffer offset yet, because memory planning comes later.
#[derive(Clone, Debug)]
pub(crate) struct PendingSlot {
    pub(crate) bytes: u64,
    pub(crate) dtype: DType,
    /// Number of elements of the slot, used to detect views that cover the whole slot.
    pub(crate) numel: Option<Dim>,
    pub(crate) home: SlotPlacement,
}

/// A program under construction.
#[derive(Debug, Default)]
pub(crate) struct ProgramBuilder {
    pub(crate) slots: Vec<PendingSlot>,
    pub(crate) kernels: Vec<KernelInstance>,
    pub(super) kernel_ids: HashMap<KernelInstance, KernelId>,
    pub(crate) prepare: Vec<ProgramStep>,
    /// Steps of the stage under construction.
    pub(crate) steps: Vec<ProgramStep>,
    /// Schedule of weight dequantization.
    pub(crate) decoding: DequantSchedule,
    /// Completed stages and control flow of the current graph.
    pub(crate) flow: Vec<ControlFlowGraph<Vec<ProgramStep>>>,
    pub(crate) params: Vec<ParamWord>,
    /// Contents of the constant buffers, by index: constants of the graph and lookup tables of
    /// kernels.
    pub(crate) consts: Vec<Tensor>,
    pub(crate) shape_switches: Vec<ShapeSwitch>,
    pub(crate) tape: ExprArena,
    pub(crate) data_checks: Vec<DataCheck>,
    pub(crate) size_checks: Vec<LaunchSizeCheck>,
    /// Indices of parameter words that receive the number of data checks once all nodes are
    /// lowered.
    pub(crate) check_count_words: Vec<usize>,
    /// Slots that cover the fault records of several data checks, which one dispatch writes; each
    /// with the slots of these records.
    pub(crate) joined_records: HashMap<SlotId, Vec<SlotId>>,
    /// Slot that covers the fault records of all data checks.
    pub(crate) faults: Option<SlotId>,
    /// Counters and parameter words of dependent launches; `None` if no kernel uses dependent
    /// launches.
    pub(crate) chain: Option<DependentLaunches>,
    /// Location of the first node with dependent launches; taken once the counters are placed.
    pub(super) chain_site: Option<NodeLocation>,
    /// Selections between kernel variants, for all nodes lowered so far.
    pub(crate) variants: Vec<VariantSelection>,
    /// Forced variants that do not support a problem of their family.
    pub(crate) unmet_forces: Vec<UnmetForce>,
    /// Data checks emitted so far, so that none is repeated: the view of the checked data, the kind
    /// of check and the limit.
    pub(super) checked: Vec<(SlotView, CheckKind, SymInt)>,
    /// Keys of scatters that later scatters may reuse: the indices, the sizes of the indexed axes,
    /// and the keys.
    pub(super) keys: Vec<((SlotView, Vec<SymInt>), SlotView)>,
    /// Slots whose values are all indices in `[0, len)` by construction, each with `len`.
    pub(super) within: Vec<(SlotId, SymInt)>,
}

impl ProgramBuilder {
    /// Appends a parameter block, padded so that the next block is aligned. Returns the index of
    /// the block's first word.
    pub(crate) fn append_block(&mut self, words: &[ParamWord], caps: &DeviceCaps) -> u32 {
        let at = self.params.len();
        self.params.extend_from_slice(words);
        let align = (caps.uniform_align_bytes.max(16) / 4) as usize;
        let end = self.params.len().next_multiple_of(align).max(at + align);
        self.params.resize(end, ParamWord::SymInt(SymInt::ZERO));
        at as u32
    }

    pub(crate) fn home(&self, slot: SlotId) -> SlotPlacement {
        self.slots[slot.0 as usize].home
    }
}
