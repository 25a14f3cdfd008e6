//! Reductions along rows with the elementwise work before, between and after them, as one kernel.
//!
//! A workgroup takes one row or a few short ones. It goes over a row once for each reduction that depends on the one
//! before, and once more to write elements: what it reads again lies in registers or in a near cache. A step whose
//! value is the same along a row is computed once a row.
//!
//! Next: `row_wise_text.rs` for the text of the kernel, `fusions/row_wise.rs` for what is taken together.

use std::collections::HashMap;

use tercet_ir::{CompileError, DType, Value};

use super::body::{Body, Steps};
use super::operand::{Coordinates, Operand};
use super::row_wise_text::RowKernel;
use super::text::{Kernel, Load, Read, Step, lanes};
use super::vector::{self, Vectors};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::families::rows::{WORKGROUP, many_rows, product};
use crate::fusions::{Part, RowWise, is_worth, part_of};
use crate::kernel::{Access, Word};
use crate::num::Num;

/// Vectors of a row that an invocation keeps.
const MOST_HELD: u32 = 8;

/// Words of a row that an invocation keeps between passes over it: values on their way take twice as many.
fn held_words_at_most(caps: &Caps) -> u32 {
    caps.device.held(caps.device.subgroups[0]) / 3
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
    if group.results.is_empty() {
        return Ok(Some(HashMap::new()));
    }
    let (lead, row) = group.shape.split_at(group.axis);
    let (rows, len) = (product(lead), product(row));
    if !is_worth(e.caps, e.bound(&rows)?, e.bound(&len)?) {
        return Ok(None);
    }
    let Some(mut body) = body_of(e, group) else {
        return Ok(None);
    };
    body.keep(&group.results);
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

/// The steps of all nodes; nothing where one reads another in an order of its own.
fn body_of(e: &mut Emit<'_>, group: &RowWise) -> Option<Body> {
    let mut body = Body::new(&group.shape, Some(group.axis));
    for &id in &group.nodes {
        match part_of(e.graph, e.graph.node(id), &group.shape, group.axis)? {
            Part::Reduction => body.reduction(e, id)?,
            Part::Softmax => body.softmax(e, id)?,
            part @ (Part::Elements | Part::Rows) => body.map(e, id, part, |_| true)?,
        }
    }
    Some(body)
}

impl Body {
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
        let are_many = e.bound(rows).is_ok_and(|rows| rows >= many_rows(e.caps));
        let rows = e.num(rows);
        let len = e.num(len);
        let first = words.len();
        words.extend([rows, e.tape().div(len, vectors.elements), len]);
        let held_words = reads.iter().map(|read| match read.load {
            Load::Vector => vectors.words(read.dtype),
            Load::Once => 1,
            Load::Each => vectors.elements,
        });
        // Where rows are many, few invocations a row wait for each other less.
        let threads = match units {
            0..=16 => 4,
            17..=128 => 32,
            129..=256 if are_many => 32,
            _ => WORKGROUP,
        };
        let each = units.div_ceil(threads as usize) as u32;
        let fits =
            each <= MOST_HELD && each * held_words.sum::<u32>() <= held_words_at_most(e.caps);
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
            steps: Steps(&self.steps),
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
