//! From a legal graph to a program: a flat list of steps over planned memory.
//!
//! Order of work: [`build`] walks the graph once and gives every value a [`Place`], every kernel
//! node a [`Step`]; [`finish`] decides which slots share memory and where they lie. Kernels, slots
//! and offsets follow from the symbols' bounds only; the sizes of a run change numbers, not steps.
//!
//! Invariants: a step writes roots that no other operand of it reads, unless the kernel works in
//! place; what depends on parameters and constants only is in `prepare`, not in `steps`.

mod build;
mod finish;

use std::ops::Range;
use std::sync::Arc;

use tercet_ir::legalize::Origins;
use tercet_ir::{DType, Dim, NodeId, Shape, Signature, Tensor, Type};

use crate::exec::Sub;
use crate::lower::{Pack, Run, Scratch};
use tercet_ir::layout::SymLayout;

pub(crate) use build::{How, Last, build};
pub(crate) use finish::SENTINEL_BYTES;

/// Every slot starts at a multiple of this: a cache line, and the widest vector.
pub(crate) const ALIGN_BYTES: usize = 64;

/// The memory that a value lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Root {
    /// An input of the run, by its place in the signature.
    Input(usize),
    /// A parameter, a constant, or what was computed from them.
    Const(usize),
    /// A state, by its place in the signature.
    State(usize),
    /// A result tensor of the run.
    Output(usize),
    /// A range of the arena.
    Slot(usize),
}

/// An operand of a step.
#[derive(Clone, Debug)]
pub(crate) struct Operand {
    /// Where it lies.
    pub(crate) root: Root,
    /// How it lies there.
    pub(crate) layout: SymLayout,
    /// The element type.
    pub(crate) dtype: DType,
    /// Not read: it was packed, or lies in a result.
    pub(crate) absent: bool,
    /// The result that it lies in if it is absent and was not packed.
    pub(crate) within: u8,
}

/// One kernel call.
pub(crate) struct Step {
    /// The operator that it runs, for errors.
    pub(crate) op: &'static str,
    /// The kernel, for plans.
    pub(crate) kernel: &'static str,
    /// The node of the legal graph.
    pub(crate) node: NodeId,
    /// The kernel.
    pub(crate) run: Run,
    /// Its operands, then its results, in [`Program::operands`].
    pub(crate) operands: Range<usize>,
    /// How many of them are operands.
    pub(crate) ins: usize,
    /// The slot of its scratch memory and the function of its size.
    pub(crate) scratch: Option<(usize, Scratch)>,
    /// What was packed for it, in [`Program::packs`].
    pub(crate) pack: Option<usize>,
    /// Whether it can fail on its data.
    pub(crate) fallible: bool,
    /// Operands that may lie in the first result.
    pub(crate) in_place: Vec<usize>,
    /// Rough work, from the layouts.
    pub(crate) work: fn(&[tercet_ir::layout::Layout]) -> usize,
    /// What takes back the writing of a state, where a later step can fail.
    pub(crate) undo: Option<Run>,
}

/// Where a constant comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// A parameter: the one of [`Const::params`].
    Param,
    /// A tensor of the graph.
    Tensor(Tensor),
    /// A result of this step of [`Program::prepare`].
    Step(usize),
}

/// A constant of the program.
#[derive(Clone, Debug)]
pub(crate) struct Const {
    /// Where it comes from.
    pub(crate) source: Source,
    /// The parameters that it depends on, ascending.
    pub(crate) params: Vec<usize>,
    /// Whether a step of a run, an output or an assignment reads it.
    pub(crate) wanted: bool,
}

/// A constant operand that is packed once.
pub(crate) struct PackDef {
    /// The operand.
    pub(crate) operand: Operand,
    /// How.
    pub(crate) pack: Pack,
    /// The constant it is made of.
    pub(crate) of: usize,
    /// The node that reads it, for errors.
    pub(crate) node: NodeId,
    /// Its operator.
    pub(crate) op: &'static str,
}

/// What must hold of the sizes of a run.
pub(crate) struct SizeCheck {
    /// The node, of the legal graph.
    pub(crate) node: NodeId,
    /// Its operator.
    pub(crate) op: &'static str,
    /// The slice that must exist.
    pub(crate) slice: tercet_ir::ops::Slice,
    /// The shape of its operand.
    pub(crate) from: Shape,
    /// The shape of its result.
    pub(crate) to: Shape,
}

/// What a state takes after the last step.
#[derive(Clone, Debug)]
pub(crate) struct Commit {
    /// The state, by its place in the signature.
    pub(crate) state: usize,
    /// The operand it copies, in [`Program::operands`].
    pub(crate) from: usize,
}

/// A range of the arena, at the symbols' bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slot {
    /// Its start.
    pub(crate) offset: usize,
    /// Its size.
    pub(crate) bytes: usize,
}

/// A compiled graph without any data but its constants.
pub(crate) struct Program {
    /// Names and types at the border.
    pub(crate) signature: Signature,
    /// Steps that run once for a set of parameters.
    pub(crate) prepare: Vec<Step>,
    /// Steps of every run.
    pub(crate) steps: Vec<Step>,
    /// The operands of all steps and commits.
    pub(crate) operands: Vec<Operand>,
    /// The constants.
    pub(crate) consts: Vec<Const>,
    /// What must hold of the sizes of a run.
    pub(crate) checks: Vec<SizeCheck>,
    /// The packed constants.
    pub(crate) packs: Vec<PackDef>,
    /// What states take.
    pub(crate) commits: Vec<Commit>,
    /// The arena's ranges.
    pub(crate) slots: Vec<Slot>,
    /// The arena's size.
    pub(crate) arena_bytes: usize,
    /// The most threads of a run: scratch memory is for no more.
    pub(crate) threads: usize,
    /// The types of the outputs.
    pub(crate) outputs: Vec<Type>,
    /// For the nodes of the legal graph, those of the graph as it was given.
    pub(crate) origins: Origins,
    /// The programs of the graphs inside its nodes.
    pub(crate) subs: Vec<Arc<Sub>>,
}

impl Program {
    /// This program and those inside it.
    pub(crate) fn visit<'p>(&'p self, f: &mut dyn FnMut(&'p Program)) {
        f(self);
        self.subs.iter().for_each(|sub| sub.program.visit(f));
    }
}

/// Where a value lies, while the program is built.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    root: Root,
    layout: SymLayout,
    dtype: DType,
}

impl Place {
    fn operand(&self) -> Operand {
        Operand {
            root: self.root,
            layout: self.layout.clone(),
            dtype: self.dtype,
            absent: false,
            within: 0,
        }
    }
}

/// A slot while the program is built.
#[derive(Clone, Debug)]
struct SlotDraft {
    /// Elements; `None` for scratch memory.
    numel: Option<Dim>,
    /// Bytes of one element.
    elem_bytes: usize,
    /// Bytes at the bounds.
    bytes: usize,
    /// Lives until the end of the run.
    pinned: bool,
}
