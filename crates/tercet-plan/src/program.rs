//! A program: what a player runs, as plain data without any GPU type.
//!
//! Everything that follows from the symbols' bounds is fixed: kernels, slots, memory, order, barriers.
//! What follows from the sizes of a run are numbers ([`crate::Launch`]): parameter blocks and grids.
//!
//! Where a size decides which of several ways is taken, the steps of every way are there, each an arm of
//! a [`Choice`]; a run plays those of one arm ([`Program::played`]). Where data decides, they are in stages of
//! a [`Flow`] (`flow.rs`).
//!
//! Invariants: a slot lies inside its buffer; steps that touch the same bytes, one of them writing,
//! have a barrier between them or cannot both run ([`crate::check_races`] proves it independently);
//! kernels read and write inside their slots only.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;
use tercet_ir::ops::Slice;
use tercet_ir::{DType, Dim, NodeId, Shape, Signature, Symbol, Tensor, Type};

use crate::flow::{Flow, Site};
use crate::kernel::{Access, Instance, Word};
use crate::num::{Num, Tape};
use crate::planes::Planes;
use crate::variant::Taken;

/// The index of a slot of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// The index of a kernel instance of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u32);

/// A piece of device memory of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The inputs of a run, written by the host before it.
    Input,
    /// Results, read by the host after a run.
    Output,
    /// One record per data check: see [`DataCheck`]. Read by the host after a run.
    Faults,
    /// Values between steps; ranges are shared by slots that do not live at the same time.
    Arena,
    /// What is computed from parameters and constants once.
    Prepared,
    /// What kernels count in: zeroed when it is made, and left zero by every kernel. Each executable has its own.
    Counters,
    /// A constant of the graph.
    Const(u32),
    /// A parameter, by its place in the signature. Executables of one program share it.
    Param(u32),
    /// A state, by its place in the signature.
    State(u32),
}

/// A range of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The buffer.
    pub buffer: Buffer,
    /// Where it starts.
    pub offset_bytes: u64,
    /// Its size at the symbols' bounds, whole words.
    pub bytes: u64,
    /// The dtype of its elements, for printing.
    pub dtype: DType,
}

impl Slot {
    /// True if the two share bytes.
    pub fn overlaps(&self, other: &Slot) -> bool {
        self.buffer == other.buffer
            && self.offset_bytes < other.offset_bytes + other.bytes
            && other.offset_bytes < self.offset_bytes + self.bytes
    }
}

/// One kernel call.
#[derive(Clone, Debug, PartialEq)]
pub struct Dispatch {
    /// What runs.
    pub kernel: KernelId,
    /// Its arguments, from binding 1, with the accesses of [`Instance::args`].
    pub args: SmallVec<[SlotId; 8]>,
    /// Where its parameter block starts in [`Program::params`], in words.
    pub block: u32,
    /// Workgroups along each axis; a zero runs nothing.
    pub grid: [Num; 3],
}

/// What a step does.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// Runs a kernel.
    Dispatch(Dispatch),
    /// Copies the first bytes of a slot to the start of another.
    Copy {
        /// From.
        src: SlotId,
        /// To.
        dst: SlotId,
        /// How many, a multiple of 4.
        bytes: Num,
    },
    /// Writes one word all over a slot.
    Fill {
        /// The slot.
        dst: SlotId,
        /// The word.
        word: u32,
    },
}

/// The index of a choice of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChoiceId(pub u32);

/// Ways of which the size of a run takes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// What decides.
    pub value: Num,
    /// The greatest value of each arm but the last, ascending.
    pub bounds: SmallVec<[u32; 4]>,
}

impl Choice {
    /// The arm for a value.
    pub fn arm(&self, value: i64) -> u32 {
        let below = self.bounds.iter().filter(|b| value > i64::from(**b));
        below.count() as u32
    }

    /// The values of an arm: above the first number, up to the second.
    pub fn range(&self, index: u32) -> (i64, i64) {
        let bound = |at: usize| self.bounds.get(at).map_or(i64::MAX, |b| i64::from(*b));
        let below = (index as usize).checked_sub(1);
        (below.map_or(i64::MIN, bound), bound(index as usize))
    }
}

/// One way of a choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Arm {
    /// The choice.
    pub choice: ChoiceId,
    /// Which of its ways, by ascending values.
    pub index: u32,
}

/// The arms that a step belongs to, one of each choice that it hangs on; none for a step of every run.
pub type Arms = SmallVec<[Arm; 2]>;

/// True if no run plays both: some value would have to be in two ranges without a common number.
pub(crate) fn exclude(choices: &[Choice], a: &[Arm], b: &[Arm]) -> bool {
    let apart = |a: &Arm, b: &Arm| {
        let [of_a, of_b] = [a, b].map(|arm| &choices[arm.choice.0 as usize]);
        let (a_above, a_upto) = of_a.range(a.index);
        let (b_above, b_upto) = of_b.range(b.index);
        of_a.value == of_b.value && a_above.max(b_above) >= a_upto.min(b_upto)
    };
    a.iter().any(|a| b.iter().any(|b| apart(a, b)))
}

/// A step and what it is for.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// What it does.
    pub work: Work,
    /// Whether all steps before it must be finished, and their writes seen, before it starts.
    pub barrier: bool,
    /// The arms that it runs in.
    pub arms: Arms,
    /// The node of the legal graph that it belongs to.
    pub node: NodeId,
    /// The operator, for traces and errors.
    pub op: &'static str,
}

impl Step {
    /// Whether it runs where these arms, one for each choice of the program, are chosen.
    pub fn runs(&self, chosen: &[u32]) -> bool {
        let mut arms = self.arms.iter();
        arms.all(|arm| chosen.get(arm.choice.0 as usize) == Some(&arm.index))
    }

    /// The slots that it touches and how.
    pub fn accesses<'a>(&'a self, kernels: &'a [Instance]) -> SmallVec<[(SlotId, Access); 8]> {
        match &self.work {
            Work::Dispatch(d) => {
                let how = &kernels[d.kernel.0 as usize].args;
                d.args.iter().copied().zip(how.iter().copied()).collect()
            }
            Work::Copy { src, dst, .. } => [(*src, Access::Read), (*dst, Access::Write)]
                .into_iter()
                .collect(),
            Work::Fill { dst, .. } => [(*dst, Access::Write)].into_iter().collect(),
        }
    }
}

/// Chains of dispatches, which wait for each other by counters: the weights of one are on their way while the one before it
/// still runs. [`Program::played_stage`] says which barriers they take the place of, and a launch what they wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The record of [`CheckKind::Order`], and the counters, which every run clears before.
    pub counters: SlotId,
    /// By the parameter blocks of the dispatches that can be links, where in [`Program::params`] three words begin that a
    /// launch fills in: the counter to wait for, what it counts up to (0: nothing is waited for), and one past the own counter (0:
    /// nobody waits for it).
    pub numbers: BTreeMap<u32, u32>,
}

/// What a data check refuses.
#[derive(Clone, Debug, PartialEq)]
pub enum CheckKind {
    /// Indices outside `[-len, len)`.
    Index,
    /// Elements of rows outside `[-len, len)`, with a length for each column.
    Coordinates(Vec<Num>),
    /// Key counts outside `[0, len]`.
    KvLen,
    /// Not of data: that a dispatch waited in vain for one before it. Steps before may have written states.
    Order,
}

/// A check of data on the device. Its kernel writes a record of two words into
/// [`Buffer::Faults`] in every run: 0, or the position of the first bad element plus one; and that
/// element.
#[derive(Clone, Debug, PartialEq)]
pub struct DataCheck {
    /// What it refuses.
    pub kind: CheckKind,
    /// The record.
    pub record: SlotId,
    /// The size that the elements are checked against.
    pub len: Num,
    /// The node.
    pub site: Site,
}

/// Sizes that a node needs at each run.
#[derive(Clone, Debug, PartialEq)]
pub struct SizeCheck {
    /// The node. What one inside another needs is asked only where the run comes to it
    /// ([`crate::Flow::Sizes`]).
    pub site: Site,
    /// What it needs.
    pub rule: SizeRule,
}

/// What a [`SizeCheck`] asks of the sizes of a run.
#[derive(Clone, Debug, PartialEq)]
pub enum SizeRule {
    /// The size is possible.
    Size {
        /// The size.
        dim: Dim,
    },
    /// The slice exists.
    Slice {
        /// The slice.
        slice: Slice,
        /// The shape of its operand.
        from: Shape,
        /// The shape of its result.
        to: Shape,
    },
    /// `less <= more`.
    AtMost {
        /// The size that must not be greater.
        less: Num,
        /// The size that it is compared with.
        more: Num,
        /// The error otherwise; `{less}` and `{more}` stand for the sizes.
        reason: String,
    },
}

/// A tensor at the border and where it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct Io {
    /// The type in the signature.
    pub ty: Type,
    /// Where it lies. An I64 port is held as I32.
    pub slot: SlotId,
    /// The number of its bytes on the device, whole words.
    pub bytes: Num,
    /// How packed rows lie there, if not as they are given.
    pub planes: Option<Planes>,
}

/// A compiled graph.
#[derive(Clone, Debug)]
pub struct Program {
    /// Names and types at the border.
    pub signature: Signature,
    /// The symbols in the order of the graph, for printing.
    pub symbols: Vec<(Symbol, usize)>,
    /// Kernel instances, each once.
    pub kernels: Vec<Instance>,
    /// What the sizes of a run decide.
    pub choices: Vec<Choice>,
    /// Ranges of buffers.
    pub slots: Vec<Slot>,
    /// Ranges that nothing may write, where the plan was asked for them.
    pub gaps: Vec<Slot>,
    /// Steps that run once for a set of parameters.
    pub prepare: Vec<Step>,
    /// Steps of every run; of all its stages, one after the other.
    pub steps: Vec<Step>,
    /// The ranges of the stages in `steps`, where there is a `flow`.
    pub stages: Vec<Range<usize>>,
    /// The order of the stages, where data decides it; empty for a program without control flow, whose
    /// steps are one stage.
    pub flow: Vec<Flow>,
    /// Words of all parameter blocks; each block starts at a multiple of the device's alignment.
    pub params: Vec<Word>,
    /// What dispatches wait for each other by, where they can do without barriers.
    pub chain: Option<Chain>,
    /// The expressions that numbers refer to.
    pub tape: Tape,
    /// The constants, for [`Buffer::Const`].
    pub consts: Vec<Tensor>,
    /// Inputs, in the order of the signature.
    pub inputs: Vec<Io>,
    /// Parameters, in the order of the signature.
    pub param_io: Vec<Io>,
    /// States, in the order of the signature.
    pub states: Vec<Io>,
    /// Outputs, in the order of the signature.
    pub outputs: Vec<Io>,
    /// Checks of data, by the order of their nodes.
    pub data_checks: Vec<DataCheck>,
    /// Checks of sizes.
    pub size_checks: Vec<SizeCheck>,
    /// The variants of kernels that were taken, and why.
    pub variants: Vec<Taken>,
}

impl Program {
    /// A slot by its id.
    pub fn slot(&self, id: SlotId) -> &Slot {
        &self.slots[id.0 as usize]
    }

    /// Every buffer with its size, each once, ascending.
    pub fn buffers(&self) -> Vec<(Buffer, u64)> {
        let mut sizes = std::collections::BTreeMap::new();
        for slot in self.slots.iter().chain(&self.gaps) {
            let size = sizes.entry(slot.buffer).or_insert(0u64);
            *size = (*size).max(slot.offset_bytes + slot.bytes);
        }
        sizes.into_iter().collect()
    }

    /// The bytes of all buffers of a kind.
    pub fn bytes_of(&self, kind: fn(Buffer) -> bool) -> u64 {
        let buffers = self.buffers();
        buffers
            .iter()
            .filter(|(b, _)| kind(*b))
            .map(|(_, n)| n)
            .sum()
    }

    /// True if no run plays both steps.
    pub fn exclude(&self, a: &Step, b: &Step) -> bool {
        exclude(&self.choices, &a.arms, &b.arms)
    }

    /// The steps that run a kernel.
    pub fn dispatches(&self) -> impl Iterator<Item = &Dispatch> {
        self.steps.iter().filter_map(|s| match &s.work {
            Work::Dispatch(d) => Some(d),
            Work::Copy { .. } | Work::Fill { .. } => None,
        })
    }

    /// The number of barriers of a run.
    pub fn barriers(&self) -> usize {
        self.steps.iter().filter(|s| s.barrier).count()
    }
}
