//! Insertion point of the lowering: the node, phase and shape branches for which new steps are
//! emitted.

use smallvec::SmallVec;
use tercet_ir::{CompileError, NodeId};

use super::{LoweringCtx, SlotView};
use tercet_program::{ShapeBranches, SlotId};

/// By result port of a node: the existing slot that the result is written into, such as the slot of
/// a state or of a loop-carried value.
pub(crate) type UpdatedSlots = SmallVec<[(u8, SlotId); 1]>;

/// The insertion point that lowerings emit steps at.
#[derive(Debug)]
pub(crate) struct InsertionPoint {
    /// The current node, which emitted steps and errors name.
    pub(crate) at: NodeId,
    pub(crate) op: &'static str,
    /// True if new steps belong to the prepare phase: they depend only on parameters and constants,
    /// and execute once before the first run.
    pub(super) constant: bool,
    /// By result port of the current node: the existing slot that the result is written into.
    pub(super) into: UpdatedSlots,
    /// By result port of the current node: the view of the result, if already allocated.
    pub(super) results: Vec<Option<SlotView>>,
    /// Shape branches that new steps belong to.
    pub(super) branches: ShapeBranches,
    /// Index of the variant selection that new kernels belong to.
    pub(crate) variant: Option<usize>,
}

impl InsertionPoint {
    /// The insertion point before the lowering of the first node.
    pub(super) fn start() -> InsertionPoint {
        InsertionPoint {
            at: NodeId(0),
            op: "",
            constant: false,
            into: UpdatedSlots::new(),
            results: Vec::new(),
            branches: ShapeBranches::new(),
            variant: None,
        }
    }
}

impl<'a> LoweringCtx<'a> {
    /// Moves to a node.
    pub(crate) fn set_node(&mut self, node: NodeId) {
        let op = self.graph.node(node).op.kind().doc().name;
        self.move_to_border(node, op);
    }

    /// Makes an input, output or state operation on a node the current node; errors call the
    /// operation `op`.
    pub(crate) fn move_to_border(&mut self, node: NodeId, op: &'static str) {
        (self.cursor.at, self.cursor.op) = (node, op);
    }

    /// Runs `emit` with `node` as the current node, which the emitted steps and errors name.
    pub(crate) fn with_node<T>(
        &mut self,
        node: NodeId,
        emit: impl FnOnce(&mut LoweringCtx<'a>) -> T,
    ) -> T {
        let before = (self.cursor.at, self.cursor.op);
        self.set_node(node);
        let done = emit(self);
        (self.cursor.at, self.cursor.op) = before;
        done
    }

    /// Runs `emit` with the operator name of node `of`. Emitted steps and errors still refer to the
    /// current node.
    pub(crate) fn with_op<T>(
        &mut self,
        of: NodeId,
        emit: impl FnOnce(&mut LoweringCtx<'a>) -> T,
    ) -> T {
        let op = self.graph.node(of).op.kind().doc().name;
        let before = std::mem::replace(&mut self.cursor.op, op);
        let done = emit(self);
        self.cursor.op = before;
        done
    }

    /// Runs `emit`; its steps execute once before the first run if `constant`, otherwise in each
    /// run.
    pub(crate) fn as_constant<T>(
        &mut self,
        constant: bool,
        emit: impl FnOnce(&mut LoweringCtx<'a>) -> T,
    ) -> T {
        let before = std::mem::replace(&mut self.cursor.constant, constant);
        let done = emit(self);
        self.cursor.constant = before;
        done
    }

    /// Runs `lower` for the current node and returns its results. `into` gives the existing slots
    /// that results with these ports are written into.
    ///
    /// # Errors
    /// The errors of `lower`.
    ///
    /// # Panics
    /// If `lower` omits a result, which is a bug of the lowering.
    pub(crate) fn results_of(
        &mut self,
        into: UpdatedSlots,
        lower: impl FnOnce(&mut LoweringCtx<'a>) -> Result<(), CompileError>,
    ) -> Result<Vec<SlotView>, CompileError> {
        let node = self.graph.node(self.cursor.at);
        self.cursor.into = into;
        self.cursor.results = vec![None; node.outputs.len()];
        let done = lower(self);
        self.cursor.into = UpdatedSlots::new();
        let results = std::mem::take(&mut self.cursor.results).into_iter();
        done?;
        let op = self.cursor.op;
        let placed = results.map(|r| {
            r.unwrap_or_else(|| unreachable!("invariant: every result of {op} is lowered"))
        });
        Ok(placed.collect())
    }
}
