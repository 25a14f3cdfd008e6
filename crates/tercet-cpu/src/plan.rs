//! Compiles a legal graph to a program: a flat list of steps over planned memory.
//!
//! [`build`] walks the graph once. During this walk every value gets a [`ValuePlacement`] and every
//! kernel node a [`CpuStep`]. [`finish`] then decides which slots share memory and assigns their
//! offsets. Kernels, slots and offsets depend only on the symbols' bounds. The sizes of a run
//! change layouts, not steps.
//!
//! Invariants:
//!
//! - A step never writes a root that another of its operands reads, unless the kernel works in
//!   place.
//! - Everything that depends only on parameters and constants is in `prepare`, not in `steps`.

mod build;
mod finish;

use std::ops::Range;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tercet_ir::legalize::NodeOrigins;
use tercet_ir::{
    Bindings, DType, Dim, DimError, Graph, NodeId, Op, Shape, Signature, Tensor, Type,
};

use crate::exec::SubgraphProgram;
use crate::kernels::SimdLevel;
use crate::kernels::quant::row_ranges;
use crate::lower::{KernelPackFn, KernelRunFn, KernelScratchFn};
use tercet_ir::layout::SymLayout;

pub(crate) use build::{BuildOptions, ChannelsLastPlan, build};
pub(crate) use finish::SENTINEL_BYTES;

/// Alignment of every slot: a cache line, and the widest vector.
pub(crate) const ALIGN_BYTES: usize = 64;

/// Memory in which a value is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MemoryRoot {
    /// Input of the run, by index in the signature.
    Input(usize),
    /// A parameter, a constant, or a value computed only from parameters and constants.
    Const(usize),
    /// State, by index in the signature.
    State(usize),
    /// Output tensor of the run.
    Output(usize),
    /// Range of the arena.
    Slot(usize),
}

/// Operand or result of a step.
#[derive(Clone, Debug)]
pub(crate) struct StepOperand {
    /// Memory that holds the elements.
    pub(crate) root: MemoryRoot,
    /// Layout of the elements in that memory.
    pub(crate) layout: SymLayout,
    /// Element type.
    pub(crate) dtype: DType,
    /// True if the kernel gets an empty root for this operand, because it was packed or shares the
    /// memory of a result.
    pub(crate) absent: bool,
    /// If `absent` and not packed, the index of the result whose memory this operand shares.
    pub(crate) within: u8,
}

/// One kernel call.
pub(crate) struct CpuStep {
    /// Operator name, for errors.
    pub(crate) op: &'static str,
    /// Kernel name, for printed plans.
    pub(crate) kernel: &'static str,
    /// Node of the legal graph.
    pub(crate) node: NodeId,
    /// Kernel function.
    pub(crate) run: KernelRunFn,
    /// Operands, then results, as a range of [`CpuProgram::operands`].
    pub(crate) operands: Range<usize>,
    /// Number of operands in that range, before the results.
    pub(crate) ins: usize,
    /// Slot of the scratch memory, and the function that computes its size.
    pub(crate) scratch: Option<(usize, KernelScratchFn)>,
    /// Index in [`CpuProgram::packs`] of the packed operand.
    pub(crate) pack: Option<usize>,
    /// True if the kernel can fail depending on the values of its operands.
    pub(crate) fallible: bool,
    /// Operands that may share the memory of the first result.
    pub(crate) in_place: Vec<usize>,
    /// Computes the rough work in element operations from the layouts of operands, then results.
    pub(crate) work: fn(&[tercet_ir::layout::Layout]) -> usize,
    /// Restores the old contents of a state that this step overwrote; kept only if a later step can
    /// fail.
    pub(crate) undo: Option<KernelRunFn>,
}

/// Source of a constant.
#[derive(Clone, Debug)]
pub(crate) enum ConstSource {
    /// The constant is a parameter, the only index in [`ProgramConst::params`].
    Param,
    /// The constant is this tensor of the graph.
    Tensor(Tensor),
    /// The constant is a result of the step with this index in [`CpuProgram::prepare`].
    Step(usize),
}

/// A constant of the program.
#[derive(Clone, Debug)]
pub(crate) struct ProgramConst {
    /// Source of the value.
    pub(crate) source: ConstSource,
    /// Indices of the parameters that the constant depends on, in ascending order.
    pub(crate) params: Vec<usize>,
    /// True if a step of a run, an output or a state assignment reads the constant.
    pub(crate) is_read_in_run: bool,
}

/// A constant operand that is packed once.
pub(crate) struct PackDef {
    /// The operand before packing.
    pub(crate) operand: StepOperand,
    /// Packing function.
    pub(crate) pack: KernelPackFn,
    /// Name of the packed form, if steps may share it.
    pub(crate) name: Option<&'static str>,
    /// Index of the constant that is packed.
    pub(crate) of: usize,
    /// Node that reads the packed operand, for errors.
    pub(crate) node: NodeId,
    /// Operator of that node.
    pub(crate) op: &'static str,
}

/// A check of the sizes of a run: a slice must be within the bounds of its operand.
pub(crate) struct CpuSizeCheck {
    /// Node of the legal graph.
    pub(crate) node: NodeId,
    /// Operator of the node.
    pub(crate) op: &'static str,
    /// The slice to check.
    pub(crate) slice: tercet_ir::ops::Slice,
    /// Shape of its operand.
    pub(crate) from: Shape,
    /// Shape of its result.
    pub(crate) to: Shape,
}

/// A copy of a value to a state, after the last step of a run.
#[derive(Clone, Debug)]
pub(crate) struct StateCommit {
    /// State, by index in the signature.
    pub(crate) state: usize,
    /// Index in [`CpuProgram::operands`] of the copied value.
    pub(crate) from: usize,
}

/// Range of the arena, sized for the symbols' bounds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArenaSlot {
    /// Byte offset.
    pub(crate) offset: usize,
    /// Size in bytes.
    pub(crate) bytes: usize,
}

/// A compiled graph. A program stores no tensors except constants; the memory of runs is separate.
pub(crate) struct CpuProgram {
    /// Names and types of inputs, outputs, parameters and states.
    pub(crate) signature: Signature,
    /// Steps that run once per set of parameters.
    pub(crate) prepare: Vec<CpuStep>,
    /// Steps of every run.
    pub(crate) steps: Vec<CpuStep>,
    /// Operands of all steps and of all copies to states.
    pub(crate) operands: Vec<StepOperand>,
    /// Constants and parameters.
    pub(crate) consts: Vec<ProgramConst>,
    /// Checks of the sizes of a run.
    pub(crate) checks: Vec<CpuSizeCheck>,
    /// Packed constants.
    pub(crate) packs: Vec<PackDef>,
    /// Assignments to states after the last step.
    pub(crate) commits: Vec<StateCommit>,
    /// Ranges of the arena.
    pub(crate) slots: Vec<ArenaSlot>,
    /// Size of the arena in bytes.
    pub(crate) arena_bytes: usize,
    /// Maximum number of threads of a run; scratch memory is sized for it.
    pub(crate) threads: usize,
    /// Types of the outputs.
    pub(crate) outputs: Vec<Type>,
    /// For each node of the legal graph, the node of the original graph.
    pub(crate) origins: NodeOrigins,
    /// Matmuls whose kernel depends on the number of rows.
    pub(crate) row_switches: Vec<RowSwitch>,
    /// Programs of nested graphs.
    pub(crate) subs: Vec<Arc<SubgraphProgram>>,
}

/// Matmul kernels by the number of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowSwitch {
    /// The dimensions whose product is the number of rows.
    pub(crate) rows: Vec<Dim>,
    /// Largest number of rows of each kernel but the last.
    pub(crate) ends: SmallVec<[usize; 4]>,
}

impl RowSwitch {
    /// The row switches of a graph's matmuls, each once.
    pub(crate) fn of_graph(graph: &Graph, i16_activations: bool) -> Vec<RowSwitch> {
        let mut all = Vec::new();
        for (_, node) in graph.nodes() {
            let ends = match &node.op {
                Op::DequantMatMul(op) => {
                    row_ranges(SimdLevel::detect(), op.scheme, i16_activations)
                }
                Op::MatMul(_) => smallvec![1],
                _ => continue,
            };
            let shape = &graph.ty(node.inputs[0]).shape;
            let rows = shape[..shape.len() - 1].to_vec();
            let switch = RowSwitch { rows, ends };
            if !all.contains(&switch) {
                all.push(switch);
            }
        }
        all
    }

    /// Index of the kernel for these sizes.
    pub(crate) fn index(&self, sizes: &Bindings) -> Result<u32, DimError> {
        let mut rows = 1usize;
        for dim in &self.rows {
            rows = rows.saturating_mul(dim.eval(sizes)?);
        }
        Ok(self.ends.iter().filter(|end| rows > **end).count() as u32)
    }
}

impl CpuProgram {
    /// Visits this program and its nested programs.
    pub(crate) fn visit<'p>(&'p self, f: &mut dyn FnMut(&'p CpuProgram)) {
        f(self);
        self.subs.iter().for_each(|sub| sub.program.visit(f));
    }
}

/// Memory and layout of a value while the program is built.
#[derive(Clone, Debug)]
pub(crate) struct ValuePlacement {
    root: MemoryRoot,
    layout: SymLayout,
    dtype: DType,
}

impl ValuePlacement {
    fn operand(&self) -> StepOperand {
        StepOperand {
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
struct PendingArenaSlot {
    /// Number of elements; `None` for scratch memory.
    numel: Option<Dim>,
    /// Bytes of one element.
    elem_bytes: usize,
    /// Bytes at the symbols' bounds.
    bytes: usize,
    /// True if the slot stays live until the end of the run.
    pinned: bool,
}
