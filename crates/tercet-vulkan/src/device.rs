//! The open device: queue, submission timeline, memory allocator and loss state.
//!
//! There is one queue, guarded by a mutex. Every submission signals the next value of one timeline
//! semaphore. A value is reached when that submission and all earlier ones are done.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use ash::vk;
use gpu_allocator::AllocationSizes;
use gpu_allocator::vulkan::{Allocator, AllocatorCreateDesc};

use crate::error::{VulkanError, VulkanOpenError};
use crate::features::EnabledFeatures;
use crate::instance::{VulkanDeviceInfo, VulkanDeviceKind, VulkanInstance, failed};

/// A value of the submission timeline. 0 is always reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimelineValue(pub(crate) u64);

/// Time to poll a submission before the thread blocks. Waking a blocked thread takes 0.1 ms, a
/// tenth of the time per token of a small model.
const ASKED_FOR: Duration = Duration::from_millis(10);

struct SubmitQueue {
    raw: vk::Queue,
    last: TimelineValue,
}

/// An open Vulkan device.
pub(crate) struct VulkanDevice {
    pub(crate) raw: ash::Device,
    queue: Mutex<SubmitQueue>,
    timeline: vk::Semaphore,
    /// The last submission that is known to be done.
    done: AtomicU64,
    lost: OnceLock<String>,
    allocator: ManuallyDrop<Mutex<Allocator>>,
    /// The total size of existing buffers in bytes.
    pub(crate) used_bytes: AtomicU64,
    /// The number of submissions.
    pub(crate) submissions: AtomicU64,
    pub(crate) features: EnabledFeatures,
    pub(crate) info: VulkanDeviceInfo,
    /// True if the validation layer is enabled.
    pub(crate) validated: bool,
    physical: vk::PhysicalDevice,
    /// Must outlive the device.
    pub(crate) instance: VulkanInstance,
}

impl Drop for VulkanDevice {
    fn drop(&mut self) {
        // SAFETY: pipelines, buffers and drivers hold an `Arc` of the device, so they are already
        // dropped and waited for their last submissions. The allocator is dropped once, before the
        // device.
        unsafe {
            // Ignore errors: a lost device has no pending work.
            let _ = self.raw.device_wait_idle();
            ManuallyDrop::drop(&mut self.allocator);
            self.raw.destroy_semaphore(self.timeline, None);
            self.raw.destroy_device(None);
        }
    }
}

impl VulkanDevice {
    /// Opens the device with this index or part of a name, or the best device.
    pub(crate) fn open(
        wanted: Option<&str>,
        validation: bool,
    ) -> Result<VulkanDevice, VulkanOpenError> {
        let instance = VulkanInstance::new(validation)?;
        let (physical, info) = instance.choose(wanted)?;
        let features = EnabledFeatures::query(&instance, physical, &info)?;
        let raw = features.create_device(&instance, physical)?;
        // SAFETY: the family and index are those that the device was created with.
        let queue = unsafe { raw.get_device_queue(features.queue_family, 0) };
        let made = AllocatorCreateDesc {
            instance: instance.raw.clone(),
            device: raw.clone(),
            physical_device: physical,
            debug_settings: Default::default(),
            buffer_device_address: false,
            allocation_sizes: AllocationSizes::new(32 << 20, 8 << 20)
                .with_max_device_memblock_size(256 << 20)
                .with_max_host_memblock_size(64 << 20),
        };
        let allocator = Allocator::new(&made);
        let mut kind = vk::SemaphoreTypeCreateInfo::default()
            .semaphore_type(vk::SemaphoreType::TIMELINE)
            .initial_value(0);
        let semaphore = vk::SemaphoreCreateInfo::default().push_next(&mut kind);
        // SAFETY: timeline semaphores are enabled.
        let timeline = unsafe { raw.create_semaphore(&semaphore, None) };
        let (allocator, timeline) = match (allocator, timeline) {
            (Ok(allocator), Ok(timeline)) => (allocator, timeline),
            (allocator, timeline) => {
                drop(allocator);
                // SAFETY: no other object of the device exists.
                unsafe {
                    if let Ok(timeline) = timeline {
                        raw.destroy_semaphore(timeline, None);
                    }
                    raw.destroy_device(None);
                }
                let result = timeline
                    .err()
                    .unwrap_or(vk::Result::ERROR_INITIALIZATION_FAILED);
                return Err(failed("vkCreateSemaphore")(result));
            }
        };
        Ok(VulkanDevice {
            raw,
            queue: Mutex::new(SubmitQueue {
                raw: queue,
                last: TimelineValue(0),
            }),
            timeline,
            done: AtomicU64::new(0),
            lost: OnceLock::new(),
            allocator: ManuallyDrop::new(Mutex::new(allocator)),
            used_bytes: AtomicU64::new(0),
            submissions: AtomicU64::new(0),
            features,
            info,
            validated: validation,
            physical,
            instance,
        })
    }

    /// Free bytes of the largest device-local heap; `None` if the device has no such heap.
    pub(crate) fn free_memory_bytes(&self) -> Option<u64> {
        let mut budget = vk::PhysicalDeviceMemoryBudgetPropertiesEXT::default();
        let mut all = vk::PhysicalDeviceMemoryProperties2::default();
        if self.features.has_memory_budget {
            all = all.push_next(&mut budget);
        }
        // SAFETY: the device belongs to this instance, and it has the extension of the structure.
        unsafe {
            let instance = &self.instance.raw;
            instance.get_physical_device_memory_properties2(self.physical, &mut all);
        }
        let memory = all.memory_properties;
        let heaps = memory.memory_heaps_as_slice().iter().enumerate();
        let local = heaps.filter(|(_, h)| h.flags.contains(vk::MemoryHeapFlags::DEVICE_LOCAL));
        let (at, heap) = local.max_by_key(|(_, h)| h.size)?;
        let own = self.used_bytes.load(Ordering::Relaxed);
        Some(match self.features.has_memory_budget {
            true => budget.heap_budget[at].saturating_sub(budget.heap_usage[at]),
            false => heap.size.saturating_sub(own),
        })
    }

    /// Locks the memory allocator.
    pub(crate) fn allocator(&self) -> MutexGuard<'_, Allocator> {
        self.allocator
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Submits command buffers in order and returns the timeline value that they signal.
    ///
    /// # Safety
    /// The command buffers are recorded and not pending. Everything that they use lives until the
    /// returned value is reached.
    pub(crate) unsafe fn submit(
        &self,
        commands: &[vk::CommandBuffer],
    ) -> Result<TimelineValue, VulkanError> {
        self.check_lost()?;
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let next = TimelineValue(queue.last.0 + 1);
        let (values, semaphores) = ([next.0], [self.timeline]);
        let mut timeline =
            vk::TimelineSemaphoreSubmitInfo::default().signal_semaphore_values(&values);
        let submit = vk::SubmitInfo::default()
            .command_buffers(commands)
            .signal_semaphores(&semaphores)
            .push_next(&mut timeline);
        // SAFETY: the queue is locked; the caller guarantees the rest.
        unsafe {
            self.raw
                .queue_submit(queue.raw, &[submit], vk::Fence::null())
        }
        .map_err(self.failed("vkQueueSubmit"))?;
        queue.last = next;
        self.submissions.fetch_add(1, Ordering::Relaxed);
        Ok(next)
    }

    /// Blocks until a submission is done.
    pub(crate) fn wait(&self, ticket: TimelineValue) -> Result<(), VulkanError> {
        if ticket.0 <= self.done.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.spin_until_done(ticket)? {
            return Ok(());
        }
        let (values, semaphores) = ([ticket.0], [self.timeline]);
        let info = vk::SemaphoreWaitInfo::default()
            .semaphores(&semaphores)
            .values(&values);
        // SAFETY: the semaphore is valid, and a submission signals the value.
        unsafe { self.raw.wait_semaphores(&info, u64::MAX) }
            .map_err(self.failed("vkWaitSemaphores"))?;
        self.done.fetch_max(ticket.0, Ordering::AcqRel);
        Ok(())
    }

    /// Polls for a limited time; true if the submission is done.
    fn spin_until_done(&self, ticket: TimelineValue) -> Result<bool, VulkanError> {
        // On CPU devices, polling would take processor time from the work itself.
        if self.info.kind == VulkanDeviceKind::Cpu {
            return Ok(false);
        }
        let began = Instant::now();
        loop {
            // SAFETY: the semaphore is valid.
            let value = unsafe { self.raw.get_semaphore_counter_value(self.timeline) }
                .map_err(self.failed("vkGetSemaphoreCounterValue"))?;
            if value >= ticket.0 {
                self.done.fetch_max(ticket.0, Ordering::AcqRel);
                return Ok(true);
            }
            if began.elapsed() > ASKED_FOR {
                return Ok(false);
            }
            std::thread::yield_now();
        }
    }

    /// Blocks until all submissions are done.
    pub(crate) fn wait_all(&self) -> Result<(), VulkanError> {
        let last = self
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .last;
        self.wait(last)
    }

    /// Returns an error if the device is lost.
    pub(crate) fn check_lost(&self) -> Result<(), VulkanError> {
        match self.lost.get() {
            Some(reason) => Err(VulkanError::Lost {
                reason: reason.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Marks the device as lost; all later calls fail.
    pub(crate) fn mark_lost(&self, reason: &str) {
        self.lost.get_or_init(|| reason.to_string());
    }

    /// Converts a failed call to an error, and records a device loss.
    pub(crate) fn failed(&self, call: &'static str) -> impl Fn(vk::Result) -> VulkanError + '_ {
        move |result| match result {
            vk::Result::ERROR_DEVICE_LOST => {
                let reason = self
                    .lost
                    .get_or_init(|| format!("{call} on {}", self.info.name));
                VulkanError::Lost {
                    reason: reason.clone(),
                }
            }
            vk::Result::ERROR_OUT_OF_DEVICE_MEMORY | vk::Result::ERROR_OUT_OF_HOST_MEMORY => {
                VulkanError::OutOfMemory {
                    what: call,
                    bytes: 0,
                }
            }
            result => VulkanError::Failed {
                reason: format!("{call}: {result}"),
            },
        }
    }
}
