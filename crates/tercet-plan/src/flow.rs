//! In which order a run plays the stages of a program, where data decides it.
//!
//! A program without control flow is one stage. Else its steps are in stages, each a list of its own, with
//! a barrier against everything at its borders; [`Flow`] says which follow on which. What decides is one
//! word, which the host reads back; a known number of repetitions needs none.

use std::ops::Range;

use tercet_ir::{EvalError, NodeId, RunError};

use crate::num::Num;
use crate::program::{Program, SlotId};

/// The index of a stage of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StageId(pub u32);

/// What a run plays next; stages are `S`.
#[derive(Clone, Debug, PartialEq)]
pub enum Flow<S = StageId> {
    /// The steps of a stage.
    Stage(S),
    /// Nothing, but that the run ends here if these of [`Program::size_checks`] fail.
    Sizes(Vec<usize>),
    /// One list or the other.
    If {
        /// Where one byte says which: not 0 for `then`.
        pred: SlotId,
        /// Where it holds.
        then: Vec<Flow<S>>,
        /// Where it does not.
        otherwise: Vec<Flow<S>>,
    },
    /// `cond`, and as long as the byte at `pred` is not 0 then, `body` and `cond` again.
    While {
        /// Writes `pred`.
        cond: Vec<Flow<S>>,
        /// Where one byte says whether there is another iteration.
        pred: SlotId,
        /// An iteration.
        body: Vec<Flow<S>>,
        /// The most iterations.
        max_iter: u64,
        /// The node, for the error of one more.
        site: Site,
    },
    /// `body`, so many times.
    Repeat {
        /// How often.
        count: Num,
        /// An iteration.
        body: Vec<Flow<S>>,
    },
}

/// A node inside another, by the graph that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inner {
    /// The attribute that holds the graph.
    pub graph: &'static str,
    /// The node, in the numbering of that graph as it was given.
    pub node: NodeId,
    /// Its operator.
    pub op: &'static str,
}

/// A node for errors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The node of the graph as it was given, where it is known.
    pub node: NodeId,
    /// Its operator.
    pub op: &'static str,
    /// The nodes inside it down to the one that is meant, outermost first; none if it is meant itself.
    pub inside: Vec<Inner>,
}

impl Site {
    /// The failure of the node.
    pub fn fail(&self, source: EvalError) -> RunError {
        let inside = self.inside.iter().rev();
        let source = inside.fold(source, |source, inner| EvalError::Within {
            graph: inner.graph,
            node: inner.node,
            op: inner.op,
            source: Box::new(source),
        });
        RunError::Node {
            node: self.node,
            op: self.op,
            source,
        }
    }
}

impl Program {
    /// The ranges of [`Program::steps`] that are played as one; all steps where data decides nothing.
    pub fn stages(&self) -> Vec<Range<usize>> {
        match self.flow.is_empty() {
            true => std::iter::once(0..self.steps.len()).collect(),
            false => self.stages.clone(),
        }
    }

    /// The steps of a stage.
    pub fn stage(&self, id: StageId) -> Range<usize> {
        match self.flow.is_empty() {
            true => 0..self.steps.len(),
            false => self.stages[id.0 as usize].clone(),
        }
    }
}
