//! Control flow between the stages of a program, for branches and loops that depend on data.
//!
//! A program without control flow has one stage. With control flow, each stage is a separate list
//! of steps, with a full barrier before and after it. [`ControlFlowGraph`] gives the order in which
//! a run executes the stages. For a branch and for each iteration of a while loop, the host reads
//! one predicate word back. For a loop with a known iteration count, the host reads nothing back.

use std::ops::Range;

use tercet_ir::{EvalError, NodeId, RunError};

use crate::program::{GpuProgram, SlotId};
use crate::sym_int::SymInt;

/// The index of a stage of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StageId(pub u32);

/// One element of a program's control flow, such as a stage or a loop. `S` is the type that
/// represents a stage.
#[derive(Clone, Debug, PartialEq)]
pub enum ControlFlowGraph<S = StageId> {
    /// Executes the steps of a stage.
    Stage(S),
    /// Executes no steps; ends the run with an error if one of these [`GpuProgram::size_checks`]
    /// fails.
    Sizes(Vec<usize>),
    /// Executes `then` or `else_flow`, selected by a predicate.
    If {
        /// Slot of the predicate byte; a nonzero byte selects `then`.
        pred: SlotId,
        /// Control flow that is executed if the predicate holds.
        then: Vec<ControlFlowGraph<S>>,
        /// Control flow that is executed if the predicate does not hold.
        else_flow: Vec<ControlFlowGraph<S>>,
    },
    /// A while loop: executes `cond`, then `body` and `cond` again as long as the byte at `pred` is
    /// nonzero.
    While {
        /// Control flow that computes the loop predicate and writes it to `pred`.
        cond: Vec<ControlFlowGraph<S>>,
        /// Slot of the predicate byte; a nonzero byte starts another iteration.
        pred: SlotId,
        /// The loop body.
        body: Vec<ControlFlowGraph<S>>,
        /// Maximum number of iterations.
        max_iter: u64,
        /// Location of the loop's node, for the error if the loop exceeds `max_iter` iterations.
        site: NodeLocation,
    },
    /// A loop with a known iteration count: executes `body` `count` times.
    Repeat {
        /// Number of iterations.
        count: SymInt,
        /// The loop body.
        body: Vec<ControlFlowGraph<S>>,
    },
}

/// A node of a nested graph, and the attribute of the enclosing node that holds this graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NestedNode {
    /// Name of the attribute that holds the nested graph.
    pub graph: &'static str,
    /// Id of the node in the nested graph before legalization (the source graph).
    pub node: NodeId,
    /// Name of the node's operator.
    pub op: &'static str,
}

/// Location of a node, for error messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLocation {
    /// Id of the outermost node in the source graph, if known, otherwise in the legal graph.
    pub node: NodeId,
    /// Name of the node's operator.
    pub op: &'static str,
    /// Path from `node` through nested graphs to the located node, outermost first. Empty if `node`
    /// is the located node.
    pub path: Vec<NestedNode>,
}

impl NodeLocation {
    /// Wraps an error of the located node into a run error that names all nodes of the path.
    pub fn fail(&self, source: EvalError) -> RunError {
        let inside = self.path.iter().rev();
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

impl GpuProgram {
    /// Ranges of [`GpuProgram::steps`], one per stage. For a program without control flow, this is
    /// a single range with all steps.
    pub fn stages(&self) -> Vec<Range<usize>> {
        match self.flow.is_empty() {
            true => std::iter::once(0..self.steps.len()).collect(),
            false => self.stages.clone(),
        }
    }

    /// Range of [`GpuProgram::steps`] that one stage executes.
    pub fn stage(&self, id: StageId) -> Range<usize> {
        match self.flow.is_empty() {
            true => 0..self.steps.len(),
            false => self.stages[id.0 as usize].clone(),
        }
    }
}
