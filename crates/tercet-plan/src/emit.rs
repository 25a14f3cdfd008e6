//! The lowering context: how a lowering reads operands, allocates slots and dispatches kernels.
//!
//! A lowering takes these steps in order: [`LoweringCtx::view`] for its operands;
//! [`LoweringCtx::dense`] for operands whose strides its kernel does not support;
//! [`LoweringCtx::result`] for each result; [`LoweringCtx::dispatch`]. Sizes are symbolic integers
//! ([`SymInt`], made by [`LoweringCtx::num`] and similar methods): known at compile time, or
//! evaluated for each run. The choice between kernels may depend only on upper bounds of sizes
//! ([`LoweringCtx::bound`]).
//!
//! Invariant: the emitted program depends only on the graph, the capabilities and the symbol
//! bounds.
//!
//! Next: `emit/values.rs` for operands and results; `emit/dispatch.rs` for kernel steps;
//! `emit/shape_switch.rs` for branches on a size. `emit/checks.rs` covers checks whose failure ends
//! a run, `emit/dependent_launch.rs` dependent launches, and `emit/blocks.rs` nested graphs.
//! `emit/cursor.rs` holds the insertion point, and `emit/dequant_schedule.rs` schedules the
//! dequantization of weights. `emit/draft.rs` holds the program under construction.

mod blocks;
mod checks;
mod cursor;
mod dependent_launch;
pub(crate) mod dequant_schedule;
mod dispatch;
mod draft;
mod panels;
mod shape_switch;
mod values;

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;
use tercet_ir::layout::{LayoutTerm, SymLayout, numel};
use tercet_ir::legalize::NodeOrigins;
use tercet_ir::{
    Bindings, CompileError, DType, Dim, Graph, NodeId, Shape, Signature, Tensor, TensorType, Value,
};

use self::blocks::EnclosingNode;
pub(crate) use self::blocks::NestedGraph;
use self::cursor::InsertionPoint;
pub(crate) use self::cursor::UpdatedSlots;
pub(crate) use self::draft::{PendingSlot, ProgramBuilder, SlotPlacement};
use self::values::ValueViews;
pub(crate) use self::values::{CopyOrder, SplitF16Request};
use crate::binding_limit::PartitionedValues;
use crate::caps::DeviceCaps;
use tercet_program::SoaLayout;
use tercet_program::{ExprArena, SymInt};
use tercet_program::{ProgramBuffer, SizeRule, SlotId};

/// A value in memory: a slot and the layout of its elements.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotView {
    /// The slot that holds the elements.
    pub slot: SlotId,
    /// Sizes, strides and offset of the value within the slot, in elements.
    pub layout: SymLayout,
    /// Dtype of the elements.
    pub dtype: DType,
}

/// Results of the analysis of a graph, which precedes its lowering.
#[derive(Debug)]
pub(crate) struct GraphAnalysis<'a> {
    pub(crate) bounds: &'a Bindings,
    pub(crate) signature: &'a Signature,
    /// For each node of the legal graph: the node of the source graph that it originates from.
    pub(crate) origins: NodeOrigins,
    /// Quantized values that are stored as structure of arrays, with their layouts.
    pub(crate) soa_layouts: HashMap<Value, SoaLayout>,
    /// Leaves and results above the binding limit; kernels bind them in partitions.
    pub(crate) partitioned: PartitionedValues,
    /// Enclosing nodes of this nested graph, outermost first. Each enclosing node comes with the
    /// name of its attribute that holds the next nested graph.
    pub(crate) enclosing_nodes: Vec<EnclosingNode>,
    /// Quantized operands that several nodes read.
    pub(crate) shared_packed: HashSet<Value>,
    /// Attention nodes whose results are stored in the order `[batch, position, head, element]`,
    /// although their layout has heads before positions.
    pub(crate) transposed_attention: HashSet<NodeId>,
    /// 16-bit type that F32 activation rows may be cast to before a matmul
    /// ([`tercet_ir::CompileOptions::matmul_precision`]).
    pub(crate) reduced_matmul_dtype: Option<DType>,
    /// True if dependent launches replace barriers, because the device supports them and enough
    /// dispatches benefit.
    pub(crate) has_chains: bool,
    /// True if some node has nested graphs. A check in a nested graph may run several times, so
    /// fault records are cleared first, and each keeps the first fault found.
    pub(crate) has_flow: bool,
}

/// Size checks of a nested graph, performed when a run reaches the nested graph.
#[derive(Debug, Default)]
pub(crate) struct SubgraphSizeChecks {
    /// Indices of the checks.
    checks: Vec<usize>,
    /// Dimensions whose checks already exist for the nested graph or for an enclosing graph.
    dims: HashSet<Dim>,
}

/// The lowering context that the planner passes to each lowering.
pub struct LoweringCtx<'a> {
    /// The legal graph that is being lowered.
    pub graph: &'a Graph,
    /// Capabilities of the target device.
    pub caps: &'a DeviceCaps,
    pub(crate) facts: GraphAnalysis<'a>,
    /// The program under construction.
    pub(crate) draft: ProgramBuilder,
    /// Slots and layouts of the graph values that are lowered so far.
    values: ValueViews,
    pub(crate) cursor: InsertionPoint,
    subgraph_size_checks: SubgraphSizeChecks,
}

impl<'a> LoweringCtx<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        caps: &'a DeviceCaps,
        facts: GraphAnalysis<'a>,
    ) -> LoweringCtx<'a> {
        LoweringCtx {
            graph,
            caps,
            facts,
            draft: ProgramBuilder::default(),
            values: ValueViews::new(graph),
            cursor: InsertionPoint::start(),
            subgraph_size_checks: SubgraphSizeChecks::default(),
        }
    }

    /// Allocates a new arena slot for a value of this type. The slot lives until the last step that
    /// uses it.
    ///
    /// # Errors
    /// [`CompileError::TooLarge`] if the slot exceeds the binding limit.
    pub fn temp(&mut self, dtype: DType, shape: &[Dim]) -> Result<SlotView, CompileError> {
        let home = if self.cursor.constant {
            SlotPlacement::Prepared
        } else {
            SlotPlacement::Arena
        };
        self.allocate(dtype, shape, home)
    }

    /// Returns a slot that contains this tensor: a constant of the graph or a lookup table of a
    /// kernel. Constants with equal contents share one buffer.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::temp`].
    pub fn constant(&mut self, tensor: Tensor) -> Result<SlotView, CompileError> {
        let (ty, home) = self.constant_home(tensor);
        self.allocate(ty.dtype, &Shape::known(&ty.shape), home)
    }

    /// Like [`LoweringCtx::constant`], for a constant above the binding limit, which kernels bind
    /// in partitions.
    pub(crate) fn constant_unbound(&mut self, tensor: Tensor) -> Result<SlotView, CompileError> {
        let (ty, home) = self.constant_home(tensor);
        self.allocate_unbound(ty.dtype, &Shape::known(&ty.shape), home)
    }

    fn constant_home(&mut self, tensor: Tensor) -> (TensorType, SlotPlacement) {
        let ty = tensor.ty().clone();
        let consts = &mut self.draft.consts;
        let at = consts.iter().position(|known| *known == tensor);
        let at = at.unwrap_or_else(|| {
            consts.push(tensor);
            consts.len() - 1
        });
        (ty, SlotPlacement::At(ProgramBuffer::Const(at as u32), 0))
    }

    pub(crate) fn dense_layout(&self, shape: &[Dim]) -> Result<SymLayout, CompileError> {
        SymLayout::dense(shape).ok_or_else(|| self.too_large(u64::MAX))
    }

    fn too_large(&self, bytes: u64) -> CompileError {
        let site = self.site();
        CompileError::TooLarge {
            node: site.node,
            op: site.op,
            bytes,
            limit: self.caps.max_binding_bytes,
        }
    }

    pub(crate) fn allocate(
        &mut self,
        dtype: DType,
        shape: &[Dim],
        home: SlotPlacement,
    ) -> Result<SlotView, CompileError> {
        let bytes = self.bytes_at_bounds(dtype, shape)?;
        if bytes > self.caps.max_binding_bytes {
            return Err(self.too_large(bytes));
        }
        self.allocate_unbound(dtype, shape, home)
    }

    fn bytes_at_bounds(&self, dtype: DType, shape: &[Dim]) -> Result<u64, CompileError> {
        let mut bytes = Some(dtype.size_bytes());
        for dim in shape {
            let size = dim.upper_bound(self.facts.bounds)?;
            bytes = bytes.and_then(|n| n.checked_mul(size));
        }
        Ok(bytes.map_or(u64::MAX, |n| n as u64))
    }

    /// Like [`LoweringCtx::allocate`], for slots that may exceed the binding limit. Kernels may
    /// bind only parts of such a slot ([`LoweringCtx::part`]).
    pub(crate) fn allocate_unbound(
        &mut self,
        dtype: DType,
        shape: &[Dim],
        home: SlotPlacement,
    ) -> Result<SlotView, CompileError> {
        let bytes = self.bytes_at_bounds(dtype, shape)?;
        let layout = self.dense_layout(shape)?;
        let words = bytes.checked_next_multiple_of(4);
        let slot = PendingSlot {
            // A slot has at least 4 bytes, because a buffer binding cannot be empty.
            bytes: words.ok_or_else(|| self.too_large(bytes))?.max(4),
            dtype,
            numel: numel(shape),
            home,
        };
        Ok(SlotView {
            slot: self.slot(slot),
            layout,
            dtype,
        })
    }

    /// Placement of a slot that is a part of slot `of` and starts `offset_bytes` after the
    /// beginning of `of`.
    pub(crate) fn part(&self, of: SlotId, offset_bytes: u64) -> SlotPlacement {
        match self.home(of) {
            SlotPlacement::At(buffer, first) => SlotPlacement::At(buffer, first + offset_bytes),
            SlotPlacement::Arena
            | SlotPlacement::Prepared
            | SlotPlacement::Output
            | SlotPlacement::Input
            | SlotPlacement::Counters
            | SlotPlacement::Within(..) => SlotPlacement::Within(of, offset_bytes),
        }
    }

    /// Like [`LoweringCtx::allocate`], for quantized rows stored as structure of arrays; the start
    /// of each row is aligned.
    pub(crate) fn allocate_soa(
        &mut self,
        planes: &SoaLayout,
        shape: &[Dim],
        home: SlotPlacement,
    ) -> Result<SlotView, CompileError> {
        let all = self.allocate(DType::U8, &planes.stored(shape), home)?;
        let layout = planes.layout(shape);
        let layout = layout.ok_or_else(|| self.too_large(u64::MAX))?;
        Ok(SlotView { layout, ..all })
    }

    pub(crate) fn slot(&mut self, draft: PendingSlot) -> SlotId {
        self.draft.slots.push(draft);
        SlotId(self.draft.slots.len() as u32 - 1)
    }

    /// Upper bound of the dimension: its value if all symbols have their maximum. The choice
    /// between kernels may depend on this value.
    ///
    /// # Errors
    /// [`CompileError::Bounds`] if the dimension is invalid for the maximum of all symbols.
    pub fn bound(&self, dim: &Dim) -> Result<usize, CompileError> {
        Ok(dim.upper_bound(self.facts.bounds)?)
    }

    /// Converts a dimension to a symbolic integer. A symbolic integer for a nested graph is only
    /// valid in runs that reach the nested graph.
    pub fn num(&mut self, dim: &Dim) -> SymInt {
        if self.facts.enclosing_nodes.is_empty() {
            return self.draft.tape.dim(dim);
        }
        let is_given = dim.known().is_some() || dim.as_symbol().is_some();
        if !is_given && self.subgraph_size_checks.dims.insert(dim.clone()) {
            self.check_sizes(SizeRule::Size { dim: dim.clone() });
        }
        self.draft.tape.dim_inside(dim)
    }

    /// Number of elements of a shape, as a symbolic integer.
    pub fn numel(&mut self, shape: &[Dim]) -> SymInt {
        let mut n = SymInt::ONE;
        for dim in shape {
            let d = self.num(dim);
            n = self.draft.tape.mul(n, d);
        }
        n
    }

    /// The arena of symbolic expressions, for further arithmetic on symbolic integers.
    pub fn tape(&mut self) -> &mut ExprArena {
        &mut self.draft.tape
    }

    /// Number of 32-bit words of a dense tensor of this dtype and shape, as a symbolic integer.
    pub fn words(&mut self, dtype: DType, shape: &[Dim]) -> SymInt {
        let n = self.numel(shape);
        let lanes = (4 / dtype.size_bytes().min(4)) as u32;
        self.draft.tape.ceil_div(n, lanes)
    }

    /// Offset of a view from the start of its slot, in elements.
    pub fn offset(&mut self, view: &SlotView) -> SymInt {
        let mut sum = SymInt::ZERO;
        for term in view.layout.offset() {
            let t = self.term(term);
            sum = self.draft.tape.add(sum, t);
        }
        sum
    }

    /// Strides of a view in elements, one per axis.
    pub fn strides(&mut self, view: &SlotView) -> SmallVec<[SymInt; 8]> {
        view.layout.strides().iter().map(|t| self.term(t)).collect()
    }

    /// Sizes of a shape as symbolic integers, one per axis.
    pub fn sizes(&mut self, shape: &[Dim]) -> SmallVec<[SymInt; 8]> {
        shape.iter().map(|d| self.num(d)).collect()
    }

    fn term(&mut self, term: &LayoutTerm) -> SymInt {
        let dim = self.num(term.dim());
        self.draft.tape.mul(dim, SymInt::Const(term.factor()))
    }

    /// A dispatch grid of `groups` workgroups. If they exceed the limit of one axis, the grid spans
    /// two axes, and the kernel's flat workgroup index is `group.y * count.x + group.x`. The kernel
    /// must do nothing in workgroups whose flat index is `groups` or more.
    pub fn flat_grid(&mut self, groups: SymInt) -> [SymInt; 3] {
        let max = SymInt::Const(i64::from(self.caps.max_grid));
        let tape = &mut self.draft.tape;
        [
            tape.min(groups, max),
            tape.ceil_div(groups, max),
            SymInt::ONE,
        ]
    }

    /// A dispatch grid for `items` threads in workgroups of `size` threads.
    pub fn grid_of(&mut self, items: SymInt, size: u32) -> [SymInt; 3] {
        let groups = self.draft.tape.ceil_div(items, size);
        self.flat_grid(groups)
    }

    /// A dummy slot to bind for an absent optional argument. The kernel never reads the dummy. Each
    /// call allocates a new dummy slot, because kernels bind dummies under different types.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::temp`].
    pub fn placeholder_slot(&mut self) -> Result<SlotId, CompileError> {
        Ok(self.temp(DType::U32, &[Dim::Known(4)])?.slot)
    }
}

/// True if every dimension is known at compile time.
pub(crate) fn all_known(shape: &[Dim]) -> bool {
    shape.iter().all(|d| d.known().is_some())
}
