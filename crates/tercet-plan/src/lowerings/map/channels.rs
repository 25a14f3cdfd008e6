//! Kernels for channel statistics and their gradients: sums over the axes before and after the
//! channel axis, fused with the elementwise work that computes the summands. A second kernel adds
//! the partial sums of strips.
//!
//! Each workgroup sums one strip (a part of the elements) of one channel; adjacent threads read
//! adjacent vectors.
//!
//! Next: `columns_text.rs` for code generation, `strips.rs` for the kernel that adds partial sums.

use tercet_ir::CompileError;

use super::body::RowSteps;
use super::codegen::{MapKernelSource, NamedStep, OperandRead};
use super::columns::{GROUPS_OF_UNIT, summed_steps};
use super::columns_text::{ColumnKernelSource, OuterAxes};
use super::operand::{CoordinateGroups, IndexedOperand};
use super::strips::StripSums;
use super::vector::{self, VectorWidth};
use crate::emit::{LoweringCtx, SlotView};
use crate::fusions::ColumnSumGroup;
use crate::lowerings::rows::{WORKGROUP, product};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, ParamWord};

/// Minimum number of vectors per thread if the elements of a channel are split into strips.
const MIN_VECTORS: usize = 8;

/// Emits the kernels for the sums of a fusion group. Returns the views of the sums, in order.
///
/// # Errors
/// [`CompileError`] if a result is too large.
pub(super) fn lower(
    e: &mut LoweringCtx<'_>,
    group: &ColumnSumGroup,
) -> Result<Vec<SlotView>, CompileError> {
    let (lead, rest) = group.shape.split_at(group.axes);
    let (kept, last) = rest.split_at(rest.len() - group.inner);
    let (entries, channels, plane) = (product(lead), product(kept), product(last));
    let (body, sums) = summed_steps(e, group);
    let operands: Vec<&IndexedOperand> = body.operands.iter().collect();
    let coordinates = CoordinateGroups::new(e, &group.shape, &operands);
    let [entries_num, channels_num, plane_num] =
        [&entries, &channels, &plane].map(|dim| e.num(dim));
    let usual = VectorWidth::new(e, &coordinates, &operands, &[], 1).map(|v| v.elements);
    let sizes = usual.into_iter().chain([4, 2, 1]);
    let fits = |n: &u32| coordinates.is_contiguous(e, *n) && e.tape().is_multiple(plane_num, *n);
    let elements = sizes.filter(|n| *n <= 8).find(fits).unwrap_or(1);
    let vectors = VectorWidth {
        elements,
        vectors_per_thread: 1,
    };

    let of_channel = e.bound(&entries)?.saturating_mul(e.bound(&plane)?) / elements as usize;
    let count = e.bound(&channels)?.max(1);
    let most = of_channel.div_ceil(MIN_VECTORS * WORKGROUP as usize).max(1);
    let parts = (GROUPS_OF_UNIT * e.caps.units()).div_ceil(count).min(most);

    let strips = StripSums::new(e, group, parts, channels)?;
    let numel = e.numel(&group.shape);
    let mut words = vec![numel, SymInt::ZERO];
    words.extend(&coordinates.sizes);
    let mut reads: Vec<OperandRead> = Vec::new();
    for operand in &operands {
        reads.push(coordinates.read(e, operand, &mut words));
    }
    vector::choose(e, &coordinates, &operands, &mut reads, vectors);
    let first_word = words.len();
    let tape = e.tape();
    let together = tape.div(plane_num, elements);
    let all = tape.mul(entries_num, together);
    words.extend([
        all,
        together,
        tape.ceil_div(all, parts as u32),
        channels_num,
        SymInt::Const(parts as i64),
    ]);
    let summed = tape.mul(entries_num, plane_num);
    let groups = tape.mul(channels_num, SymInt::Const(parts as i64));
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
        around: OuterAxes::Channels,
        single_buffer: strips.is_single_buffer(),
        first_word,
    };
    let mut slots: Vec<_> = operands.iter().map(|o| o.slot).collect();
    let mut access = vec![ArgAccess::Read; slots.len()];
    for to in strips.partial() {
        access.push(ArgAccess::Write);
        slots.push(to.slot);
    }
    let grid = e.flat_grid(groups);
    let words: Vec<ParamWord> = words.into_iter().map(ParamWord::SymInt).collect();
    e.dispatch_wgsl(&kernel.name(), kernel.text(), &access, &slots, &words, grid);
    strips.added(e, group, summed)
}
