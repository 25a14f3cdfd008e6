//! Reductions along rows with the elementwise work before, between and after them, as one kernel.
//!
//! A workgroup takes one row or a few short ones. It goes over a row once for each reduction that depends on the one
//! before, and once more to write elements: what it reads again lies in registers or in a near cache. A step whose
//! value is the same along a row is computed once a row.
//!
//! Next: `row_wise_text.rs` for the text of the kernel, `fusions/row_wise.rs` for what is taken together.

use std::collections::HashMap;

use tercet_ir::ops::{AxisMap, IndexMap, Map, MapArg, Op, ReduceFn};
use tercet_ir::scalar::ScalarOp;
use tercet_ir::{CompileError, DType, NodeId, Value};

use super::as_map;
use super::operand::{Coordinates, Operand};
use super::row_wise_text::RowKernel;
use super::text::{Kernel, Load, Read, Step, lanes};
use super::vector::{self, Vectors};
use crate::emit::{Emit, View};
use crate::families::rows::{WORKGROUP, product};
use crate::fusions::{Part, RowWise, is_worth, part_of};
use crate::kernel::{Access, Word};
use crate::num::Num;

/// Words of a row that an invocation keeps between passes over it.
const MOST_HELD_WORDS: u32 = 48;
/// Vectors of a row that an invocation keeps.
const MOST_HELD: u32 = 8;

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

/// A result and where it lies.
struct Stored {
    value: Value,
    step: usize,
    view: View,
}

/// Emits a group as one kernel; the places of the results of its nodes, or nothing where there is no such kernel.
///
/// # Errors
/// [`CompileError`] when a result is too large.
pub(crate) fn lower(
    e: &mut Emit<'_>,
    group: &RowWise,
) -> Result<Option<HashMap<Value, View>>, CompileError> {
    let (lead, row) = group.shape.split_at(group.axis);
    let (rows, len) = (product(lead), product(row));
    if !is_worth(e.bound(&rows)?, e.bound(&len)?) {
        return Ok(None);
    }
    let Some(body) = Body::of(e, group) else {
        return Ok(None);
    };
    if body.operands.len() + group.results.len() > e.caps.max_storage_buffers as usize {
        return Ok(None);
    }
    let (of_elements, of_rows): (Vec<Value>, Vec<Value>) =
        (group.results.iter()).partition(|v| e.graph.ty(**v).shape == group.shape);
    let dtypes: Vec<DType> = of_elements.iter().map(|v| e.graph.ty(*v).dtype).collect();
    let operands: Vec<&Operand> = body.operands.iter().collect();
    let coordinates = Coordinates::of(e, &group.shape, &operands);
    let len_num = e.num(&len);
    let Some(vectors) = vectors(e, &coordinates, &operands, &dtypes, len_num) else {
        return Ok(None);
    };
    let mut stored = Vec::new();
    for value in of_elements.iter().chain(&of_rows) {
        let ty = e.graph.ty(*value).clone();
        stored.push(Stored {
            value: *value,
            step: body.step_of[value],
            view: e.temp(ty.dtype, &ty.shape)?,
        });
    }
    let units = e.bound(&len)? / vectors.elements as usize;
    body.dispatch(
        e,
        group,
        &coordinates,
        vectors,
        &stored,
        of_elements.len(),
        [&rows, &len],
        units,
    );
    Ok(Some(
        stored.into_iter().map(|s| (s.value, s.view)).collect(),
    ))
}

/// Vectors of which all results have whole words, and which lie in one row.
fn vectors(
    e: &mut Emit<'_>,
    coordinates: &Coordinates,
    operands: &[&Operand],
    results: &[DType],
    len: Num,
) -> Option<Vectors> {
    let widest = results.iter().map(|d| lanes(*d)).max().unwrap_or(1);
    let usual = Vectors::of(e, coordinates, operands, results, 1).map(|v| v.elements);
    let sizes = usual.into_iter().chain([8, 4, 2, 1]);
    let fits = |n: &u32| {
        n.is_multiple_of(widest)
            && coordinates.keep_together(e, *n)
            && e.tape().is_multiple(len, *n)
    };
    let elements = sizes
        .filter(|n| usual.is_none_or(|most| *n <= most))
        .find(fits)?;
    Some(Vectors { elements, turns: 1 })
}

/// The steps of a group while they are put together.
struct Body {
    steps: Vec<RowStep>,
    operands: Vec<Operand>,
    /// Which operands are the same along a row.
    are_rows: Vec<bool>,
    step_of: HashMap<Value, usize>,
}

impl Body {
    /// The steps of all nodes; nothing where one reads another in an order of its own.
    fn of(e: &mut Emit<'_>, group: &RowWise) -> Option<Body> {
        let mut body = Body {
            steps: Vec::new(),
            operands: Vec::new(),
            are_rows: Vec::new(),
            step_of: HashMap::new(),
        };
        for &id in &group.nodes {
            let graph = e.graph;
            let node = graph.node(id);
            match part_of(graph, node, &group.shape, group.axis)? {
                Part::Reduction => body.reduction(e, group, id)?,
                part @ (Part::Elements | Part::Rows) => {
                    let map = as_map(graph, node);
                    body.map(e, group, id, &map, part)?;
                }
            }
        }
        Some(body)
    }

    fn reduction(&mut self, e: &mut Emit<'_>, group: &RowWise, id: NodeId) -> Option<()> {
        let node = e.graph.node(id);
        let Op::Reduce(op) = &node.op else {
            return None;
        };
        let f = op.f;
        let straight = IndexMap::identity(group.shape.rank());
        let arg = self.source(e, group, node.inputs[0], straight)?;
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
        self.step_of
            .insert(Value { node: id, port: 0 }, self.steps.len() - 1);
        Some(())
    }

    fn map(
        &mut self,
        e: &mut Emit<'_>,
        group: &RowWise,
        id: NodeId,
        map: &Map,
        part: Part,
    ) -> Option<()> {
        let graph = e.graph;
        let node = graph.node(id);
        let mut inputs = Vec::new();
        for (v, index) in node.inputs.iter().zip(&map.inputs) {
            let index = match part {
                Part::Rows => of_rows(index, group.axis),
                Part::Elements | Part::Reduction => index.clone(),
            };
            inputs.push(self.source(e, group, *v, index)?);
        }
        let dtypes: Vec<DType> = node.inputs.iter().map(|v| graph.ty(*v).dtype).collect();
        let to = map.step_dtypes(&dtypes).ok()?;
        let first = self.steps.len();
        for (step, to) in map.body.iter().zip(&to) {
            let source = |arg: &MapArg| match *arg {
                MapArg::Input(i) => inputs[i],
                MapArg::Step(s) => Source::Step(first + s),
            };
            let args: Vec<Source> = step.args.iter().map(source).collect();
            let from = args.last().map_or(DType::F32, |arg| self.dtype(*arg));
            let step = RowStep {
                work: Work::Scalar(step.op.clone()),
                is_row: args.iter().all(|arg| self.is_row(*arg)),
                pass: self.pass(&args),
                args,
                from,
                to: *to,
            };
            self.steps.push(step);
        }
        for (port, at) in map.results.iter().enumerate() {
            let port = port as u8;
            self.step_of.insert(Value { node: id, port }, first + at);
        }
        Some(())
    }

    /// A value as an index of the rows finds it: a step, or an operand.
    fn source(
        &mut self,
        e: &mut Emit<'_>,
        group: &RowWise,
        v: Value,
        index: IndexMap,
    ) -> Option<Source> {
        if let Some(&step) = self.step_of.get(&v) {
            let is_whole = e.graph.ty(v).shape == group.shape;
            let is_straight = match is_whole {
                true => index.is_identity(group.shape.rank()),
                false => is_of_row(&index, group),
            };
            return is_straight.then_some(Source::Step(step));
        }
        let view = e.view(v);
        let operand = Operand::of(e, &view, &index, &group.shape);
        let known = self.operands.iter().position(|o| *o == operand);
        Some(Source::Operand(known.unwrap_or_else(|| {
            let along = |a: &AxisMap| a.from.is_some_and(|from| from >= group.axis);
            self.are_rows.push(!index.axes.iter().any(along));
            self.operands.push(operand);
            self.operands.len() - 1
        })))
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

    #[allow(
        clippy::too_many_arguments,
        reason = "each is said once, where the kernel is chosen"
    )]
    fn dispatch(
        &self,
        e: &mut Emit<'_>,
        group: &RowWise,
        coordinates: &Coordinates,
        vectors: Vectors,
        stored: &[Stored],
        of_elements: usize,
        [rows, len]: [&tercet_ir::Dim; 2],
        units: usize,
    ) {
        let operands: Vec<&Operand> = self.operands.iter().collect();
        let numel = e.numel(&group.shape);
        let mut words = vec![numel, Num::ZERO];
        words.extend(&coordinates.sizes);
        let mut reads: Vec<Read> = Vec::new();
        for operand in &operands {
            reads.push(coordinates.read(e, operand, &mut words));
        }
        vector::choose(e, coordinates, &operands, &mut reads, vectors);
        let rows = e.num(rows);
        let len = e.num(len);
        let first = words.len();
        words.extend([rows, e.tape().div(len, vectors.elements), len]);
        let held_words = reads.iter().map(|read| match read.load {
            Load::Vector => vectors.words(read.dtype),
            Load::Once => 1,
            Load::Each => vectors.elements,
        });
        let threads = match units {
            ..=16 => 4,
            ..=128 => 32,
            _ => WORKGROUP,
        };
        let each = units.div_ceil(threads as usize) as u32;
        let fits = each <= MOST_HELD && each * held_words.sum::<u32>() <= MOST_HELD_WORDS;
        let kernel = RowKernel {
            map: Kernel {
                axes: coordinates.sizes.len() + 1,
                reads,
                steps: Vec::<Step<'_>>::new(),
                results: (stored[..of_elements].iter())
                    .map(|s| (s.step, s.view.dtype))
                    .collect(),
                words: words.len(),
                vectors: Some(vectors),
            },
            steps: &self.steps,
            are_rows: &self.are_rows,
            of_rows: (stored[of_elements..].iter())
                .map(|s| (s.step, s.view.dtype))
                .collect(),
            vectors,
            threads,
            held: if fits { each } else { 0 },
            first_word: first,
        };
        let mut slots: Vec<_> = operands.iter().map(|o| o.slot).collect();
        let mut access = vec![Access::Read; slots.len()];
        for result in stored {
            access.push(Access::Write);
            slots.push(result.view.slot);
        }
        let groups = e.tape().ceil_div(rows, WORKGROUP / threads);
        let grid = e.flat_grid(groups);
        let words: Vec<Word> = words.into_iter().map(Word::Num).collect();
        e.dispatch_wgsl(&kernel.name(), kernel.text(), &access, &slots, &words, grid);
    }
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
fn is_of_row(index: &IndexMap, group: &RowWise) -> bool {
    let (lead, rest) = match index.axes.split_at_checked(group.axis) {
        Some(both) => both,
        None => return false,
    };
    let stays = |(axis, a): (usize, &AxisMap)| {
        let is_one = group.shape[axis].is_one() && *a == AxisMap::constant(0);
        is_one || *a == AxisMap::axis(axis)
    };
    lead.iter().enumerate().all(stays) && rest.iter().all(|a| *a == AxisMap::constant(0))
}
