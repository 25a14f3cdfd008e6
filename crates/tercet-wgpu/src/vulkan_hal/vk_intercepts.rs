//! Wrappers of Vulkan functions for devices that are opened through wgpu-hal.
//!
//! wgpu cannot pass Tercet's options to these functions. Instead, the thread that makes the wgpu
//! calls sets the options in thread-local state for the duration of the calls.
#![allow(
    unsafe_code,
    reason = "forwards wgpu's calls to the driver with raw pointers"
)]

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{OnceLock, PoisonError, RwLock};

use ash::vk;

use super::{PipelineOptions, SubgroupRequirement};

/// The driver's pipeline creation function, and whether its pipelines may disable robust buffer
/// access.
#[derive(Clone, Copy)]
struct PipelineCreateFn {
    create: vk::PFN_vkCreateComputePipelines,
    unchecked: bool,
}

/// The driver's pipeline creation function of each device that Tercet opened. If the driver reuses
/// a device handle, the new device overwrites the entry.
static MAKERS: RwLock<Option<HashMap<vk::Device, PipelineCreateFn>>> = RwLock::new(None);

/// The driver's functions that record commands. These calls receive no device handle, so the
/// functions cannot be looked up by device.
#[derive(Clone, Copy)]
struct CommandFns {
    dispatch: vk::PFN_vkCmdDispatch,
    barrier: vk::PFN_vkCmdPipelineBarrier,
}

/// The command functions of the driver of the first opened device. For devices of other drivers,
/// command functions are not wrapped.
static COMMANDS: OnceLock<CommandFns> = OnceLock::new();

thread_local! {
    static WANTED: Cell<PipelineOptions> = const { Cell::new(PipelineOptions { subgroup: None, unchecked: false }) };
    static GROUPS: RefCell<Option<EncodingGroups>> = const { RefCell::new(None) };
    /// Counts the pipelines that this thread created with a required subgroup size.
    pub static SIZED_PIPELINES: Cell<usize> = const { Cell::new(0) };
    /// The number of barriers that the calls of this thread passed to the driver.
    pub static DRIVER_BARRIERS: Cell<usize> = const { Cell::new(0) };
}

/// The state of a thread that encodes commands with explicit barriers.
struct EncodingGroups {
    /// Whether each dispatch must wait for all previous ones.
    needs_barrier: Vec<bool>,
    /// The number of dispatches encoded so far.
    encoded: usize,
}

/// Resets thread-local options when the calls return or unwind.
struct ResetOnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for ResetOnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Makes wgpu calls during which pipelines created by this thread on hooked devices get these
/// options.
pub fn with_pipeline_options<T>(wanted: PipelineOptions, calls: impl FnOnce() -> T) -> T {
    let _reset = ResetOnDrop(|| WANTED.set(PipelineOptions::default()));
    WANTED.set(wanted);
    calls()
}

/// Makes wgpu calls during which this thread encodes exactly `waits.len()` dispatches. A barrier
/// precedes each dispatch whose entry in `waits` is true, and no other. A final barrier separates
/// the last dispatch from later commands. Requires a device for which [`super::HalDevice::groups`]
/// is true.
pub fn grouped<T>(waits: Vec<bool>, calls: impl FnOnce() -> T) -> T {
    let _reset = ResetOnDrop(|| GROUPS.with_borrow_mut(|groups| *groups = None));
    let wanted = waits.len();
    GROUPS.with_borrow_mut(|groups| {
        *groups = Some(EncodingGroups {
            needs_barrier: waits,
            encoded: 0,
        })
    });
    let made = calls();
    let seen = GROUPS.with_borrow(|groups| groups.as_ref().map_or(0, |g| g.encoded));
    // wgpu encodes fewer dispatches after an error, and reports that error. If wgpu defers the
    // encoding, it encodes no dispatches during these calls, and its own barriers apply.
    assert!(
        seen <= wanted,
        "invariant: wgpu encodes at most {wanted} dispatches, found {seen}"
    );
    made
}

/// Installs the wrappers of this file in the device's function table. The flag says whether the
/// command functions are also wrapped.
pub(super) fn installed(device: ash::Device, unchecked: bool) -> (ash::Device, bool) {
    let mut first = device.fp_v1_0().clone();
    let mut makers = MAKERS.write().unwrap_or_else(PoisonError::into_inner);
    let maker = PipelineCreateFn {
        create: first.create_compute_pipelines,
        unchecked,
    };
    makers
        .get_or_insert_default()
        .insert(device.handle(), maker);
    first.create_compute_pipelines = create_pipelines;
    let own = CommandFns {
        dispatch: first.cmd_dispatch,
        barrier: first.cmd_pipeline_barrier,
    };
    let known = COMMANDS.get_or_init(|| own);
    let groups = known.dispatch as usize == own.dispatch as usize
        && known.barrier as usize == own.barrier as usize;
    if groups {
        first.cmd_dispatch = dispatch;
        first.cmd_pipeline_barrier = barrier;
    }
    let device = ash::Device::from_parts_1_3(
        device.handle(),
        first,
        device.fp_v1_1().clone(),
        device.fp_v1_2().clone(),
        device.fp_v1_3().clone(),
    );
    (device, groups)
}

/// `vkCreateComputePipelines` with the options of the current thread.
///
/// # Safety
/// As `vkCreateComputePipelines`.
unsafe extern "system" fn create_pipelines(
    device: vk::Device,
    cache: vk::PipelineCache,
    count: u32,
    infos: *const vk::ComputePipelineCreateInfo<'_>,
    allocator: *const vk::AllocationCallbacks<'_>,
    out: *mut vk::Pipeline,
) -> vk::Result {
    let makers = MAKERS.read().unwrap_or_else(PoisonError::into_inner);
    let maker = makers.as_ref().and_then(|map| map.get(&device).copied());
    drop(makers);
    let Some(maker) = maker else {
        return vk::Result::ERROR_INITIALIZATION_FAILED;
    };
    let wanted = WANTED.get();
    // SAFETY: the caller provides `count` elements.
    let given = unsafe { std::slice::from_raw_parts(infos, count as usize) };
    let mut sizes: Vec<_> = given.iter().map(|info| size(wanted, info)).collect();
    let off = vk::PipelineRobustnessBufferBehaviorEXT::DISABLED;
    let robustness = |info: &vk::ComputePipelineCreateInfo<'_>| {
        let mut robustness = vk::PipelineRobustnessCreateInfoEXT::default()
            .storage_buffers(off)
            .uniform_buffers(off);
        robustness.p_next = info.p_next;
        robustness
    };
    let robustnesses: Vec<_> = given.iter().map(robustness).collect();
    let infos: Vec<_> = given
        .iter()
        .zip(&mut sizes)
        .zip(&robustnesses)
        .map(|((info, size), robustness)| {
            use vk::PipelineShaderStageCreateFlags as Flags;
            let mut info = *info;
            if let Some(SubgroupRequirement { full, .. }) = wanted.subgroup {
                info.stage.p_next = std::ptr::from_mut(size).cast();
                info.stage.flags &= !Flags::ALLOW_VARYING_SUBGROUP_SIZE;
                if full {
                    info.stage.flags |= Flags::REQUIRE_FULL_SUBGROUPS;
                }
            }
            if wanted.unchecked && maker.unchecked {
                info.p_next = std::ptr::from_ref(robustness).cast();
            }
            info
        })
        .collect();
    if wanted.subgroup.is_some() {
        SIZED_PIPELINES.with(|seen| seen.set(seen.get() + infos.len()));
    }
    // SAFETY: these are the caller's arguments with three changes that the device supports: the
    // subgroup size, its flags, and robustness if it was enabled at creation. The added structures
    // live until the call returns.
    unsafe { (maker.create)(device, cache, count, infos.as_ptr(), allocator, out) }
}

fn size<'a>(
    wanted: PipelineOptions,
    info: &vk::ComputePipelineCreateInfo<'_>,
) -> vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo<'a> {
    let mut size = vk::PipelineShaderStageRequiredSubgroupSizeCreateInfo::default()
        .required_subgroup_size(wanted.subgroup.map_or(0, |r| r.size));
    size.p_next = info.stage.p_next.cast_mut();
    size
}

/// The barriers around a dispatch.
#[derive(Clone, Copy, Default)]
struct DispatchBarriers {
    /// True if a barrier separates this dispatch from the previous ones.
    barrier_before: bool,
    /// True if a barrier separates this dispatch from all later commands.
    after: bool,
}

/// `vkCmdDispatch` with the barriers that [`grouped`] set for this thread.
///
/// # Safety
/// As `vkCmdDispatch`.
unsafe extern "system" fn dispatch(commands: vk::CommandBuffer, x: u32, y: u32, z: u32) {
    let around = GROUPS.with_borrow_mut(|groups| match groups {
        Some(groups) => groups.next(),
        None => DispatchBarriers::default(),
    });
    let Some(driver) = COMMANDS.get() else {
        return; // Unreachable: set before this function is installed.
    };
    let compute = vk::PipelineStageFlags::COMPUTE_SHADER;
    let writes = vk::AccessFlags::SHADER_WRITE;
    let both = vk::AccessFlags::SHADER_READ | writes | vk::AccessFlags::UNIFORM_READ;
    if around.barrier_before {
        // SAFETY: the caller's command buffer, which is in the recording state.
        unsafe { memory(driver, commands, (compute, writes), (compute, both)) };
    }
    // SAFETY: these are the caller's arguments.
    unsafe { (driver.dispatch)(commands, x, y, z) };
    if around.after {
        let all = vk::PipelineStageFlags::ALL_COMMANDS;
        let any = vk::AccessFlags::MEMORY_READ | vk::AccessFlags::MEMORY_WRITE;
        // SAFETY: as above.
        unsafe { memory(driver, commands, (compute, writes), (all, any)) };
    }
}

/// Records a global memory barrier.
///
/// # Safety
/// The command buffer belongs to `driver` and is being recorded outside of a render pass.
unsafe fn memory(
    driver: &CommandFns,
    commands: vk::CommandBuffer,
    before: (vk::PipelineStageFlags, vk::AccessFlags),
    after: (vk::PipelineStageFlags, vk::AccessFlags),
) {
    let barrier = vk::MemoryBarrier::default()
        .src_access_mask(before.1)
        .dst_access_mask(after.1);
    DRIVER_BARRIERS.with(|seen| seen.set(seen.get() + 1));
    let none = vk::DependencyFlags::empty();
    let (nothing, no_images) = (std::ptr::null(), std::ptr::null());
    // SAFETY: the arrays have one memory barrier and no buffer or image barriers.
    unsafe {
        (driver.barrier)(
            commands, before.0, after.0, none, 1, &barrier, 0, nothing, 0, no_images,
        );
    }
}

impl EncodingGroups {
    /// Counts a dispatch and returns its barriers.
    fn next(&mut self) -> DispatchBarriers {
        let at = self.encoded;
        self.encoded += 1;
        DispatchBarriers {
            barrier_before: at > 0 && self.needs_barrier.get(at).is_some_and(|waits| *waits),
            after: self.encoded == self.needs_barrier.len(),
        }
    }

    /// Whether the next command is recorded between two dispatches of a call of [`grouped`].
    fn is_inside(&self) -> bool {
        self.encoded > 0 && self.encoded < self.needs_barrier.len()
    }
}

/// `vkCmdPipelineBarrier`; does nothing between dispatches whose barriers the thread set
/// explicitly.
///
/// # Safety
/// As `vkCmdPipelineBarrier`.
#[allow(clippy::too_many_arguments, reason = "those of Vulkan")]
unsafe extern "system" fn barrier(
    commands: vk::CommandBuffer,
    before: vk::PipelineStageFlags,
    after: vk::PipelineStageFlags,
    flags: vk::DependencyFlags,
    memory_count: u32,
    memory: *const vk::MemoryBarrier<'_>,
    buffer_count: u32,
    buffers: *const vk::BufferMemoryBarrier<'_>,
    image_count: u32,
    images: *const vk::ImageMemoryBarrier<'_>,
) {
    let is_said =
        GROUPS.with_borrow(|groups| groups.as_ref().is_some_and(EncodingGroups::is_inside));
    let Some(driver) = COMMANDS.get().filter(|_| !is_said) else {
        return;
    };
    DRIVER_BARRIERS.with(|seen| seen.set(seen.get() + 1));
    // SAFETY: these are the caller's arguments.
    unsafe {
        (driver.barrier)(
            commands,
            before,
            after,
            flags,
            memory_count,
            memory,
            buffer_count,
            buffers,
            image_count,
            images,
        );
    }
}
