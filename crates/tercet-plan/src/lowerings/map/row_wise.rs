//! Lowers row reductions, with the elementwise work before, between and after them, to one kernel.
//!
//! Each workgroup processes one row, or several short ones. Reductions that depend on each other
//! take one pass over the row each; a last pass writes elements. Data read repeatedly stays in
//! registers or in the L1 cache. A step whose value is the same for a whole row is computed once
//! per row.
//!
//! Next: `row_wise_codegen.rs` for code generation, `fusions/row_wise.rs` for the fusion groups.

use std::collections::HashMap;

use tercet_ir::{CompileError, DType, Value};

use super::body::{FusedBody, RowSteps};
use super::codegen::{MapKernelSource, NamedStep, OperandRead, VectorLoad, lanes};
use super::operand::{CoordinateGroups, IndexedOperand};
use super::row_wise_codegen::RowKernelSource;
use super::vector::{self, VectorWidth};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::{RowWiseGroup, RowWiseNodeKind, is_profitable, part_of};
use crate::lowerings::rows::{WORKGROUP, many_rows, product};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, ParamWord};

/// Maximum number of row vectors that a thread holds in registers.
const MAX_REGISTER_VECTORS: u32 = 8;

/// Maximum number of 32-bit words of a row that a thread keeps in registers between passes. These
/// words take one third of the available registers; the intermediate values take the rest.
fn max_register_words(caps: &DeviceCaps) -> u32 {
    caps.device.max_fragment_registers(caps.device.subgroups[0]) / 3
}

/// A result of the fusion group, and the view that the kernel writes it to.
struct StoredResult {
    value: Value,
    step: usize,
    view: SlotView,
}

/// Emits one kernel that computes all nodes of a fusion group. Returns the views of its results, or
/// `None` if no kernel supports the group.
///
/// # Errors
/// [`CompileError`] if a result is too large.
pub(crate) fn lower(
    e: &mut LoweringCtx<'_>,
    group: &RowWiseGroup,
) -> Result<Option<HashMap<Value, SlotView>>, CompileError> {
    if group.results.is_empty() {
        return Ok(Some(HashMap::new()));
    }
    let (lead, row) = group.shape.split_at(group.axis);
    let (rows, len) = (product(lead), product(row));
    if !is_profitable(e.caps, e.bound(&rows)?, e.bound(&len)?) {
        return Ok(None);
    }
    let Some(mut body) = body_of(e, group) else {
        return Ok(None);
    };
    body.retain_steps(&group.results);
    if body.operands.len() + group.results.len() > e.caps.max_storage_buffers as usize {
        return Ok(None);
    }
    let (of_elements, of_rows): (Vec<Value>, Vec<Value>) =
        (group.results.iter()).partition(|v| e.graph.ty(**v).shape == group.shape);
    let dtypes: Vec<DType> = of_elements.iter().map(|v| e.graph.ty(*v).dtype).collect();
    let operands: Vec<&IndexedOperand> = body.operands.iter().collect();
    let coordinates = CoordinateGroups::new(e, &group.shape, &operands);
    let len_num = e.num(&len);
    let Some(vectors) = vectors(e, &coordinates, &operands, &dtypes, len_num) else {
        return Ok(None);
    };
    let mut stored = Vec::new();
    for value in of_elements.iter().chain(&of_rows) {
        let ty = e.graph.ty(*value).clone();
        stored.push(StoredResult {
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

/// Selects a vector length for which all results consist of whole words, and no vector contains
/// elements of two rows.
fn vectors(
    e: &mut LoweringCtx<'_>,
    coordinates: &CoordinateGroups,
    operands: &[&IndexedOperand],
    results: &[DType],
    len: SymInt,
) -> Option<VectorWidth> {
    let widest = results.iter().map(|d| lanes(*d)).max().unwrap_or(1);
    let usual = VectorWidth::new(e, coordinates, operands, results, 1).map(|v| v.elements);
    let sizes = usual.into_iter().chain([8, 4, 2, 1]);
    let fits = |n: &u32| {
        n.is_multiple_of(widest)
            && coordinates.is_contiguous(e, *n)
            && e.tape().is_multiple(len, *n)
    };
    let elements = sizes
        .filter(|n| usual.is_none_or(|most| *n <= most))
        .find(fits)?;
    Some(VectorWidth {
        elements,
        vectors_per_thread: 1,
    })
}

/// The steps of all nodes of the group; `None` if a node reads another node's result at other
/// indices, for example transposed.
fn body_of(e: &mut LoweringCtx<'_>, group: &RowWiseGroup) -> Option<FusedBody> {
    let mut body = FusedBody::new(&group.shape, Some(group.axis));
    for &id in &group.nodes {
        match part_of(e.graph, e.graph.node(id), &group.shape, group.axis)? {
            RowWiseNodeKind::Reduction => body.reduction(e, id)?,
            RowWiseNodeKind::Softmax => body.softmax(e, id)?,
            part @ (RowWiseNodeKind::Elements | RowWiseNodeKind::Rows) => {
                body.map(e, id, part, |_| true)?
            }
        }
    }
    Some(body)
}

impl FusedBody {
    #[allow(
        clippy::too_many_arguments,
        reason = "each is stated once, at kernel selection"
    )]
    fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        group: &RowWiseGroup,
        coordinates: &CoordinateGroups,
        vectors: VectorWidth,
        stored: &[StoredResult],
        of_elements: usize,
        [rows, len]: [&tercet_ir::Dim; 2],
        units: usize,
    ) {
        let operands: Vec<&IndexedOperand> = self.operands.iter().collect();
        let numel = e.numel(&group.shape);
        let mut words = vec![numel, SymInt::ZERO];
        words.extend(&coordinates.sizes);
        let mut reads: Vec<OperandRead> = Vec::new();
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
            VectorLoad::Vector => vectors.words(read.dtype),
            VectorLoad::Broadcast => 1,
            VectorLoad::PerElement => vectors.elements,
        });
        // If there are many rows, few threads per row suffice and spend less time in barriers.
        let threads = match units {
            0..=16 => 4,
            17..=128 => 32,
            129..=256 if are_many => 32,
            _ => WORKGROUP,
        };
        let each = units.div_ceil(threads as usize) as u32;
        let fits = each <= MAX_REGISTER_VECTORS
            && each * held_words.sum::<u32>() <= max_register_words(e.caps);
        let kernel = RowKernelSource {
            map: MapKernelSource {
                axes: coordinates.sizes.len() + 1,
                reads,
                steps: Vec::<NamedStep<'_>>::new(),
                results: (stored[..of_elements].iter())
                    .map(|s| (s.step, s.view.dtype))
                    .collect(),
                words: words.len(),
                vectors: Some(vectors),
            },
            steps: RowSteps(&self.steps),
            are_rows: &self.are_rows,
            row_results: (stored[of_elements..].iter())
                .map(|s| (s.step, s.view.dtype))
                .collect(),
            vectors,
            threads,
            register_vectors: if fits { each } else { 0 },
            first_word: first,
        };
        let mut slots: Vec<_> = operands.iter().map(|o| o.slot).collect();
        let mut access = vec![ArgAccess::Read; slots.len()];
        for result in stored {
            access.push(ArgAccess::Write);
            slots.push(result.view.slot);
        }
        let groups = e.tape().ceil_div(rows, WORKGROUP / threads);
        let grid = e.flat_grid(groups);
        let words: Vec<ParamWord> = words.into_iter().map(ParamWord::SymInt).collect();
        e.dispatch_wgsl(&kernel.name(), kernel.text(), &access, &slots, &words, grid);
    }
}
