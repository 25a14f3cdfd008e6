//! Combines the map steps of several nodes of the same shape into the steps of one kernel.
//!
//! Next: `row_wise.rs` for fusion groups with row reductions, `columns.rs` for column reductions.

use std::collections::{BTreeSet, HashMap};

use tercet_ir::attr::FloatAttr;
use tercet_ir::ops::{AxisMap, IndexMap, Map, MapArg, Op, ReduceFn};
use tercet_ir::scalar::{BinaryFn, CompareFn, ScalarOp, UnaryFn};
use tercet_ir::{DType, NodeId, Shape, Value};

use super::as_map;
use super::codegen::NamedStep;
use super::operand::IndexedOperand;
use crate::emit::LoweringCtx;
use crate::fusions::RowWiseNodeKind;
use crate::scalar;

/// Where a step's argument comes from: an operand or an earlier step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StepArgument {
    Operand(usize),
    Step(usize),
}

/// Computation of a step.
#[derive(Clone, Debug)]
pub(super) enum RowStepOp {
    Scalar(ScalarOp),
    Reduce(ReduceFn),
}

/// A step of a fused kernel: an elementwise operation or a row reduction.
#[derive(Clone, Debug)]
pub(super) struct RowStep {
    pub(super) work: RowStepOp,
    pub(super) args: Vec<StepArgument>,
    /// Dtype of the step's last argument, and dtype of the step's result.
    pub(super) from: DType,
    pub(super) to: DType,
    /// The step's value is the same for all elements of a row.
    pub(super) is_row: bool,
    /// Number of passes over a row that must complete before this step.
    pub(super) pass: usize,
}

impl RowStep {
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.work, RowStepOp::Scalar(ScalarOp::Const(..)))
    }
}

/// The steps of a fused kernel, in order of computation.
#[derive(Clone, Copy)]
pub(super) struct RowSteps<'m>(pub(super) &'m [RowStep]);

impl<'m> RowSteps<'m> {
    /// The elementwise steps that must be computed for these values, in order.
    pub(super) fn required_steps(
        &self,
        wanted: impl IntoIterator<Item = StepArgument>,
    ) -> Vec<usize> {
        let mut needed = BTreeSet::new();
        let mut open: Vec<StepArgument> = wanted.into_iter().collect();
        while let Some(source) = open.pop() {
            let StepArgument::Step(at) = source else {
                continue;
            };
            let step = &self.0[at];
            if !step.is_row && needed.insert(at) {
                open.extend(&step.args);
            }
        }
        needed.into_iter().collect()
    }

    /// Name of a value in WGSL: operands are `v0`, `v1`.., elementwise steps `s0`, `s1`..
    pub(super) fn name_of(&self, source: StepArgument) -> String {
        match source {
            StepArgument::Operand(i) => format!("v{i}"),
            StepArgument::Step(at) => self.name_of_step(at),
        }
    }

    pub(super) fn name_of_step(&self, at: usize) -> String {
        let step = &self.0[at];
        match &step.work {
            RowStepOp::Scalar(op) if step.is_constant() => {
                scalar::expression(op, step.from, step.to, &[]).0
            }
            _ if step.is_row => format!("r{at}"),
            _ => format!("s{at}"),
        }
    }

    /// Converts elementwise steps to the form that the WGSL code generator takes.
    pub(super) fn named_steps(&self, steps: &[usize]) -> Vec<NamedStep<'_>> {
        let written = steps.iter().filter_map(|&at| {
            let step = &self.0[at];
            let RowStepOp::Scalar(op) = &step.work else {
                return None;
            };
            Some(NamedStep {
                at,
                op,
                args: step.args.iter().map(|arg| self.name_of(*arg)).collect(),
                kept: None,
                from: step.from,
                to: step.to,
            })
        });
        written.collect()
    }
}

/// The steps of a kernel under construction, which fuses several nodes.
pub(super) struct FusedBody {
    /// Shape of the result of every elementwise step.
    shape: Shape,
    /// First axis of a row's elements; the axes before it enumerate the rows. `None` if no value of
    /// the kernel is the same for a whole row.
    axis: Option<usize>,
    pub(super) steps: Vec<RowStep>,
    pub(super) operands: Vec<IndexedOperand>,
    /// For each operand, whether all elements of a row read the same number.
    pub(super) are_rows: Vec<bool>,
    pub(super) step_of: HashMap<Value, usize>,
}

impl FusedBody {
    pub(super) fn new(shape: &Shape, axis: Option<usize>) -> FusedBody {
        FusedBody {
            shape: shape.clone(),
            axis,
            steps: Vec::new(),
            operands: Vec::new(),
            are_rows: Vec::new(),
            step_of: HashMap::new(),
        }
    }

    /// Appends a row reduction. `None` if the reduction reads an earlier step at other indices, for
    /// example transposed.
    pub(super) fn reduction(&mut self, e: &mut LoweringCtx<'_>, id: NodeId) -> Option<()> {
        let node = e.graph.node(id);
        let Op::Reduce(op) = &node.op else {
            return None;
        };
        let f = op.f;
        let straight = IndexMap::identity(self.shape.rank());
        let arg = self.source(e, node.inputs[0], &straight)?;
        let pass = self.pass(&[arg]) + 1;
        let step = RowStep {
            work: RowStepOp::Reduce(f),
            args: vec![arg],
            from: e.graph.ty(node.inputs[0]).dtype,
            to: node.outputs[0].dtype,
            is_row: true,
            pass,
        };
        self.steps.push(step);
        let of = Value { node: id, port: 0 };
        self.step_of.insert(of, self.steps.len() - 1);
        Some(())
    }

    /// Appends a row softmax or log-softmax in F32. `None` if the softmax reads an earlier step at
    /// other indices, for example transposed.
    ///
    /// A row of only `-inf` gives zeros (or `-inf` for log-softmax): the maximum is not subtracted,
    /// and the sum counts as one.
    pub(super) fn softmax(&mut self, e: &mut LoweringCtx<'_>, id: NodeId) -> Option<()> {
        let node = e.graph.node(id);
        let is_log = matches!(node.op, Op::LogSoftmax(_));
        let dtype = node.outputs[0].dtype;
        let straight = IndexMap::identity(self.shape.rank());
        let x = self.source(e, node.inputs[0], &straight)?;
        let number = |value| RowStepOp::Scalar(ScalarOp::Const(DType::F32, FloatAttr(value)));
        let scalar = |op| RowStepOp::Scalar(op);
        let (f32, bool) = (DType::F32, DType::Bool);
        let none = self.push(number(f64::NEG_INFINITY), &[], f32);
        let [zero, one] = [0.0, 1.0].map(|n| self.push(number(n), &[], f32));
        let most = self.push(RowStepOp::Reduce(ReduceFn::Max), &[x], f32);
        let is_none = self.push(
            scalar(ScalarOp::Compare(CompareFn::Eq)),
            &[most, none],
            bool,
        );
        let least = self.push(scalar(ScalarOp::Where), &[is_none, zero, most], f32);
        let below = self.push(scalar(ScalarOp::Binary(BinaryFn::Sub)), &[x, least], f32);
        let part = self.push(scalar(ScalarOp::Unary(UnaryFn::Exp)), &[below], f32);
        let sum = self.push(RowStepOp::Reduce(ReduceFn::Sum), &[part], f32);
        let sum = self.push(scalar(ScalarOp::Where), &[is_none, one, sum], f32);
        let mut y = match is_log {
            true => {
                let log = self.push(scalar(ScalarOp::Unary(UnaryFn::Ln)), &[sum], f32);
                self.push(scalar(ScalarOp::Binary(BinaryFn::Sub)), &[below, log], f32)
            }
            false => {
                let factor = self.push(scalar(ScalarOp::Unary(UnaryFn::Recip)), &[sum], f32);
                self.push(
                    scalar(ScalarOp::Binary(BinaryFn::Mul)),
                    &[part, factor],
                    f32,
                )
            }
        };
        if dtype != f32 {
            y = self.push(scalar(ScalarOp::Cast(dtype)), &[y], dtype);
        }
        if let StepArgument::Step(at) = y {
            self.step_of.insert(Value { node: id, port: 0 }, at);
        }
        Some(())
    }

    /// Appends a step whose arguments are F32 values.
    fn push(&mut self, work: RowStepOp, args: &[StepArgument], to: DType) -> StepArgument {
        let reduces = matches!(work, RowStepOp::Reduce(_));
        self.steps.push(RowStep {
            work,
            args: args.to_vec(),
            from: DType::F32,
            to,
            is_row: reduces || args.iter().all(|arg| self.is_row(*arg)),
            pass: self.pass(args) + usize::from(reduces),
        });
        StepArgument::Step(self.steps.len() - 1)
    }

    /// Appends the steps of an elementwise node that its `wanted` results require. `None` if the
    /// node reads an earlier step at other indices, for example transposed.
    pub(super) fn map(
        &mut self,
        e: &mut LoweringCtx<'_>,
        id: NodeId,
        part: RowWiseNodeKind,
        wanted: impl Fn(u8) -> bool,
    ) -> Option<()> {
        let graph = e.graph;
        let node = graph.node(id);
        let map = as_map(graph, node);
        let dtypes: Vec<DType> = node.inputs.iter().map(|v| graph.ty(*v).dtype).collect();
        let to = map.step_dtypes(&dtypes).ok()?;
        let ports = || (0..node.outputs.len() as u8).filter(|p| wanted(*p));
        let needed = steps_of(&map, ports());
        let mut at_of = vec![0; map.body.len()];
        for at in needed {
            let step = &map.body[at];
            let mut args = Vec::new();
            for arg in &step.args {
                args.push(match *arg {
                    MapArg::Step(s) => StepArgument::Step(at_of[s]),
                    MapArg::Input(i) => {
                        let index = match (part, self.axis) {
                            (RowWiseNodeKind::Rows, Some(axis)) => row_index(&map.inputs[i], axis),
                            _ => map.inputs[i].clone(),
                        };
                        self.source(e, node.inputs[i], &index)?
                    }
                });
            }
            at_of[at] = self.steps.len();
            self.steps.push(RowStep {
                work: RowStepOp::Scalar(step.op.clone()),
                is_row: self.axis.is_some() && args.iter().all(|arg| self.is_row(*arg)),
                pass: self.pass(&args),
                from: args.last().map_or(DType::F32, |arg| self.dtype(*arg)),
                args,
                to: to[at],
            });
        }
        for port in ports() {
            let step = at_of[map.results[usize::from(port)]];
            self.step_of.insert(Value { node: id, port }, step);
        }
        Some(())
    }

    /// Finds the step that computes a value, or the operand that reads it through this index map.
    pub(super) fn source(
        &mut self,
        e: &mut LoweringCtx<'_>,
        v: Value,
        index: &IndexMap,
    ) -> Option<StepArgument> {
        if let Some(&step) = self.step_of.get(&v) {
            let is_straight = match (e.graph.ty(v).shape == self.shape, self.axis) {
                (true, _) => index.is_identity(self.shape.rank()),
                (false, Some(axis)) => is_of_row(index, &self.shape, axis),
                (false, None) => false,
            };
            return is_straight.then_some(StepArgument::Step(step));
        }
        let view = e.view(v);
        let operand = IndexedOperand::new(e, &view, index, &self.shape);
        let known = self.operands.iter().position(|o| *o == operand);
        Some(StepArgument::Operand(known.unwrap_or_else(|| {
            let is_row = self.axis.is_some_and(|axis| {
                let along = |a: &AxisMap| a.from.is_some_and(|from| from >= axis);
                !index.axes.iter().any(along)
            });
            self.are_rows.push(is_row);
            self.operands.push(operand);
            self.operands.len() - 1
        })))
    }

    /// Removes the steps that none of these values depends on.
    pub(super) fn retain_steps(&mut self, wanted: &[Value]) {
        let mut live = vec![false; self.steps.len()];
        wanted.iter().for_each(|v| live[self.step_of[v]] = true);
        let mut reads = vec![false; self.operands.len()];
        for at in (0..self.steps.len()).rev() {
            if !live[at] {
                continue;
            }
            for arg in &self.steps[at].args {
                match *arg {
                    StepArgument::Step(s) => live[s] = true,
                    StepArgument::Operand(i) => reads[i] = true,
                }
            }
        }
        let (steps, operands) = (numbered(&live), numbered(&reads));
        let old = std::mem::take(&mut self.steps);
        for (mut step, _) in old.into_iter().zip(&live).filter(|(_, is)| **is) {
            for arg in &mut step.args {
                *arg = match *arg {
                    StepArgument::Step(s) => StepArgument::Step(steps[s]),
                    StepArgument::Operand(i) => StepArgument::Operand(operands[i]),
                };
            }
            self.steps.push(step);
        }
        let mut is_read = reads.iter();
        self.operands.retain(|_| *is_read.next().unwrap_or(&true));
        let mut is_read = reads.iter();
        self.are_rows.retain(|_| *is_read.next().unwrap_or(&true));
        self.step_of.retain(|_, at| live[*at]);
        self.step_of.values_mut().for_each(|at| *at = steps[*at]);
    }

    fn dtype(&self, of: StepArgument) -> DType {
        match of {
            StepArgument::Operand(i) => self.operands[i].dtype,
            StepArgument::Step(s) => self.steps[s].to,
        }
    }

    fn is_row(&self, of: StepArgument) -> bool {
        match of {
            StepArgument::Operand(i) => self.are_rows[i],
            StepArgument::Step(s) => self.steps[s].is_row,
        }
    }

    fn pass(&self, args: &[StepArgument]) -> usize {
        let passes = args.iter().map(|arg| match *arg {
            StepArgument::Operand(_) => 0,
            StepArgument::Step(s) => self.steps[s].pass,
        });
        passes.max().unwrap_or(0)
    }
}

/// For each entry, its new index after the entries that are not `kept` are removed.
fn numbered(kept: &[bool]) -> Vec<usize> {
    let mut next = 0;
    let number = |kept: &bool| {
        next += usize::from(*kept);
        next - usize::from(*kept)
    };
    kept.iter().map(number).collect()
}

/// The indices of the map's steps that these results depend on, in order.
pub(crate) fn steps_of(map: &Map, ports: impl Iterator<Item = u8>) -> BTreeSet<usize> {
    let mut needed = BTreeSet::new();
    let mut open: Vec<usize> = ports.map(|port| map.results[usize::from(port)]).collect();
    while let Some(at) = open.pop() {
        if needed.insert(at) {
            let args = map.body[at].args.iter();
            open.extend(args.filter_map(|arg| match *arg {
                MapArg::Step(s) => Some(s),
                MapArg::Input(_) => None,
            }));
        }
    }
    needed
}

/// Changes an index map to read one element per row: along the axes of a row, the index becomes 0.
fn row_index(index: &IndexMap, axis: usize) -> IndexMap {
    let axes = index.axes.iter().map(|a| match a.from {
        Some(from) if from >= axis => AxisMap::constant(a.start),
        Some(_) | None => *a,
    });
    IndexMap {
        axes: axes.collect(),
    }
}

/// True if an index map reads one number per row: the same for all elements of a row.
fn is_of_row(index: &IndexMap, shape: &Shape, axis: usize) -> bool {
    let (lead, rest) = match index.axes.split_at_checked(axis) {
        Some(both) => both,
        None => return false,
    };
    let stays = |(axis, a): (usize, &AxisMap)| {
        let is_one = shape[axis].is_one() && *a == AxisMap::constant(0);
        is_one || *a == AxisMap::axis(axis)
    };
    lead.iter().enumerate().all(stays) && rest.iter().all(|a| *a == AxisMap::constant(0))
}
