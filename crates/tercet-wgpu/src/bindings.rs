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
pub struct StorageBinding {
    /// The number of the binding.
    pub binding: u32,
    pub(crate) place: BindingTarget,
    /// The byte range of the buffer.
    pub bytes: Range<u64>,
    /// True if the kernel may write.
    pub writable: bool,
}

/// What [`bindings`] does with writable arguments whose byte ranges overlap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverlapPolicy {
    /// Overlapping arguments are merged into one binding, as WebGPU requires.
    Merged,
    /// Overlapping arguments keep separate bindings, because the kernel's code cannot be rewritten.
    /// Native devices accept overlaps.
    Unchanged,
}

/// Computes the declaration rewrite of each argument and the bindings of the dispatch.
pub fn bindings(
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
