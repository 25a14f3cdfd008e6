//! The buffers of a program: memory type, initial contents, and redzones between slots.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercet_plan::{ArgAccess, BufferSlot, GpuProgram, ProgramBuffer};

use crate::backend::VulkanContext;
use crate::device::{TimelineValue, VulkanDevice};
use crate::error::VulkanError;
use crate::memory::{BufferMemory, VulkanBuffer};

/// The fill value of redzones: neither zero nor a value that kernels usually write.
pub(crate) const SENTINEL: u32 = 0xa5a5_5a5a;

/// The allocated buffers of a program.
pub(crate) type BufferAllocations = BTreeMap<ProgramBuffer, VulkanBuffer>;

pub(crate) fn is_const(b: ProgramBuffer) -> bool {
    matches!(b, ProgramBuffer::Const(_))
}

pub(crate) fn is_param(b: ProgramBuffer) -> bool {
    matches!(b, ProgramBuffer::Param(_) | ProgramBuffer::Prepared)
}

pub(crate) fn is_per_executable(b: ProgramBuffer) -> bool {
    !is_const(b) && !is_param(b)
}

/// The memory type of a buffer and its name in errors.
pub(crate) fn memory_of(buffer: ProgramBuffer) -> (BufferMemory, &'static str) {
    match buffer {
        ProgramBuffer::Input => (BufferMemory::Shared, "input buffer"),
        ProgramBuffer::Output => (BufferMemory::Device, "output buffer"),
        ProgramBuffer::Faults => (BufferMemory::Device, "fault buffer"),
        ProgramBuffer::Arena => (BufferMemory::Device, "arena"),
        ProgramBuffer::Counters => (BufferMemory::Device, "counters"),
        ProgramBuffer::Prepared => (BufferMemory::Device, "prepared values"),
        ProgramBuffer::Const(_) => (BufferMemory::Device, "constant"),
        ProgramBuffer::Param(_) => (BufferMemory::Device, "parameter"),
        ProgramBuffer::State(_) => (BufferMemory::Device, "state"),
    }
}

/// Allocates the buffers of a program that `which` selects.
pub(crate) fn allocate(
    device: &Arc<VulkanDevice>,
    program: &GpuProgram,
    which: fn(ProgramBuffer) -> bool,
) -> Result<BufferAllocations, VulkanError> {
    let wanted = program.buffers().into_iter().filter(|(b, _)| which(*b));
    wanted
        .map(|(buffer, bytes)| {
            let (place, what) = memory_of(buffer);
            Ok((buffer, VulkanBuffer::new(device, place, bytes, what)?))
        })
        .collect()
}

/// The message about an overwritten redzone: the slot before it and the kernels that write the
/// slot.
pub(crate) fn redzone_message(program: &GpuProgram, gap: &BufferSlot) -> String {
    let before =
        |s: &BufferSlot| s.buffer == gap.buffer && s.offset_bytes + s.bytes == gap.offset_bytes;
    let at = program.slots.iter().position(before);
    let steps = program.prepare.iter().chain(&program.steps);
    let writers = steps.filter(|step| {
        let all = step.accesses(&program.kernels);
        all.iter()
            .any(|(s, how)| *how == ArgAccess::Write && Some(s.0 as usize) == at)
    });
    let writers: Vec<&str> = writers.map(|s| s.op).collect();
    format!(
        "a kernel wrote outside its slots, to {:?} at byte {}, after a slot written by: {}",
        gap.buffer,
        gap.offset_bytes,
        writers.join(", ")
    )
}

/// Uploads constants and zeroes prepared buffers.
pub(crate) fn fill(
    shared: &VulkanContext,
    program: &GpuProgram,
    consts: &BufferAllocations,
    params: &BufferAllocations,
) -> Result<(), VulkanError> {
    for (buffer, memory) in consts {
        if let ProgramBuffer::Const(at) = buffer {
            shared
                .staging
                .upload(memory, 0, program.consts[*at as usize].loose_bytes())?;
        }
    }
    if let Some(prepared) = params.get(&ProgramBuffer::Prepared) {
        shared.staging.clear([prepared])?;
        fill_redzones(shared, program, params)?;
    }
    Ok(())
}

/// Writes the sentinel value into the redzones of these buffers.
pub(crate) fn fill_redzones(
    shared: &VulkanContext,
    program: &GpuProgram,
    memories: &BufferAllocations,
) -> Result<TimelineValue, VulkanError> {
    let gaps = program.redzones.iter().filter_map(|gap| {
        let memory = memories.get(&gap.buffer)?;
        Some((memory, gap.offset_bytes, gap.bytes))
    });
    match program.redzones.is_empty() {
        true => Ok(TimelineValue::default()),
        false => shared.staging.fill(gaps, SENTINEL),
    }
}
