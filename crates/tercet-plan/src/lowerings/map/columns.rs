//! Sums over leading axes with the elementwise work before them, as one kernel and what adds its parts.
//!
//! A workgroup takes a strip of rows of some columns: invocations beside each other have vectors of columns beside each
//! other, and every so many rows. Strips are added by the reduction of a matrix with a row for each (`strips.rs`).
//!
//! Next: `channels.rs` for sums over leading and last axes, `columns_text.rs` for the text of the kernel, `fusions/columns.rs`
//! for what is taken together.

use tercet_ir::CompileError;
use tercet_ir::ops::IndexMap;

use super::body::{Body, Source, Steps};
use super::channels;
use super::columns_text::{Around, ColumnKernel};
use super::operand::{Coordinates, Operand};
use super::strips::Strips;
use super::text::{Kernel, Read, Step};
use super::vector::{self, Vectors};
use crate::emit::{Emit, View};
use crate::families::rows::{WORKGROUP, product};
use crate::fusions::{Columns, Part};
use crate::kernel::{Access, Word};
use crate::num::Num;

/// Invocations beside each other on one row at most.
const MOST_BESIDE: u32 = 32;
/// Workgroups for each unit of a device.
pub(super) const GROUPS_OF_UNIT: usize = 8;
/// Rows of an invocation at least, where rows are cut into strips.
const FEWEST_ROWS: usize = 16;

/// Emits the sums of a group; their places in order.
///
/// # Errors
/// [`CompileError`] when a result is too large.
pub(crate) fn lower(e: &mut Emit<'_>, group: &Columns) -> Result<Vec<View>, CompileError> {
    if group.inner > 0 {
        return channels::lower(e, group);
    }
    let (lead, kept) = group.shape.split_at(group.axes);
    let (rows, columns) = (product(lead), product(kept));
    let (body, sums) = given(e, group);
    let operands: Vec<&Operand> = body.operands.iter().collect();
    let coordinates = Coordinates::of(e, &group.shape, &operands);
    let columns_num = e.num(&columns);
    let usual = Vectors::of(e, &coordinates, &operands, &[], 1).map(|v| v.elements);
    let sizes = usual.into_iter().chain([4, 2, 1]);
    let fits = |n: &u32| coordinates.keep_together(e, *n) && e.tape().is_multiple(columns_num, *n);
    let elements = sizes.filter(|n| *n <= 8).find(fits).unwrap_or(1);
    let vectors = Vectors { elements, turns: 1 };

    let units = e.bound(&columns)? / elements as usize;
    let beside = (units.max(1).next_power_of_two() as u32).min(MOST_BESIDE);
    let deep = WORKGROUP / beside;
    let across = units.div_ceil(beside as usize).max(1);
    let most = e.bound(&rows)?.div_ceil(FEWEST_ROWS * deep as usize).max(1);
    let groups = GROUPS_OF_UNIT * e.caps.units();
    let parts = groups.div_ceil(across).min(most);

    let strips = Strips::new(e, group, parts, columns)?;
    let numel = e.numel(&group.shape);
    let mut words = vec![numel, Num::ZERO];
    words.extend(&coordinates.sizes);
    let mut reads: Vec<Read> = Vec::new();
    for operand in &operands {
        reads.push(coordinates.read(e, operand, &mut words));
    }
    vector::choose(e, &coordinates, &operands, &mut reads, vectors);
    let rows_num = e.num(&rows);
    let first_word = words.len();
    let tape = e.tape();
    words.extend([
        rows_num,
        tape.div(columns_num, elements),
        tape.ceil_div(rows_num, parts as u32),
        Num::Const(across as i64),
        Num::Const(parts as i64),
    ]);
    let kernel = ColumnKernel {
        map: Kernel {
            axes: coordinates.sizes.len() + 1,
            reads,
            steps: Vec::<Step<'_>>::new(),
            results: Vec::new(),
            words: words.len(),
            vectors: Some(vectors),
        },
        steps: Steps(&body.steps),
        sums: &sums,
        vectors,
        around: Around::Beside(beside),
        together: strips.is_together(),
        first_word,
    };
    let mut slots: Vec<_> = operands.iter().map(|o| o.slot).collect();
    let mut access = vec![Access::Read; slots.len()];
    for to in strips.partial() {
        access.push(Access::Write);
        slots.push(to.slot);
    }
    let grid = e.flat_grid(Num::Const((across * parts) as i64));
    let words: Vec<Word> = words.into_iter().map(Word::Num).collect();
    e.dispatch_wgsl(&kernel.name(), kernel.text(), &access, &slots, &words, grid);
    strips.added(e, group, rows_num)
}

/// The steps of what is summed, and what of them each sum takes.
pub(super) fn given(e: &mut Emit<'_>, group: &Columns) -> (Body, Vec<Source>) {
    let mut body = Body::new(&group.shape, None);
    for (&id, ports) in &group.inlined {
        let done = body.map(e, id, Part::Elements, |port| ports.contains(&port));
        debug_assert!(done.is_some(), "invariant: it reads others as they are");
    }
    let straight = IndexMap::identity(group.shape.rank());
    let sums = group.sums.iter().map(|sum| {
        let of = e.graph.node(*sum).inputs[0];
        let source = body.source(e, of, &straight);
        source.unwrap_or_else(|| unreachable!("invariant: what is summed has a step"))
    });
    let sums = sums.collect();
    (body, sums)
}
