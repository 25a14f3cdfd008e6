//! Kernels for column sums: sums over leading axes, fused with the elementwise work that computes
//! the summands. A second kernel adds the partial sums of strips.
//!
//! Each workgroup sums some columns of one strip (consecutive rows). Adjacent threads process
//! adjacent vectors of a row, then continue with the same columns of a later row. The partial sums
//! form a matrix with one row per strip, whose rows are then added (`strips.rs`).
//!
//! Next: `channels.rs` for sums over leading and trailing axes, `columns_text.rs` for code
//! generation, `fusions/columns.rs` for the fusion groups.

use tercet_ir::CompileError;
use tercet_ir::ops::IndexMap;

use super::body::{FusedBody, RowSteps, StepArgument};
use super::channels;
use super::codegen::{MapKernelSource, NamedStep, OperandRead};
use super::columns_text::{ColumnKernelSource, OuterAxes};
use super::operand::{CoordinateGroups, IndexedOperand};
use super::strips::StripSums;
use super::vector::{self, VectorWidth};
use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::{ColumnSumGroup, RowWiseNodeKind};
use crate::lowerings::rows::{WORKGROUP, product};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, ParamWord};

/// Maximum number of adjacent threads that read the same row.
const MAX_THREADS_PER_ROW: u32 = 32;
/// Target number of workgroups per compute unit.
pub(super) const GROUPS_OF_UNIT: usize = 8;
/// Minimum number of rows that each thread sums if the rows are split into strips.
const MIN_STRIP_ROWS: usize = 16;

/// Emits the kernels for the sums of a fusion group. Returns the views of the sums, in order.
///
/// # Errors
/// [`CompileError`] if a result is too large.
pub(crate) fn lower(
    e: &mut LoweringCtx<'_>,
    group: &ColumnSumGroup,
) -> Result<Vec<SlotView>, CompileError> {
    if group.inner > 0 {
        return channels::lower(e, group);
    }
    let (lead, kept) = group.shape.split_at(group.axes);
    let (rows, columns) = (product(lead), product(kept));
    let (body, sums) = summed_steps(e, group);
    let operands: Vec<&IndexedOperand> = body.operands.iter().collect();
    let coordinates = CoordinateGroups::new(e, &group.shape, &operands);
    let columns_num = e.num(&columns);
    let usual = VectorWidth::new(e, &coordinates, &operands, &[], 1).map(|v| v.elements);
    let sizes = usual.into_iter().chain([4, 2, 1]);
    let fits = |n: &u32| coordinates.is_contiguous(e, *n) && e.tape().is_multiple(columns_num, *n);
    let elements = sizes.filter(|n| *n <= 8).find(fits).unwrap_or(1);
    let vectors = VectorWidth {
        elements,
        vectors_per_thread: 1,
    };

    let units = e.bound(&columns)? / elements as usize;
    let beside = (units.max(1).next_power_of_two() as u32).min(MAX_THREADS_PER_ROW);
    let deep = WORKGROUP / beside;
    let across = units.div_ceil(beside as usize).max(1);
    let most = e
        .bound(&rows)?
        .div_ceil(MIN_STRIP_ROWS * deep as usize)
        .max(1);
    let groups = GROUPS_OF_UNIT * e.caps.units();
    let parts = groups.div_ceil(across).min(most);

    let strips = StripSums::new(e, group, parts, columns)?;
    let numel = e.numel(&group.shape);
    let mut words = vec![numel, SymInt::ZERO];
    words.extend(&coordinates.sizes);
    let mut reads: Vec<OperandRead> = Vec::new();
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
        SymInt::Const(across as i64),
        SymInt::Const(parts as i64),
    ]);
    let kernel = ColumnKernelSource {
        map: MapKernelSource {
            axes: coordinates.sizes.len() + 1,
            reads,
            steps: Vec::<NamedStep<'_>>::new(),
            results: Vec::new(),
            words: words.len(),
            vectors: Some(vectors),
        },
        steps: RowSteps(&body.steps),
        sums: &sums,
        vectors,
        around: OuterAxes::ThreadsPerRow(beside),
        single_buffer: strips.is_single_buffer(),
        first_word,
    };
    let mut slots: Vec<_> = operands.iter().map(|o| o.slot).collect();
    let mut access = vec![ArgAccess::Read; slots.len()];
    for to in strips.partial() {
        access.push(ArgAccess::Write);
        slots.push(to.slot);
    }
    let grid = e.flat_grid(SymInt::Const((across * parts) as i64));
    let words: Vec<ParamWord> = words.into_iter().map(ParamWord::SymInt).collect();
    e.dispatch_wgsl(&kernel.name(), kernel.text(), &access, &slots, &words, grid);
    strips.added(e, group, rows_num)
}

/// The steps that compute the summands, and for each sum the step or operand that it adds up.
pub(super) fn summed_steps(
    e: &mut LoweringCtx<'_>,
    group: &ColumnSumGroup,
) -> (FusedBody, Vec<StepArgument>) {
    let mut body = FusedBody::new(&group.shape, None);
    for (&id, ports) in &group.recomputed {
        let done = body.map(e, id, RowWiseNodeKind::Elements, |port| {
            ports.contains(&port)
        });
        debug_assert!(
            done.is_some(),
            "invariant: the node reads other nodes without an index map"
        );
    }
    let straight = IndexMap::identity(group.shape.rank());
    let sums = group.sums.iter().map(|sum| {
        let of = e.graph.node(*sum).inputs[0];
        let source = body.source(e, of, &straight);
        source.unwrap_or_else(|| unreachable!("invariant: every summed value has a step"))
    });
    let sums = sums.collect();
    (body, sums)
}
