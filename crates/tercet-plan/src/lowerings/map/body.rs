//! The steps of several nodes over one shape as those of one kernel.
//!
//! Next: `row_wise.rs` for groups with reductions along rows, `columns.rs` for reductions of columns.

use std::collections::{BTreeSet, HashMap};

use tercet_ir::attr::Real;
use tercet_ir::ops::{AxisMap, IndexMap, Map, MapArg, Op, ReduceFn};
use tercet_ir::scalar::{BinaryFn, CompareFn, ScalarOp, UnaryFn};
use tercet_ir::{DType, NodeId, Shape, Value};

use super::as_map;
use super::operand::Operand;
use super::text::Step;
use crate::emit::Emit;
use crate::fusions::Part;
use crate::scalar;

/// What an argument of a step is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Operand(usize),
    Step(usize),
}

/// What a step computes.
#[derive(Clone, Debug)]
pub(super) enum Work {
    Scalar(ScalarOp),
    Reduce(ReduceFn),
}

/// A step of the kernel.
#[derive(Clone, Debug)]
pub(super) struct RowStep {
    pub(super) work: Work,
    pub(super) args: Vec<Source>,
    /// The dtype of its last argument, and its own.
    pub(super) from: DType,
    pub(super) to: DType,
    /// Its value is the same along a row.
    pub(super) is_row: bool,
    /// The passes over a row after which it can be computed.
    pub(super) pass: usize,
}

impl RowStep {
    pub(super) fn is_constant(&self) -> bool {
        matches!(self.work, Work::Scalar(ScalarOp::Const(..)))
    }
}

/// The steps of a kernel.
#[derive(Clone, Copy)]
pub(super) struct Steps<'m>(pub(super) &'m [RowStep]);

impl<'m> Steps<'m> {
    /// The steps of elements that these need, in order.
    pub(super) fn needed(&self, wanted: impl IntoIterator<Item = Source>) -> Vec<usize> {
        let mut needed = BTreeSet::new();
        let mut open: Vec<Source> = wanted.into_iter().collect();
        while let Some(source) = open.pop() {
            let Source::Step(at) = source else {
                continue;
            };
            let step = &self.0[at];
            if !step.is_row && needed.insert(at) {
                open.extend(&step.args);
            }
        }
        needed.into_iter().collect()
    }

    /// The name of a value where `v0`, `v1`.. are operands and `s0`, `s1`.. steps of elements.
    pub(super) fn name_of(&self, source: Source) -> String {
        match source {
            Source::Operand(i) => format!("v{i}"),
            Source::Step(at) => self.name_of_step(at),
        }
    }

    pub(super) fn name_of_step(&self, at: usize) -> String {
        let step = &self.0[at];
        match &step.work {
            Work::Scalar(op) if step.is_constant() => {
                scalar::expression(op, step.from, step.to, &[]).0
            }
            _ if step.is_row => format!("r{at}"),
            _ => format!("s{at}"),
        }
    }

    /// Steps of elements as text has them.
    pub(super) fn written(&self, steps: &[usize]) -> Vec<Step<'_>> {
        let written = steps.iter().filter_map(|&at| {
            let step = &self.0[at];
            let Work::Scalar(op) = &step.work else {
                return None;
            };
            Some(Step {
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

/// The steps of several nodes while they are put together.
pub(super) struct Body {
    /// The shape that all elements have.
    shape: Shape,
    /// The first axis along rows, where there are numbers of rows.
    axis: Option<usize>,
    pub(super) steps: Vec<RowStep>,
    pub(super) operands: Vec<Operand>,
    /// Which operands are the same along a row.
    pub(super) are_rows: Vec<bool>,
    pub(super) step_of: HashMap<Value, usize>,
}

impl Body {
    pub(super) fn new(shape: &Shape, axis: Option<usize>) -> Body {
        Body {
            shape: shape.clone(),
            axis,
            steps: Vec::new(),
            operands: Vec::new(),
            are_rows: Vec::new(),
            step_of: HashMap::new(),
        }
    }

    /// Appends a reduction along rows; nothing where it reads a step in an order of its own.
    pub(super) fn reduction(&mut self, e: &mut Emit<'_>, id: NodeId) -> Option<()> {
        let node = e.graph.node(id);
        let Op::Reduce(op) = &node.op else {
            return None;
        };
        let f = op.f;
        let straight = IndexMap::identity(self.shape.rank());
        let arg = self.source(e, node.inputs[0], &straight)?;
        let pass = self.pass(&[arg]) + 1;
        let step = RowStep {
            work: Work::Reduce(f),
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

    /// Appends softmax of rows, or its logarithm, in F32; nothing as above.
    ///
    /// A row of only `-inf` gives zeros, or stays so: nothing is taken from it, and its sum is one.
    pub(super) fn softmax(&mut self, e: &mut Emit<'_>, id: NodeId) -> Option<()> {
        let node = e.graph.node(id);
        let is_log = matches!(node.op, Op::LogSoftmax(_));
        let dtype = node.outputs[0].dtype;
        let straight = IndexMap::identity(self.shape.rank());
        let x = self.source(e, node.inputs[0], &straight)?;
        let number = |value| Work::Scalar(ScalarOp::Const(DType::F32, Real(value)));
        let scalar = |op| Work::Scalar(op);
        let (f32, bool) = (DType::F32, DType::Bool);
        let none = self.push(number(f64::NEG_INFINITY), &[], f32);
        let [zero, one] = [0.0, 1.0].map(|n| self.push(number(n), &[], f32));
        let most = self.push(Work::Reduce(ReduceFn::Max), &[x], f32);
        let is_none = self.push(
            scalar(ScalarOp::Compare(CompareFn::Eq)),
            &[most, none],
            bool,
        );
        let least = self.push(scalar(ScalarOp::Where), &[is_none, zero, most], f32);
        let below = self.push(scalar(ScalarOp::Binary(BinaryFn::Sub)), &[x, least], f32);
        let part = self.push(scalar(ScalarOp::Unary(UnaryFn::Exp)), &[below], f32);
        let sum = self.push(Work::Reduce(ReduceFn::Sum), &[part], f32);
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
        if let Source::Step(at) = y {
            self.step_of.insert(Value { node: id, port: 0 }, at);
        }
        Some(())
    }

    /// Appends a step of operands in F32.
    fn push(&mut self, work: Work, args: &[Source], to: DType) -> Source {
        let reduces = matches!(work, Work::Reduce(_));
        self.steps.push(RowStep {
            work,
            args: args.to_vec(),
            from: DType::F32,
            to,
            is_row: reduces || args.iter().all(|arg| self.is_row(*arg)),
            pass: self.pass(args) + usize::from(reduces),
        });
        Source::Step(self.steps.len() - 1)
    }

    /// Appends the steps of an elementwise node that these results of it need; nothing as above.
    pub(super) fn map(
        &mut self,
        e: &mut Emit<'_>,
        id: NodeId,
        part: Part,
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
                    MapArg::Step(s) => Source::Step(at_of[s]),
                    MapArg::Input(i) => {
                        let index = match (part, self.axis) {
                            (Part::Rows, Some(axis)) => of_rows(&map.inputs[i], axis),
                            _ => map.inputs[i].clone(),
                        };
                        self.source(e, node.inputs[i], &index)?
                    }
                });
            }
            at_of[at] = self.steps.len();
            self.steps.push(RowStep {
                work: Work::Scalar(step.op.clone()),
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

    /// A value as an index of the shape finds it: a step, or an operand.
    pub(super) fn source(
        &mut self,
        e: &mut Emit<'_>,
        v: Value,
        index: &IndexMap,
    ) -> Option<Source> {
        if let Some(&step) = self.step_of.get(&v) {
            let is_straight = match (e.graph.ty(v).shape == self.shape, self.axis) {
                (true, _) => index.is_identity(self.shape.rank()),
                (false, Some(axis)) => is_of_row(index, &self.shape, axis),
                (false, None) => false,
            };
            return is_straight.then_some(Source::Step(step));
        }
        let view = e.view(v);
        let operand = Operand::of(e, &view, index, &self.shape);
        let known = self.operands.iter().position(|o| *o == operand);
        Some(Source::Operand(known.unwrap_or_else(|| {
            let is_row = self.axis.is_some_and(|axis| {
                let along = |a: &AxisMap| a.from.is_some_and(|from| from >= axis);
                !index.axes.iter().any(along)
            });
            self.are_rows.push(is_row);
            self.operands.push(operand);
            self.operands.len() - 1
        })))
    }

    /// Leaves out what these steps do not need.
    pub(super) fn keep(&mut self, wanted: &[Value]) {
        let mut live = vec![false; self.steps.len()];
        wanted.iter().for_each(|v| live[self.step_of[v]] = true);
        let mut reads = vec![false; self.operands.len()];
        for at in (0..self.steps.len()).rev() {
            if !live[at] {
                continue;
            }
            for arg in &self.steps[at].args {
                match *arg {
                    Source::Step(s) => live[s] = true,
                    Source::Operand(i) => reads[i] = true,
                }
            }
        }
        let (steps, operands) = (numbered(&live), numbered(&reads));
        let old = std::mem::take(&mut self.steps);
        for (mut step, _) in old.into_iter().zip(&live).filter(|(_, is)| **is) {
            for arg in &mut step.args {
                *arg = match *arg {
                    Source::Step(s) => Source::Step(steps[s]),
                    Source::Operand(i) => Source::Operand(operands[i]),
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

    fn dtype(&self, of: Source) -> DType {
        match of {
            Source::Operand(i) => self.operands[i].dtype,
            Source::Step(s) => self.steps[s].to,
        }
    }

    fn is_row(&self, of: Source) -> bool {
        match of {
            Source::Operand(i) => self.are_rows[i],
            Source::Step(s) => self.steps[s].is_row,
        }
    }

    fn pass(&self, args: &[Source]) -> usize {
        let passes = args.iter().map(|arg| match *arg {
            Source::Operand(_) => 0,
            Source::Step(s) => self.steps[s].pass,
        });
        passes.max().unwrap_or(0)
    }
}

/// The numbers of those that are kept.
fn numbered(kept: &[bool]) -> Vec<usize> {
    let mut next = 0;
    let number = |kept: &bool| {
        next += usize::from(*kept);
        next - usize::from(*kept)
    };
    kept.iter().map(number).collect()
}

/// The steps of a map that these results need, in order.
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

/// The index map of a number a row, as rows of elements find it.
fn of_rows(index: &IndexMap, axis: usize) -> IndexMap {
    let axes = index.axes.iter().map(|a| match a.from {
        Some(from) if from >= axis => AxisMap::constant(a.start),
        Some(_) | None => *a,
    });
    IndexMap {
        axes: axes.collect(),
    }
}

/// True if an index map finds the number of the row itself.
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
