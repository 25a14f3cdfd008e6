//! Insertion point: the node, phase and branches that steps are emitted for.

use smallvec::SmallVec;
use tercet_ir::{CompileError, NodeId};

use super::{LoweringCtx, SlotView};
use crate::program::{ShapeBranches, SlotId};

/// Existing slots that results are written into, by port: slots of a state, or of a value carried
/// by a loop.
pub(crate) type UpdatedSlots = SmallVec<[(u8, SlotId); 1]>;

/// The insertion point that lowerings emit steps at.
#[derive(Debug)]
pub(crate) struct InsertionPoint {
    /// The current node; steps and errors name it.
    pub(crate) at: NodeId,
    pub(crate) op: &'static str,
    /// True if the emitted steps depend only on parameters and constants, and run once before all
    /// runs.
    pub(super) constant: bool,
    /// Existing slots that results of the node are written into, by port.
    pub(super) into: UpdatedSlots,
    /// Results of the node allocated so far, by port.
    pub(super) results: Vec<Option<SlotView>>,
    /// Branches that steps are emitted for.
    pub(super) branches: ShapeBranches,
}

impl InsertionPoint {
    /// The insertion point before the first node.
    pub(super) fn start() -> InsertionPoint {
        InsertionPoint {
            at: NodeId(0),
            op: "",
            constant: false,
            into: UpdatedSlots::new(),
            results: Vec::new(),
            branches: ShapeBranches::new(),
        }
    }
}

impl<'a> LoweringCtx<'a> {
    /// Moves to a node.
    pub(crate) fn set_node(&mut self, node: NodeId) {
        let op = self.graph.node(node).op.kind().doc().name;
        self.move_to_border(node, op);
    }

    /// Moves to an input, output or state operation on a node; `op` is its name in errors.
    pub(crate) fn move_to_border(&mut self, node: NodeId, op: &'static str) {
        (self.cursor.at, self.cursor.op) = (node, op);
    }

    /// Emits with another current node, which steps and errors then name.
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

    /// Emits with the operator name of another node. Steps and errors still refer to the current
    /// node.
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

    /// Emits steps that run once before all runs if `constant`, otherwise steps of each run.
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

    /// Runs `lower` for the current node and returns its results. Results whose port is in `into`
    /// are written into these existing slots.
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
