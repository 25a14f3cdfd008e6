//! Storage bindings of a dispatch.

use std::ops::Range;

use tercet_ir::DType;
use tercet_plan::{ArgAccess, BufferSlot, ProgramBuffer};
use tercet_wgpu::internals::{BindingRewrite, OverlapPolicy, bindings};

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
