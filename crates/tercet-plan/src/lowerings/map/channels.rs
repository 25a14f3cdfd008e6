//! Sums over leading and last axes with the elementwise work before them, as one kernel and what adds its parts: statistics of
//! channels, and their gradients.
//!
//! A workgroup takes a strip of one channel, whose vectors its invocations read beside each other.
//!
//! Next: `columns_text.rs` for the text of the kernel, `strips.rs` for what adds strips.

use tercet_ir::CompileError;

use super::body::Steps;
use super::columns::{GROUPS_OF_UNIT, given};
use super::columns_text::{Around, ColumnKernel};
use super::operand::{Coordinates, Operand};
use super::strips::Strips;
use super::text::{Kernel, Read, Step};
use super::vector::{self, Vectors};
use crate::emit::{Emit, View};
use crate::families::rows::{WORKGROUP, product};
use crate::fusions::Columns;
use crate::kernel::{Access, Word};
use crate::num::Num;

/// Vectors of an invocation at least, where channels are cut into strips.
const FEWEST: usize = 8;

/// Emits the sums of a group; their places in order.
///
/// # Errors
/// [`CompileError`] when a result is too large.
pub(super) fn lower(e: &mut Emit<'_>, group: &Columns) -> Result<Vec<View>, CompileError> {
    let (lead, rest) = group.shape.split_at(group.axes);
    let (kept, last) = rest.split_at(rest.len() - group.inner);
    let (entries, channels, plane) = (product(lead), product(kept), product(last));
    let (body, sums) = given(e, group);
    let operands: Vec<&Operand> = body.operands.iter().collect();
    let coordinates = Coordinates::of(e, &group.shape, &operands);
    let [entries_num, channels_num, plane_num] =
        [&entries, &channels, &plane].map(|dim| e.num(dim));
    let usual = Vectors::of(e, &coordinates, &operands, &[], 1).map(|v| v.elements);
    let sizes = usual.into_iter().chain([4, 2, 1]);
    let fits = |n: &u32| coordinates.keep_together(e, *n) && e.tape().is_multiple(plane_num, *n);
    let elements = sizes.filter(|n| *n <= 8).find(fits).unwrap_or(1);
    let vectors = Vectors { elements, turns: 1 };

    let of_channel = e.bound(&entries)?.saturating_mul(e.bound(&plane)?) / elements as usize;
    let count = e.bound(&channels)?.max(1);
    let most = of_channel.div_ceil(FEWEST * WORKGROUP as usize).max(1);
    let parts = (GROUPS_OF_UNIT * e.caps.units()).div_ceil(count).min(most);

    let strips = Strips::new(e, group, parts, channels)?;
    let numel = e.numel(&group.shape);
    let mut words = vec![numel, Num::ZERO];
    words.extend(&coordinates.sizes);
    let mut reads: Vec<Read> = Vec::new();
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
        Num::Const(parts as i64),
    ]);
    let summed = tape.mul(entries_num, plane_num);
    let groups = tape.mul(channels_num, Num::Const(parts as i64));
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
        around: Around::Channels,
        together: strips.is_together(),
        first_word,
    };
    let mut slots: Vec<_> = operands.iter().map(|o| o.slot).collect();
    let mut access = vec![Access::Read; slots.len()];
    for to in strips.partial() {
        access.push(Access::Write);
        slots.push(to.slot);
    }
    let grid = e.flat_grid(groups);
    let words: Vec<Word> = words.into_iter().map(Word::Num).collect();
    e.dispatch_wgsl(&kernel.name(), kernel.text(), &access, &slots, &words, grid);
    strips.added(e, group, summed)
}
