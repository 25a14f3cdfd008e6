//! The memory views of graph values during lowering: operands, results, and cached copies.

use tercet_ir::{CompileError, DType, Graph, NodeId, Value};

use super::panels::PanelProducer;
use super::{LoweringCtx, SlotPlacement, SlotView, all_known};
use crate::lowerings::copy;
use tercet_program::SymInt;
use tercet_program::{ProgramBuffer, ShapeBranches, SlotId};

/// Element order and format of a cached copy of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CopyOrder {
    /// Row-major order of the view's elements, without gaps.
    Dense,
    /// Weights prepacked in the order of matrix fragments (`matmul/prepack.rs`).
    Prepacked,
    /// Converted to F32.
    Upcast,
    /// Split into F16 pairs for attention (`attention/pairs.rs`): with the number of query heads
    /// per KV head, the number of columns, and optionally the slot of the KV lengths.
    SplitF16 {
        group: usize,
        columns: u32,
        lens: Option<SlotId>,
    },
    /// Each element followed by that of another dense slot.
    Paired { with: SlotId },
}

/// An F32 matrix, or a batch of them, to be split into two F16 matrices (`matmul/split_f16.rs`).
/// Columns are contiguous.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SplitF16Request {
    pub(crate) slot: SlotId,
    pub(crate) offset: SymInt,
    /// Row stride in elements.
    pub(crate) row: SymInt,
    /// Number of rows and number of columns of the matrix.
    pub(crate) size: [SymInt; 2],
    /// Number of matrices in the batch, and the distance in elements between them.
    pub(crate) batch: [SymInt; 2],
}

/// Views and cached copies of the graph values lowered so far.
#[derive(Debug)]
pub(crate) struct ValueViews {
    /// By node: the views of its results, if the node has been lowered.
    pub(super) views: Vec<Vec<SlotView>>,
    /// Cached copies, each with its source view and element order.
    pub(super) copies: Vec<(SlotView, CopyOrder, SlotView)>,
    /// Values that were computed on first use, each with the shape branches that the result is
    /// valid in.
    pub(super) materialized: Vec<(Value, ShapeBranches, SlotView)>,
    /// 16-bit copies of slots: the source slot, the shape branches that the copy is valid in, its
    /// dtype, and its slot.
    rounded: Vec<(SlotId, ShapeBranches, DType, SlotId)>,
    /// Cached split-F16 forms of matrices, each with the shape branches that it is valid in and the
    /// node that requested it.
    split_f16: Vec<(SplitF16Request, ShapeBranches, NodeId, SlotId)>,
    /// Dispatches that can write their rows panel-packed.
    pub(super) panels: Vec<PanelProducer>,
}

impl ValueViews {
    /// The views before lowering: none for any node of the graph.
    pub(super) fn new(graph: &Graph) -> ValueViews {
        ValueViews {
            views: vec![Vec::new(); graph.len()],
            copies: Vec::new(),
            materialized: Vec::new(),
            rounded: Vec::new(),
            split_f16: Vec::new(),
            panels: Vec::new(),
        }
    }
}

impl<'a> LoweringCtx<'a> {
    /// View of a graph value in the layout in which it is stored, without a copy.
    pub fn view(&self, v: Value) -> SlotView {
        self.values.views[v.node.index()][v.port as usize].clone()
    }

    /// Views of the results of a node.
    pub(crate) fn places(&self, node: NodeId) -> Vec<SlotView> {
        self.values.views[node.index()].clone()
    }

    /// Sets the views of the results of a node.
    pub(crate) fn set_places(&mut self, node: NodeId, places: Vec<SlotView>) {
        self.values.views[node.index()] = places;
    }

    /// Runs `emit` while the first result of `node` has the view `place`.
    pub(crate) fn with_output_view<T>(
        &mut self,
        node: NodeId,
        place: SlotView,
        emit: impl FnOnce(&mut LoweringCtx<'a>) -> T,
    ) -> T {
        let at = node.index();
        let before = std::mem::replace(&mut self.values.views[at], vec![place]);
        let done = emit(self);
        self.values.views[at] = before;
        done
    }

    /// Returns a dense view that starts at element 0 of its slot: the view itself, or a cached
    /// dense copy.
    ///
    /// # Errors
    /// [`CompileError`] if the copy is too large.
    pub fn dense(&mut self, view: &SlotView) -> Result<SlotView, CompileError> {
        if view.layout.is_contiguous() && view.layout.offset().is_empty() {
            return Ok(view.clone());
        }
        self.in_order(view, CopyOrder::Dense, |e, to| copy::emit(e, view, to))
    }

    /// Returns a copy of a view in another element order, which `write` fills. The copy is cached
    /// per view and order.
    ///
    /// # Errors
    /// [`CompileError`] if the copy is too large, or the error of `write`.
    pub(crate) fn in_order(
        &mut self,
        view: &SlotView,
        order: CopyOrder,
        write: impl FnOnce(&mut Self, &SlotView) -> Result<(), CompileError>,
    ) -> Result<SlotView, CompileError> {
        self.once(view, order, |e| {
            let constant = e.is_constant(view) && all_known(view.layout.shape());
            e.as_constant(constant, |e| {
                let to = e.temp(view.dtype, view.layout.shape())?;
                write(e, &to)?;
                Ok::<_, CompileError>(to)
            })
        })
    }

    /// Returns the copy of a view that `make` emits. The copy is cached per view and order.
    ///
    /// # Errors
    /// The error of `make`.
    pub(crate) fn once(
        &mut self,
        view: &SlotView,
        order: CopyOrder,
        make: impl FnOnce(&mut Self) -> Result<SlotView, CompileError>,
    ) -> Result<SlotView, CompileError> {
        let same = |(from, of, _): &&(SlotView, CopyOrder, SlotView)| from == view && *of == order;
        if let Some((.., done)) = self.values.copies.iter().find(same) {
            return Ok(done.clone());
        }
        let done = make(self)?;
        // A state may change during the run, so a copy of a state is not cached, except for a
        // split-F16 copy of a state that is never assigned.
        let is_state = matches!(
            self.home(view.slot),
            SlotPlacement::At(ProgramBuffer::State(_), _)
        );
        let stays = |e: &Self| {
            let mut assigns = e.graph.assigns().iter();
            matches!(order, CopyOrder::SplitF16 { .. })
                && !assigns.any(|to| e.view(to.state).slot == view.slot)
        };
        if !is_state || stays(self) {
            self.values.copies.push((view.clone(), order, done.clone()));
        }
        Ok(done)
    }

    /// Allocates the dense slot for a result of the current node. If the node updates an operand in
    /// place, the result gets the operand's slot.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::temp`].
    pub fn result(&mut self, port: usize) -> Result<SlotView, CompileError> {
        debug_assert!(
            self.cursor.branches.is_empty(),
            "invariant: results are allocated outside of shape branches"
        );
        let graph = self.graph;
        let ty = &graph.node(self.cursor.at).outputs[port];
        let view = match self.updated(port) {
            Some(slot) => SlotView {
                slot,
                layout: self.dense_layout(&ty.shape)?,
                dtype: ty.dtype,
            },
            None => self.temp(ty.dtype, &ty.shape)?,
        };
        self.cursor.results[port] = Some(view.clone());
        Ok(view)
    }

    /// Makes an existing view the result of the current node, instead of allocating a slot.
    pub fn forward(&mut self, port: usize, view: SlotView) {
        self.cursor.results[port] = Some(view);
    }

    /// Returns a value that is computed on demand: the first request in these shape branches calls
    /// `make`, later requests reuse its result.
    ///
    /// # Errors
    /// The error of `make`.
    pub(crate) fn materialize(
        &mut self,
        of: Value,
        make: impl FnOnce(&mut LoweringCtx<'a>) -> Result<SlotView, CompileError>,
    ) -> Result<SlotView, CompileError> {
        let known = |(value, arms, _): &&(Value, ShapeBranches, SlotView)| {
            *value == of && self.cursor.branches.starts_with(arms)
        };
        if let Some((.., view)) = self.values.materialized.iter().find(known) {
            return Ok(view.clone());
        }
        let view = make(self)?;
        let arms = self.cursor.branches.clone();
        self.values.materialized.push((of, arms, view.clone()));
        Ok(view)
    }

    /// Allocates a 16-bit copy of a dense value, for matmuls in the current shape branches. The
    /// caller's kernel, which computes the value, must also write the 16-bit copy. `None` if the
    /// value is not in the arena, because its memory may change during the run.
    ///
    /// # Errors
    /// The errors of [`LoweringCtx::temp`].
    pub(crate) fn round(
        &mut self,
        of: &SlotView,
        to: DType,
    ) -> Result<Option<SlotView>, CompileError> {
        if self.home(of.slot) != SlotPlacement::Arena {
            return Ok(None);
        }
        let copy = self.temp(to, of.layout.shape())?;
        let arms = self.cursor.branches.clone();
        self.values.rounded.push((of.slot, arms, to, copy.slot));
        Ok(Some(copy))
    }

    /// Slot of a value's 16-bit copy in this dtype, if one is valid in the current shape branches.
    pub(crate) fn rounded(&self, of: SlotId, to: DType) -> Option<SlotId> {
        let known = |(slot, arms, dtype, _): &&(SlotId, ShapeBranches, DType, SlotId)| {
            *slot == of && *dtype == to && self.cursor.branches.starts_with(arms)
        };
        let found = self.values.rounded.iter().find(known);
        found.map(|(.., copy)| *copy)
    }

    /// Returns the split-F16 form of a matrix, which `make` computes unless it is cached. A
    /// constant whose size is known is split into F16 matrices once, before the first run. The
    /// split forms of other matrices are reused only by nearby nodes, so that those of the forward
    /// pass do not occupy memory until the backward pass.
    ///
    /// # Errors
    /// The error of `make`.
    pub(crate) fn halves(
        &mut self,
        of: SplitF16Request,
        is_known: bool,
        make: impl FnOnce(&mut Self) -> Result<SlotId, CompileError>,
    ) -> Result<SlotId, CompileError> {
        const NEAR: usize = 64;
        let constant = is_known && self.home(of.slot).is_constant();
        let at = self.cursor.at;
        let known = |(known, arms, node, _): &&(SplitF16Request, ShapeBranches, NodeId, SlotId)| {
            let is_near = at.index().abs_diff(node.index()) <= NEAR;
            *known == of && (constant || is_near && self.cursor.branches.starts_with(arms))
        };
        if let Some((.., slot)) = self.values.split_f16.iter().find(known) {
            return Ok(*slot);
        }
        let slot = self.as_constant(constant, make)?;
        // The split-F16 form of a state is not cached, because the state may change during the run.
        if constant
            || matches!(
                self.home(of.slot),
                SlotPlacement::Arena | SlotPlacement::Input
            )
        {
            let arms = self.cursor.branches.clone();
            self.values.split_f16.push((of, arms, at, slot));
        }
        Ok(slot)
    }

    /// Existing slot, such as that of an operand, that a result of the current node is written into
    /// for an in-place update.
    pub fn updated(&self, port: usize) -> Option<SlotId> {
        let own = self
            .cursor
            .into
            .iter()
            .find(|(p, _)| usize::from(*p) == port);
        own.map(|(_, slot)| *slot)
    }

    /// Disables in-place updates for the current node, because its kernels read operands after they
    /// write results.
    pub(crate) fn update_apart(&mut self) {
        self.cursor.into.clear();
    }

    /// True if the view has the same contents in every run with the same parameters.
    pub fn is_constant(&self, view: &SlotView) -> bool {
        self.home(view.slot).is_constant()
    }

    pub(crate) fn home(&self, slot: SlotId) -> SlotPlacement {
        self.draft.home(slot)
    }

    /// Drops the cached copies from index `first` on, which were made in a branch. Copies that are
    /// computed before the first run remain cached.
    pub(super) fn discard_copies(&mut self, first: usize) {
        let made = self.values.copies.split_off(first);
        let is_prepared = |(.., done): &(SlotView, CopyOrder, SlotView)| {
            self.home(done.slot) == SlotPlacement::Prepared
        };
        let kept: Vec<_> = made.into_iter().filter(is_prepared).collect();
        self.values.copies.extend(kept);
    }
}
