//! A compiled program: plain data that a GPU runtime executes, without any GPU API type.
//!
//! The symbols' bounds fix the kernels, slots, memory, step order and barriers. The sizes of a run
//! only change launch-time values ([`crate::LaunchSizes`]): parameter blocks and grids.
//!
//! If the best kernel depends on a size, the program contains the steps of every branch of a shape
//! switch ([`ShapeSwitch`]). Each run executes one branch per shape switch
//! ([`GpuProgram::active_steps`]). Control flow that depends on data is a list of stages in a
//! [`ControlFlowGraph`] (`flow.rs`).
//!
//! Invariants: Every slot fits into its buffer. If two steps touch the same bytes and one writes
//! them, a barrier separates them, or no run executes both; [`crate::check_races`] proves this
//! independently. Kernels access only bytes of their slots.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;
use tercet_ir::ops::Slice;
use tercet_ir::{DType, DebugSwitches, Dim, NodeId, Shape, Signature, Symbol, Tensor, Type};

use crate::flow::{ControlFlowGraph, NodeLocation};
use crate::kernel::{ArgAccess, KernelInstance, ParamWord};
use crate::soa_layout::SoaLayout;
use crate::sym_int::{ExprArena, SymInt};
use crate::variant_selection::VariantSelection;

/// Index of a slot of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// Index of a kernel instance of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u32);

/// A separate allocation of device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ProgramBuffer {
    /// The inputs of a run, which the host uploads before the run.
    Input,
    /// The outputs of a run, which the host reads back after the run.
    Output,
    /// The fault records, one per data check ([`DataCheck`]). The host reads the fault records back
    /// after a run.
    Faults,
    /// Intermediate values. Slots with disjoint lifetimes share memory.
    Arena,
    /// Values computed once from parameters and constants.
    Prepared,
    /// Counters of kernels: zeroed at allocation, and reset to zero by every kernel that uses them.
    /// Each executable has a separate buffer for these counters.
    Counters,
    /// The value of a graph constant, given by its index.
    Const(u32),
    /// The value of a parameter, given by its index in the signature. Executables of one program
    /// share the buffer of a parameter.
    Param(u32),
    /// The value of a state, given by its index in the signature.
    State(u32),
}

/// A slot: a byte range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BufferSlot {
    /// The buffer that contains the slot.
    pub buffer: ProgramBuffer,
    /// Offset of the slot in its buffer, in bytes.
    pub offset_bytes: u64,
    /// Size of the slot in bytes at the symbols' bounds, a multiple of 4.
    pub bytes: u64,
    /// Dtype of the elements, for printing.
    pub dtype: DType,
}

impl BufferSlot {
    /// True if the two slots share bytes.
    pub fn overlaps(&self, other: &BufferSlot) -> bool {
        self.buffer == other.buffer
            && self.offset_bytes < other.offset_bytes + other.bytes
            && other.offset_bytes < self.offset_bytes + self.bytes
    }
}

/// A dispatch of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelDispatch {
    /// The kernel to dispatch.
    pub kernel: KernelId,
    /// Slots of the kernel's arguments, in order of their bindings, which start at 1.
    /// [`KernelInstance::args`] has the access modes of these slots.
    pub args: SmallVec<[SlotId; 8]>,
    /// Start of the parameter block in [`GpuProgram::params`], in words.
    pub block: u32,
    /// Number of workgroups along each axis. If a number is zero, no workgroup runs.
    pub grid: [SymInt; 3],
}

/// What a step does: a dispatch, a copy or a fill.
#[derive(Clone, Debug, PartialEq)]
pub enum StepOp {
    /// Dispatches a kernel.
    Dispatch(KernelDispatch),
    /// Copies bytes from the start of one slot to the start of another.
    Copy {
        /// The slot to copy from.
        src: SlotId,
        /// The slot to copy to.
        dst: SlotId,
        /// Number of bytes to copy, a multiple of 4.
        bytes: SymInt,
    },
    /// Fills a slot with a repeated word.
    Fill {
        /// The slot to fill.
        dst: SlotId,
        /// The 32-bit word that is repeated.
        word: u32,
    },
}

/// Index of a shape switch of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShapeSwitchId(pub u32);

/// A shape switch: a runtime branch on a symbolic size, with one branch per size range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShapeSwitch {
    /// The symbolic value that selects the branch.
    pub value: SymInt,
    /// Upper limit (inclusive) of each branch except the last, in ascending order.
    pub bounds: SmallVec<[u32; 4]>,
    /// For each branch, the first branch that gives results with the same bits; empty if each
    /// branch has its own.
    pub same_bits: SmallVec<[u32; 4]>,
}

impl ShapeSwitch {
    /// Index of the branch for a value.
    pub fn branch_for(&self, value: i64) -> u32 {
        let below = self.bounds.iter().filter(|b| value > i64::from(**b));
        below.count() as u32
    }

    /// Index of the first branch that gives the same bits as the branch for a value.
    pub fn variant_for(&self, value: i64) -> u32 {
        let branch = self.branch_for(value);
        let same = self.same_bits.get(branch as usize);
        same.copied().unwrap_or(branch)
    }

    /// Value range of a branch: greater than the first number, at most the second.
    pub fn range(&self, index: u32) -> (i64, i64) {
        let bound = |at: usize| self.bounds.get(at).map_or(i64::MAX, |b| i64::from(*b));
        let below = (index as usize).checked_sub(1);
        (below.map_or(i64::MIN, bound), bound(index as usize))
    }
}

/// One branch of a shape switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShapeBranch {
    /// The shape switch that contains the branch.
    pub choice: ShapeSwitchId,
    /// Index of the branch, in ascending order of values.
    pub index: u32,
}

/// Distance in bytes between the fault records of data checks: the largest binding alignment that a
/// device may require.
pub const RECORD_BYTES: u64 = 256;

/// Branches that a step belongs to, one for each shape switch it depends on. Empty for a step that
/// every run executes.
pub type ShapeBranches = SmallVec<[ShapeBranch; 2]>;

/// True if no run can execute steps of both branch sets, because some switch value would have to be
/// in two disjoint ranges.
pub fn are_exclusive(choices: &[ShapeSwitch], a: &[ShapeBranch], b: &[ShapeBranch]) -> bool {
    let apart = |a: &ShapeBranch, b: &ShapeBranch| {
        let [of_a, of_b] = [a, b].map(|arm| &choices[arm.choice.0 as usize]);
        let (a_above, a_upto) = of_a.range(a.index);
        let (b_above, b_upto) = of_b.range(b.index);
        of_a.value == of_b.value && a_above.max(b_above) >= a_upto.min(b_upto)
    };
    a.iter().any(|a| b.iter().any(|b| apart(a, b)))
}

/// One step of a program, with the graph node that it was emitted for.
#[derive(Clone, Debug, PartialEq)]
pub struct ProgramStep {
    /// The operation of the step.
    pub work: StepOp,
    /// Requires a full barrier before this step: all earlier steps must finish, and their writes
    /// must be visible.
    pub barrier: bool,
    /// Branches that the step belongs to.
    pub branches: ShapeBranches,
    /// Node of the legal graph that the step was emitted for.
    pub node: NodeId,
    /// Operator name, for traces and errors.
    pub op: &'static str,
}

impl ProgramStep {
    /// Whether the step is active for these selected branches, one per shape switch of the program.
    pub fn runs(&self, chosen: &[u32]) -> bool {
        let mut arms = self.branches.iter();
        arms.all(|arm| chosen.get(arm.choice.0 as usize) == Some(&arm.index))
    }

    /// Slots that the step accesses, with the access modes.
    pub fn accesses<'a>(
        &'a self,
        kernels: &'a [KernelInstance],
    ) -> SmallVec<[(SlotId, ArgAccess); 8]> {
        match &self.work {
            StepOp::Dispatch(d) => {
                let how = &kernels[d.kernel.0 as usize].args;
                d.args.iter().copied().zip(how.iter().copied()).collect()
            }
            StepOp::Copy { src, dst, .. } => [(*src, ArgAccess::Read), (*dst, ArgAccess::Write)]
                .into_iter()
                .collect(),
            StepOp::Fill { dst, .. } => [(*dst, ArgAccess::Write)].into_iter().collect(),
        }
    }
}

/// Dependent launches: dispatches synchronize through counters instead of barriers. A dispatch can
/// prefetch its weights while the previous one still runs. [`GpuProgram::active_steps_of_stage`]
/// selects the barriers that counters replace. Each launch fills in the counter values to wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DependentLaunches {
    /// Slot with the fault record of [`CheckKind::Order`], followed by the counters. Every run
    /// first fills this slot with zeros.
    pub counters: SlotId,
    /// For each parameter block of an eligible dispatch: the index in [`GpuProgram::params`] of
    /// three words that a launch fills in. The three words are the counter to wait on, its target
    /// value (0: no wait), and one plus the counter to increment (0: none).
    pub numbers: BTreeMap<u32, u32>,
}

/// Condition that a data check verifies.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckKind {
    /// An index is in `[-len, len)`.
    Index,
    /// Each coordinate of a row is in `[-len, len)`, with a separate length per column.
    Coordinates(Vec<SymInt>),
    /// A KV length is in `[0, len]`.
    KvLen,
    /// An overflow value is 0: the element of an I64 result fits into I32.
    Overflow,
    /// No wait on an earlier dispatch timed out (dependent launches only). After a timeout, states
    /// may already be modified.
    Order,
}

/// A check of data on the device. In every run, the kernel of a check writes a fault record of two
/// words to [`ProgramBuffer::Faults`]. The first word is 0, or one plus the index of the first
/// invalid element. The second word is the first invalid element.
#[derive(Clone, Debug, PartialEq)]
pub struct DataCheck {
    /// The condition to verify.
    pub kind: CheckKind,
    /// Slot of the fault record.
    pub record: SlotId,
    /// The size that the elements are checked against.
    pub len: SymInt,
    /// The node to name in the error.
    pub site: NodeLocation,
}

/// A condition on the sizes of a run, required by a node.
#[derive(Clone, Debug, PartialEq)]
pub struct LaunchSizeCheck {
    /// The node to name in the error. Checks of nested nodes apply only when the run reaches them
    /// ([`crate::ControlFlowGraph::Sizes`]).
    pub site: NodeLocation,
    /// The required condition.
    pub rule: SizeRule,
}

/// Condition that a [`LaunchSizeCheck`] verifies for the sizes of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum SizeRule {
    /// The dimension evaluates to a valid size.
    Size {
        /// The dimension to evaluate.
        dim: Dim,
    },
    /// The slice must lie within its operand.
    Slice {
        /// The slice to verify.
        slice: Slice,
        /// Shape of the operand.
        from: Shape,
        /// Shape of the result.
        to: Shape,
    },
    /// `less <= more`.
    AtMost {
        /// The size that must be less than or equal to `more`.
        less: SymInt,
        /// The size that must be greater than or equal to `less`.
        more: SymInt,
        /// Error message for a violation; `{less}` and `{more}` are replaced by the sizes.
        reason: String,
    },
}

/// A tensor of the program's interface (input, parameter, state or output) with its slot.
#[derive(Clone, Debug, PartialEq)]
pub struct IoBinding {
    /// Type of the tensor in the signature.
    pub ty: Type,
    /// Slot of the tensor. An I64 tensor is stored as I32.
    pub slot: SlotId,
    /// Size on the device in bytes, a multiple of 4.
    pub bytes: SymInt,
    /// Structure-of-arrays layout of quantized rows; `None` for file order.
    pub soa_layout: Option<SoaLayout>,
}

/// A compiled graph, ready for a GPU runtime.
#[derive(Clone, Debug)]
pub struct GpuProgram {
    /// Names and types of inputs, parameters, states and outputs.
    pub signature: Signature,
    /// Symbols with their bounds in graph order, for printing.
    pub symbols: Vec<(Symbol, usize)>,
    /// Kernel instances without duplicates.
    pub kernels: Vec<KernelInstance>,
    /// Shape switches, evaluated at each launch.
    pub shape_switches: Vec<ShapeSwitch>,
    /// Buffer ranges used by steps and by the interface.
    pub slots: Vec<BufferSlot>,
    /// Guard ranges that no kernel may write; empty unless sentinels are requested.
    pub redzones: Vec<BufferSlot>,
    /// Steps that run once after parameters are set.
    pub prepare: Vec<ProgramStep>,
    /// Steps of every run: those of all stages, one stage after the other.
    pub steps: Vec<ProgramStep>,
    /// Range of each stage within `steps`; empty without control flow.
    pub stages: Vec<Range<usize>>,
    /// Control flow between the stages. Empty for a program without control flow, whose steps form
    /// one stage.
    pub flow: Vec<ControlFlowGraph>,
    /// Words of all parameter blocks; each block starts at a multiple of the device's alignment.
    pub params: Vec<ParamWord>,
    /// Dependent launches that replace barriers, if the device supports them.
    pub chain: Option<DependentLaunches>,
    /// Expression arena of all symbolic sizes.
    pub tape: ExprArena,
    /// Contents of the [`ProgramBuffer::Const`] buffers, by index.
    pub consts: Vec<Tensor>,
    /// Inputs in signature order.
    pub inputs: Vec<IoBinding>,
    /// Parameters in signature order.
    pub param_io: Vec<IoBinding>,
    /// States in signature order.
    pub states: Vec<IoBinding>,
    /// Outputs in signature order.
    pub outputs: Vec<IoBinding>,
    /// Data checks in node order.
    pub data_checks: Vec<DataCheck>,
    /// Size checks, evaluated at each launch.
    pub size_checks: Vec<LaunchSizeCheck>,
    /// Selected kernel variants, with reasons and alternatives.
    pub variants: Vec<VariantSelection>,
    /// Switches for diagnosis, which change how runs use the program.
    pub debug: DebugSwitches,
}

impl GpuProgram {
    /// The slot with this id.
    pub fn slot(&self, id: SlotId) -> &BufferSlot {
        &self.slots[id.0 as usize]
    }

    /// All buffers with their sizes in bytes, without duplicates, in ascending order.
    pub fn buffers(&self) -> Vec<(ProgramBuffer, u64)> {
        let mut sizes = std::collections::BTreeMap::new();
        for slot in self.slots.iter().chain(&self.redzones) {
            let size = sizes.entry(slot.buffer).or_insert(0u64);
            *size = (*size).max(slot.offset_bytes + slot.bytes);
        }
        sizes.into_iter().collect()
    }

    /// Total size in bytes of all buffers that match `kind`.
    pub fn bytes_of(&self, kind: fn(ProgramBuffer) -> bool) -> u64 {
        let buffers = self.buffers();
        buffers
            .iter()
            .filter(|(b, _)| kind(*b))
            .map(|(_, n)| n)
            .sum()
    }

    /// True if no run executes both steps.
    pub fn are_exclusive(&self, a: &ProgramStep, b: &ProgramStep) -> bool {
        are_exclusive(&self.shape_switches, &a.branches, &b.branches)
    }

    /// All dispatches of [`GpuProgram::steps`].
    pub fn dispatches(&self) -> impl Iterator<Item = &KernelDispatch> {
        self.steps.iter().filter_map(|s| match &s.work {
            StepOp::Dispatch(d) => Some(d),
            StepOp::Copy { .. } | StepOp::Fill { .. } => None,
        })
    }

    /// Number of barriers in [`GpuProgram::steps`].
    pub fn barriers(&self) -> usize {
        self.steps.iter().filter(|s| s.barrier).count()
    }
}
