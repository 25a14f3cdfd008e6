//! Storage bindings of a dispatch under WebGPU's rules.
//!
//! - Within one dispatch a buffer is either read-only or writable. All arguments in a buffer that
//!   the dispatch writes therefore get writable bindings.
//! - Writable bindings must not overlap, otherwise a browser rejects the dispatch. Overlapping
//!   arguments share one binding that covers all of them.
//! - A binding has at least one word. Empty slots are bound to a dummy word that only empty slots
//!   use.

use std::ops::Range;

use tercet_plan::{ArgAccess, BufferSlot, ProgramBuffer};

use crate::rewrite::BindingRewrite;

/// Maximum number of kernel arguments for which dummy words exist.
pub(crate) const MAX_ARGS: usize = 128;

/// The buffer that a binding refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BindingTarget {
    /// A buffer of the program.
    InBuffer(ProgramBuffer),
    /// The dummy buffer for empty slots.
    Empty,
}

/// A storage binding of a dispatch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StorageBinding {
    pub(crate) binding: u32,
    pub(crate) place: BindingTarget,
    pub(crate) bytes: Range<u64>,
    pub(crate) writable: bool,
}

/// What [`bindings`] does with writable arguments whose byte ranges overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverlapPolicy {
    /// Overlapping arguments are merged into one binding, as WebGPU requires.
    Merged,
    /// Overlapping arguments keep separate bindings, because the kernel's code cannot be rewritten.
    /// Native devices accept overlaps.
    Unchanged,
}

/// Computes the declaration rewrite of each argument and the bindings of the dispatch.
pub(crate) fn bindings(
    slots: &[BufferSlot],
    access: &[ArgAccess],
    storage_align_bytes: u64,
    overlaps: OverlapPolicy,
) -> Result<(Vec<BindingRewrite>, Vec<StorageBinding>), String> {
    if slots.len() != access.len() || slots.len() > MAX_ARGS {
        let (given, takes) = (slots.len(), access.len());
        return Err(format!("expected {takes} arguments, found {given}"));
    }
    let place = |i: usize| match slots[i].bytes {
        0 => BindingTarget::Empty,
        _ => BindingTarget::InBuffer(slots[i].buffer),
    };
    let range = |i: usize| match (slots[i].bytes, slots[i].offset_bytes) {
        (0, _) => {
            let at = i as u64 * storage_align_bytes;
            at..at + 4
        }
        (bytes, offset) => offset..offset + bytes,
    };
    let writable =
        |i: usize| (0..slots.len()).any(|j| access[j] == ArgAccess::Write && place(j) == place(i));
    let joined = overlaps == OverlapPolicy::Merged;
    let mut binds = Vec::with_capacity(slots.len());
    let mut bound: Vec<StorageBinding> = Vec::with_capacity(slots.len());
    for i in 0..slots.len() {
        let new = StorageBinding {
            binding: i as u32 + 1,
            place: place(i),
            bytes: range(i),
            writable: writable(i),
        };
        let writable = new.writable;
        let same = (bound.iter_mut()).find(|b| writable && joined && overlap(b, &new));
        binds.push(match (same, writable) {
            (Some(same), _) => {
                if same.bytes.start != new.bytes.start {
                    return Err(elsewhere(same, &new));
                }
                same.bytes.end = same.bytes.end.max(new.bytes.end);
                BindingRewrite::SameAs(same.binding as usize - 1)
            }
            (None, true) => BindingRewrite::ReadWrite,
            (None, false) => BindingRewrite::Read,
        });
        if !matches!(binds[i], BindingRewrite::SameAs(_)) {
            bound.push(new);
        }
    }
    // A binding that was extended may overlap another binding.
    for (i, a) in bound.iter().enumerate() {
        let other = bound[..i].iter();
        if let Some(b) = other
            .into_iter()
            .find(|b| joined && a.writable && overlap(a, b))
        {
            return Err(elsewhere(b, a));
        }
    }
    Ok((binds, bound))
}

fn overlap(a: &StorageBinding, b: &StorageBinding) -> bool {
    a.place == b.place && a.bytes.start < b.bytes.end && b.bytes.start < a.bytes.end
}

fn elsewhere(a: &StorageBinding, b: &StorageBinding) -> String {
    format!(
        "arguments {} and {} overlap but start at bytes {} and {}",
        a.binding - 1,
        b.binding - 1,
        a.bytes.start,
        b.bytes.start
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercet_ir::DType;

    fn slot(buffer: ProgramBuffer, offset_bytes: u64, bytes: u64) -> BufferSlot {
        BufferSlot {
            buffer,
            offset_bytes,
            bytes,
            dtype: DType::F32,
        }
    }

    /// Returns the declaration rewrite of each argument, and each binding as its number, byte range
    /// and whether it is writable.
    fn check(
        args: &[(BufferSlot, ArgAccess)],
        binds: &[BindingRewrite],
        want: &[(u32, Range<u64>, bool)],
    ) {
        let slots: Vec<BufferSlot> = args.iter().map(|a| a.0).collect();
        let access: Vec<ArgAccess> = args.iter().map(|a| a.1).collect();
        let (got, bound) = bindings(&slots, &access, 256, OverlapPolicy::Merged).unwrap();
        assert_eq!(got, binds);
        let bound: Vec<_> = (bound.into_iter())
            .map(|b| (b.binding, b.bytes, b.writable))
            .collect();
        assert_eq!(bound, want);
    }

    use ArgAccess::{Read, Write};
    use BindingRewrite::{ReadWrite, SameAs};
    use ProgramBuffer::{Arena, Input};

    #[test]
    fn a_buffer_is_read_or_writable_within_a_dispatch() {
        check(
            &[
                (slot(Input, 0, 8), Read),
                (slot(Arena, 0, 8), Read),
                (slot(Arena, 256, 8), Write),
            ],
            &[BindingRewrite::Read, ReadWrite, ReadWrite],
            &[(1, 0..8, false), (2, 0..8, true), (3, 256..264, true)],
        );
    }

    #[test]
    fn readers_of_one_slot_overlap_where_nothing_is_written() {
        check(
            &[
                (slot(Input, 0, 8), Read),
                (slot(Input, 0, 8), Read),
                (slot(Arena, 0, 8), Write),
            ],
            &[BindingRewrite::Read, BindingRewrite::Read, ReadWrite],
            &[(1, 0..8, false), (2, 0..8, false), (3, 0..8, true)],
        );
    }

    #[test]
    fn views_of_one_slot_become_one_binding_where_its_buffer_is_written() {
        check(
            &[
                (slot(Arena, 0, 64), Read),
                (slot(Arena, 0, 64), Read),
                (slot(Arena, 256, 8), Write),
            ],
            &[ReadWrite, SameAs(0), ReadWrite],
            &[(1, 0..64, true), (3, 256..264, true)],
        );
    }

    #[test]
    fn a_result_in_place_of_an_operand_is_one_binding_of_the_larger_size() {
        check(
            &[
                (slot(Arena, 0, 64), Read),
                (slot(Input, 0, 8), Read),
                (slot(Arena, 0, 128), Write),
            ],
            &[ReadWrite, BindingRewrite::Read, SameAs(0)],
            &[(1, 0..128, true), (2, 0..8, false)],
        );
    }

    #[test]
    fn empty_slots_overlap_nothing() {
        check(
            &[(slot(Arena, 0, 0), Read), (slot(Arena, 0, 0), Write)],
            &[ReadWrite, ReadWrite],
            &[(1, 0..4, true), (2, 256..260, true)],
        );
    }

    #[test]
    fn what_cannot_be_joined_stays_and_is_writable() {
        let slots = [slot(Arena, 0, 64), slot(Arena, 0, 64), slot(Arena, 256, 8)];
        let access = [Read, Read, Write];
        let (binds, bound) = bindings(&slots, &access, 256, OverlapPolicy::Unchanged).unwrap();
        assert_eq!(binds, [ReadWrite; 3]);
        let bytes: Vec<_> = bound.iter().map(|b| (b.binding, b.bytes.clone())).collect();
        assert_eq!(bytes, [(1, 0..64), (2, 0..64), (3, 256..264)]);
    }

    #[test]
    fn an_overlap_that_starts_elsewhere_is_refused() {
        let slots = [slot(Arena, 0, 512), slot(Arena, 256, 8)];
        let e = bindings(&slots, &[Read, Write], 256, OverlapPolicy::Merged).unwrap_err();
        assert_eq!(e, "arguments 0 and 1 overlap but start at bytes 0 and 256");
    }
}
