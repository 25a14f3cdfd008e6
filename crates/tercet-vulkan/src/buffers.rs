//! The buffers of a program: where each lives, what it starts with, and the gaps between slots.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercet_plan::{Access, Buffer, Program, Slot};

use crate::backend::Shared;
use crate::device::{Device, Ticket};
use crate::error::GpuError;
use crate::memory::{Memory, Place};

/// What fills the gaps between slots: neither zero nor a number that kernels write.
pub(crate) const SENTINEL: u32 = 0xa5a5_5a5a;

/// Buffers of a program.
pub(crate) type Memories = BTreeMap<Buffer, Memory>;

pub(crate) fn is_const(b: Buffer) -> bool {
    matches!(b, Buffer::Const(_))
}

pub(crate) fn is_param(b: Buffer) -> bool {
    matches!(b, Buffer::Param(_) | Buffer::Prepared)
}

pub(crate) fn is_own(b: Buffer) -> bool {
    !is_const(b) && !is_param(b)
}

/// Where a buffer lives, and its name in errors.
pub(crate) fn place(buffer: Buffer) -> (Place, &'static str) {
    match buffer {
        Buffer::Input => (Place::Shared, "input buffer"),
        Buffer::Output => (Place::Device, "output buffer"),
        Buffer::Faults => (Place::Device, "fault buffer"),
        Buffer::Arena => (Place::Device, "arena"),
        Buffer::Counters => (Place::Device, "counters"),
        Buffer::Prepared => (Place::Device, "prepared values"),
        Buffer::Const(_) => (Place::Device, "constant"),
        Buffer::Param(_) => (Place::Device, "parameter"),
        Buffer::State(_) => (Place::Device, "state"),
    }
}

/// Allocates the buffers of a program of one kind.
pub(crate) fn allocate(
    device: &Arc<Device>,
    program: &Program,
    which: fn(Buffer) -> bool,
) -> Result<Memories, GpuError> {
    let wanted = program.buffers().into_iter().filter(|(b, _)| which(*b));
    wanted
        .map(|(buffer, bytes)| {
            let (place, what) = place(buffer);
            Ok((buffer, Memory::new(device, place, bytes, what)?))
        })
        .collect()
}

/// What is wrong when a gap was written: which slot it follows and who writes that.
pub(crate) fn complaint(program: &Program, gap: &Slot) -> String {
    let before = |s: &Slot| s.buffer == gap.buffer && s.offset_bytes + s.bytes == gap.offset_bytes;
    let at = program.slots.iter().position(before);
    let steps = program.prepare.iter().chain(&program.steps);
    let writers = steps.filter(|step| {
        let all = step.accesses(&program.kernels);
        all.iter()
            .any(|(s, how)| *how == Access::Write && Some(s.0 as usize) == at)
    });
    let writers: Vec<&str> = writers.map(|s| s.op).collect();
    format!(
        "a kernel wrote outside its slots, into {:?} at byte {}, behind a slot written by: {}",
        gap.buffer,
        gap.offset_bytes,
        writers.join(", ")
    )
}

/// Uploads constants and zeroes what will be prepared.
pub(crate) fn fill(
    shared: &Shared,
    program: &Program,
    consts: &Memories,
    params: &Memories,
) -> Result<(), GpuError> {
    for (buffer, memory) in consts {
        if let Buffer::Const(at) = buffer {
            shared
                .staging
                .upload(memory, 0, program.consts[*at as usize].loose_bytes())?;
        }
    }
    if let Some(prepared) = params.get(&Buffer::Prepared) {
        shared.staging.clear([prepared])?;
        fill_gaps(shared, program, params)?;
    }
    Ok(())
}

/// Writes the sentinel into the gaps of these buffers.
pub(crate) fn fill_gaps(
    shared: &Shared,
    program: &Program,
    memories: &Memories,
) -> Result<Ticket, GpuError> {
    let gaps = program.gaps.iter().filter_map(|gap| {
        let memory = memories.get(&gap.buffer)?;
        Some((memory, gap.offset_bytes, gap.bytes))
    });
    match program.gaps.is_empty() {
        true => Ok(Ticket::default()),
        false => shared.staging.fill(gaps, SENTINEL),
    }
}
