//! What is emitted now: for which node, whether before all runs, in which arms.

use smallvec::SmallVec;
use tercet_ir::{CompileError, NodeId};

use super::{Emit, View};
use crate::program::{Arms, SlotId};

/// The slots of results that are written where an operand lies: a state, or what a loop carries.
pub(crate) type UpdatedSlots = SmallVec<[(u8, SlotId); 1]>;

/// The place in the graph that families emit for.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The node at hand; steps and errors name it.
    pub(crate) at: NodeId,
    pub(crate) op: &'static str,
    /// What is emitted depends on parameters and constants only.
    pub(super) constant: bool,
    /// The slots that results of the node are written into, where they lie already, by port.
    pub(super) into: UpdatedSlots,
    /// The results of the node so far.
    pub(super) results: Vec<Option<View>>,
    /// The arms that steps are emitted for.
    pub(super) arms: Arms,
}

impl Cursor {
    /// Before the first node.
    pub(super) fn start() -> Cursor {
        Cursor {
            at: NodeId(0),
            op: "",
            constant: false,
            into: UpdatedSlots::new(),
            results: Vec::new(),
            arms: Arms::new(),
        }
    }
}

impl<'a> Emit<'a> {
    /// Goes on to a node.
    pub(crate) fn move_to(&mut self, node: NodeId) {
        let op = self.graph.node(node).op.kind().doc().name;
        self.move_to_border(node, op);
    }

    /// Goes on to what the border of the graph does with a node.
    pub(crate) fn move_to_border(&mut self, node: NodeId, op: &'static str) {
        (self.cursor.at, self.cursor.op) = (node, op);
    }

    /// Emits on behalf of another node: steps and errors name that.
    pub(crate) fn with_node<T>(
        &mut self,
        node: NodeId,
        emit: impl FnOnce(&mut Emit<'a>) -> T,
    ) -> T {
        let before = (self.cursor.at, self.cursor.op);
        self.move_to(node);
        let done = emit(self);
        (self.cursor.at, self.cursor.op) = before;
        done
    }

    /// Emits under the name of another node's operator: steps and errors name the node at hand, but that operator.
    pub(crate) fn with_op<T>(&mut self, of: NodeId, emit: impl FnOnce(&mut Emit<'a>) -> T) -> T {
        let op = self.graph.node(of).op.kind().doc().name;
        let before = std::mem::replace(&mut self.cursor.op, op);
        let done = emit(self);
        self.cursor.op = before;
        done
    }

    /// Emits what is made once before all runs, or what is not.
    pub(crate) fn as_constant<T>(
        &mut self,
        constant: bool,
        emit: impl FnOnce(&mut Emit<'a>) -> T,
    ) -> T {
        let before = std::mem::replace(&mut self.cursor.constant, constant);
        let done = emit(self);
        self.cursor.constant = before;
        done
    }

    /// The results of the node at hand, as `lower` makes them; those of `into` where they lie already.
    ///
    /// # Errors
    /// Those of `lower`.
    ///
    /// # Panics
    /// When it leaves one out: a bug of the family.
    pub(crate) fn results_of(
        &mut self,
        into: UpdatedSlots,
        lower: impl FnOnce(&mut Emit<'a>) -> Result<(), CompileError>,
    ) -> Result<Vec<View>, CompileError> {
        let node = self.graph.node(self.cursor.at);
        self.cursor.into = into;
        self.cursor.results = vec![None; node.outputs.len()];
        let done = lower(self);
        self.cursor.into = UpdatedSlots::new();
        let results = std::mem::take(&mut self.cursor.results).into_iter();
        done?;
        let op = self.cursor.op;
        let placed = results
            .map(|r| r.unwrap_or_else(|| unreachable!("invariant: every result of {op} is made")));
        Ok(placed.collect())
    }
}
