//! The functions of objects of a device: shaders, pipelines, buffers, descriptors, submissions.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use ash::vk;

use crate::PIPELINE;
use crate::entry::{LayerDevice, LayerModule, device_of, lock};
use crate::portability::{self, PIPELINE_BUFFERS};
use crate::settings::{log, settings, violation};
use crate::spirv;

pub(crate) unsafe extern "system" fn create_shader_module(
    device: vk::Device,
    info: *const vk::ShaderModuleCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    module: *mut vk::ShaderModule,
) -> vk::Result {
    let Some(state) = device_of(device) else {
        return vk::Result::ERROR_UNKNOWN;
    };
    // SAFETY: the create info is valid, and its code has whole words.
    let (mut below, words) = unsafe {
        let info = *info;
        (
            info,
            std::slice::from_raw_parts(info.p_code, info.code_size / 4),
        )
    };
    let hash = spirv::hash(words);
    if settings().portability {
        let capabilities = spirv::capabilities(words);
        let mut refused = capabilities
            .into_iter()
            .filter(|c| !portability::permits_capability(*c));
        if let Some(number) = refused.next() {
            violation(&format!("a shader declares capability {number}"));
            return vk::Result::ERROR_INVALID_SHADER_NV;
        }
    }
    let spoiled = match settings().spoiled.contains(&hash) {
        true => spirv::spoiled(words),
        false => None,
    };
    if let Some(words) = &spoiled {
        below.p_code = words.as_ptr();
        below.code_size = words.len() * 4;
    }
    // SAFETY: the parameters of the program, or valid code of the same module.
    let result = unsafe {
        (state.raw.fp_v1_0().create_shader_module)(device, &raw const below, allocator, module)
    };
    if result == vk::Result::SUCCESS {
        let size = spirv::workgroup_size(words);
        // SAFETY: the driver wrote the handle.
        let module = unsafe { *module };
        lock(&state.modules).insert(module, LayerModule { hash, size });
    }
    result
}

/// The specialization constants of a stage that have four bytes.
///
/// # Safety
/// `info` is null or valid.
unsafe fn constants(info: *const vk::SpecializationInfo<'_>) -> HashMap<u32, u32> {
    // SAFETY: the caller guarantees a null pointer or a valid structure.
    let Some(info) = (unsafe { info.as_ref() }) else {
        return HashMap::new();
    };
    let entry = |i: usize| {
        // SAFETY: the structure has this many entries, and each is inside the data.
        unsafe {
            let entry = *info.p_map_entries.add(i);
            let data = info.p_data.cast::<u8>().add(entry.offset as usize);
            (entry.size == 4).then(|| (entry.constant_id, data.cast::<u32>().read_unaligned()))
        }
    };
    (0..info.map_entry_count as usize)
        .filter_map(entry)
        .collect()
}

pub(crate) unsafe extern "system" fn create_compute_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    pipelines: *mut vk::Pipeline,
) -> vk::Result {
    let Some(state) = device_of(device) else {
        return vk::Result::ERROR_UNKNOWN;
    };
    let most = u64::from(state.limits.max_compute_work_group_invocations);
    // SAFETY: the program passes this many infos.
    let all = unsafe { std::slice::from_raw_parts(infos, count as usize) };
    let is_refused = |info: &vk::ComputePipelineCreateInfo<'_>| {
        let modules = lock(&state.modules);
        let Some(LayerModule { hash, size }) = modules.get(&info.stage.module) else {
            return false;
        };
        log(&format!("{PIPELINE} {hash:016x}"));
        // SAFETY: the constants of a valid stage.
        let constants = unsafe { constants(info.stage.p_specialization_info) };
        let invocations = size.as_ref().map_or(1, |size| size.invocations(&constants));
        let is_large = settings().portability && invocations > most;
        if is_large {
            violation(&format!(
                "a workgroup has {invocations} invocations, at most {most}"
            ));
        }
        is_large || settings().refused.contains(hash)
    };
    // Without short circuit: each pipeline has its line in the log.
    let refused = all.iter().filter(|info| is_refused(info)).count();
    if refused > 0 {
        // SAFETY: the program passes room for this many handles.
        let made = unsafe { std::slice::from_raw_parts_mut(pipelines, count as usize) };
        made.fill(vk::Pipeline::null());
        return vk::Result::ERROR_INVALID_SHADER_NV;
    }
    let next = state.raw.fp_v1_0().create_compute_pipelines;
    // SAFETY: the parameters of the program.
    unsafe { next(device, cache, count, infos, allocator, pipelines) }
}

pub(crate) unsafe extern "system" fn create_set_layout(
    device: vk::Device,
    info: *const vk::DescriptorSetLayoutCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    layout: *mut vk::DescriptorSetLayout,
) -> vk::Result {
    let Some(state) = device_of(device) else {
        return vk::Result::ERROR_UNKNOWN;
    };
    if settings().portability {
        // SAFETY: the create info is valid.
        let bindings = unsafe {
            let count = (*info).binding_count as usize;
            std::slice::from_raw_parts((*info).p_bindings, count)
        };
        let buffers: u32 = bindings.iter().map(|b| b.descriptor_count).sum();
        if buffers > PIPELINE_BUFFERS {
            violation(&format!(
                "a pipeline has {buffers} buffers, at most {PIPELINE_BUFFERS}"
            ));
            return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
        }
    }
    let next = state.raw.fp_v1_0().create_descriptor_set_layout;
    // SAFETY: the parameters of the program.
    unsafe { next(device, info, allocator, layout) }
}

pub(crate) unsafe extern "system" fn create_buffer(
    device: vk::Device,
    info: *const vk::BufferCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    buffer: *mut vk::Buffer,
) -> vk::Result {
    let Some(state) = device_of(device) else {
        return vk::Result::ERROR_UNKNOWN;
    };
    // SAFETY: the parameters of the program; the driver writes the handle.
    unsafe {
        let result = (state.raw.fp_v1_0().create_buffer)(device, info, allocator, buffer);
        if result == vk::Result::SUCCESS {
            lock(&state.buffers).insert(*buffer, (*info).size);
        }
        result
    }
}

pub(crate) unsafe extern "system" fn allocate_memory(
    device: vk::Device,
    info: *const vk::MemoryAllocateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    let Some(state) = device_of(device) else {
        return vk::Result::ERROR_UNKNOWN;
    };
    // SAFETY: the create info is valid.
    let bytes = unsafe { (*info).allocation_size };
    if settings().portability && bytes > state.max_allocation {
        let most = state.max_allocation;
        violation(&format!("an allocation has {bytes} bytes, at most {most}"));
        return vk::Result::ERROR_OUT_OF_DEVICE_MEMORY;
    }
    // SAFETY: the parameters of the program.
    unsafe { (state.raw.fp_v1_0().allocate_memory)(device, info, allocator, memory) }
}

/// Checks one descriptor of a buffer.
fn check_descriptor(state: &LayerDevice, ty: vk::DescriptorType, info: &vk::DescriptorBufferInfo) {
    let l = &state.limits;
    let (align, most) = match ty {
        vk::DescriptorType::STORAGE_BUFFER => (
            l.min_storage_buffer_offset_alignment,
            l.max_storage_buffer_range,
        ),
        vk::DescriptorType::UNIFORM_BUFFER => (
            l.min_uniform_buffer_offset_alignment,
            l.max_uniform_buffer_range,
        ),
        _ => return,
    };
    let whole = lock(&state.buffers).get(&info.buffer).copied().unwrap_or(0);
    let bytes = match info.range {
        vk::WHOLE_SIZE => whole.saturating_sub(info.offset),
        bytes => bytes,
    };
    let refuse = |what: String| {
        violation(&what);
        state.is_lost.store(true, Ordering::Relaxed);
    };
    if !info.offset.is_multiple_of(align) {
        refuse(format!(
            "{ty:?} at offset {}, alignment is {align}",
            info.offset
        ));
    }
    if bytes > u64::from(most) {
        refuse(format!("{ty:?} of {bytes} bytes, at most {most}"));
    }
}

pub(crate) unsafe extern "system" fn update_descriptor_sets(
    device: vk::Device,
    count: u32,
    writes: *const vk::WriteDescriptorSet<'_>,
    copy_count: u32,
    copies: *const vk::CopyDescriptorSet<'_>,
) {
    let Some(state) = device_of(device) else {
        return;
    };
    // SAFETY: the parameters of the program.
    unsafe {
        for at in 0..if settings().portability {
            count as usize
        } else {
            0
        } {
            let write = &*writes.add(at);
            for i in 0..write.descriptor_count as usize {
                if !write.p_buffer_info.is_null() {
                    check_descriptor(&state, write.descriptor_type, &*write.p_buffer_info.add(i));
                }
            }
        }
        (state.raw.fp_v1_0().update_descriptor_sets)(device, count, writes, copy_count, copies);
    }
}

pub(crate) unsafe extern "system" fn queue_submit(
    queue: vk::Queue,
    count: u32,
    submits: *const vk::SubmitInfo<'_>,
    fence: vk::Fence,
) -> vk::Result {
    let Some(state) = device_of(queue) else {
        return vk::Result::ERROR_UNKNOWN;
    };
    if state.is_lost.load(Ordering::Relaxed) {
        return vk::Result::ERROR_DEVICE_LOST;
    }
    // SAFETY: the parameters of the program.
    unsafe { (state.raw.fp_v1_0().queue_submit)(queue, count, submits, fence) }
}
