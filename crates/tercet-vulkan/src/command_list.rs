//! A program flattened to commands, and the descriptor sets that they bind.
//!
//! [`flatten`] decides everything that recording needs and makes no device calls. If a grid depends
//! on sizes, the device reads it from the grids buffer (indirect dispatch). If the length of a copy
//! depends on sizes, the copy becomes a dispatch of a small kernel. A recorded copy has a fixed
//! length and would overwrite the bytes behind a shorter range.

use std::sync::Arc;

use ash::vk;
use smallvec::{SmallVec, smallvec};
use tercet_plan::{
    ArgAccess, GpuProgram, KernelDispatch, KernelInstance, KernelSource, LaunchSizes, ProgramStep,
    SlotId, StepOp, SymInt,
};

use crate::device::VulkanDevice;
use crate::error::VulkanError;
use crate::memory::VulkanBuffer;
use crate::pipeline::VulkanPipeline;

/// Bytes of a grid in the grids buffer: three words plus one word of padding for alignment.
pub(crate) const GRID_BYTES: u64 = 16;
/// Bytes of the parameter block of the copy kernel.
const COPY_BLOCK_BYTES: u32 = 16;
const COPY_WORKGROUP: u32 = 256;
const COPY: &str = "
struct Params { words: u32 }
@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wid: vec3<u32>,
    @builtin(num_workgroups) num_wg: vec3<u32>,
    @builtin(local_invocation_index) lid: u32,
) {
    let i = (wid.y * num_wg.x + wid.x) * 256u + lid;
    if (i < p.words) { y[i] = x[i]; }
}
";

/// The workgroup counts of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DispatchGrid {
    /// Workgroup counts that are known when the commands are recorded.
    Direct([u32; 3]),
    /// The device reads the workgroup counts at this offset of the grids buffer.
    Indirect(u64),
}

/// The Vulkan command of a program step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VulkanCommand {
    /// Binds a descriptor set with its pipeline and dispatches.
    Run { set: usize, grid: DispatchGrid },
    /// Copies a fixed number of bytes.
    Copy {
        src: SlotId,
        dst: SlotId,
        bytes: u64,
    },
    /// Fills a slot with a word.
    Fill { dst: SlotId, word: u32 },
    /// The step needs no command for any sizes of a run.
    Noop,
}

impl VulkanCommand {
    /// True for transfer commands, which are not dispatches.
    pub(crate) fn is_transfer(self) -> bool {
        match self {
            VulkanCommand::Copy { .. } | VulkanCommand::Fill { .. } => true,
            VulkanCommand::Run { .. } | VulkanCommand::Noop => false,
        }
    }
}

/// The bindings of a descriptor set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DescriptorBindings {
    /// The index of the pipeline: that of the kernel in the program, or one past the program's
    /// kernels for the copy kernel.
    pub(crate) pipeline: usize,
    /// The offset and size of its parameter block in the block buffer.
    block: Option<(u64, u64)>,
    args: SmallVec<[SlotId; 8]>,
}

/// The program step from which an indirect grid is computed: a dispatch, or a copy whose length
/// depends on sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct IndirectSource {
    /// True if `step` is an index in [`GpuProgram::prepare`] instead of [`GpuProgram::steps`].
    prepare: bool,
    step: usize,
    /// If the step is a copy, the offset of its parameter block in words.
    copy_block: Option<usize>,
}

impl IndirectSource {
    /// Computes the indirect grid; `grids` are those of the list of steps that `step` belongs to.
    fn grid(&self, grids: &[[u32; 3]]) -> [u32; 3] {
        let own = grids[self.step];
        if self.copy_block.is_none() {
            return own;
        }
        let groups = (own[0] / 4).div_ceil(COPY_WORKGROUP);
        let x = groups.min(65535);
        [x, if x == 0 { 0 } else { groups.div_ceil(x) }, 1]
    }
}

/// A program as Vulkan commands.
pub(crate) struct VulkanCommandList {
    /// The commands of [`GpuProgram::steps`].
    pub(crate) steps: Vec<VulkanCommand>,
    /// The commands of [`GpuProgram::prepare`].
    pub(crate) prepare: Vec<VulkanCommand>,
    pub(crate) sets: Vec<DescriptorBindings>,
    dynamic: Vec<IndirectSource>,
    words: usize,
    align_words: usize,
    /// True if the length of at least one copy depends on the sizes of a run.
    pub(crate) copies: bool,
    copy_pipeline: usize,
}

/// Translates a program into commands. Parameter blocks of copies start at multiples of
/// `align_bytes`.
pub(crate) fn flatten(program: &GpuProgram, align_bytes: u32) -> VulkanCommandList {
    let mut calls = VulkanCommandList {
        steps: Vec::new(),
        prepare: Vec::new(),
        sets: Vec::new(),
        dynamic: Vec::new(),
        words: program.params.len(),
        align_words: align_bytes as usize / 4,
        copies: false,
        copy_pipeline: program.kernels.len(),
    };
    for (prepare, steps) in [(false, &program.steps), (true, &program.prepare)] {
        for (at, step) in steps.iter().enumerate() {
            let call = calls.call(program, step, prepare, at);
            let list = match prepare {
                true => &mut calls.prepare,
                false => &mut calls.steps,
            };
            list.push(call);
        }
    }
    calls
}

impl VulkanCommandList {
    fn call(
        &mut self,
        program: &GpuProgram,
        step: &ProgramStep,
        prepare: bool,
        at: usize,
    ) -> VulkanCommand {
        match &step.work {
            StepOp::Dispatch(d) => self.dispatch(program, d, prepare, at),
            StepOp::Copy { src, dst, bytes } => match bytes.known() {
                Some(0) => VulkanCommand::Noop,
                Some(bytes) => VulkanCommand::Copy {
                    src: *src,
                    dst: *dst,
                    bytes: bytes as u64,
                },
                None => self.copy(*src, *dst, prepare, at),
            },
            StepOp::Fill { dst, .. } if program.slot(*dst).bytes == 0 => VulkanCommand::Noop,
            StepOp::Fill { dst, word } => VulkanCommand::Fill {
                dst: *dst,
                word: *word,
            },
        }
    }

    fn dispatch(
        &mut self,
        program: &GpuProgram,
        d: &KernelDispatch,
        prepare: bool,
        at: usize,
    ) -> VulkanCommand {
        if d.grid.contains(&SymInt::ZERO) {
            return VulkanCommand::Noop;
        }
        let known = d.grid.map(SymInt::known);
        let grid = match known {
            [Some(x), Some(y), Some(z)] => DispatchGrid::Direct([x, y, z].map(|n| n as u32)),
            _ => self.indirect(prepare, at, None),
        };
        let bytes = u64::from(program.kernels[d.kernel.0 as usize].block_bytes);
        self.sets.push(DescriptorBindings {
            pipeline: d.kernel.0 as usize,
            block: (bytes > 0).then_some((u64::from(d.block) * 4, bytes)),
            args: d.args.clone(),
        });
        VulkanCommand::Run {
            set: self.sets.len() - 1,
            grid,
        }
    }

    fn copy(&mut self, src: SlotId, dst: SlotId, prepare: bool, at: usize) -> VulkanCommand {
        self.copies = true;
        let block = self.words.next_multiple_of(self.align_words);
        self.words = block + COPY_BLOCK_BYTES as usize / 4;
        self.sets.push(DescriptorBindings {
            pipeline: self.copy_pipeline,
            block: Some((block as u64 * 4, u64::from(COPY_BLOCK_BYTES))),
            args: smallvec![src, dst],
        });
        VulkanCommand::Run {
            set: self.sets.len() - 1,
            grid: self.indirect(prepare, at, Some(block)),
        }
    }

    fn indirect(&mut self, prepare: bool, step: usize, copy_block: Option<usize>) -> DispatchGrid {
        self.dynamic.push(IndirectSource {
            prepare,
            step,
            copy_block,
        });
        DispatchGrid::Indirect((self.dynamic.len() as u64 - 1) * GRID_BYTES)
    }

    /// The size of the parameter block buffer in bytes.
    pub(crate) fn words_bytes(&self) -> u64 {
        self.words as u64 * 4
    }

    /// The size of the grids buffer in bytes.
    pub(crate) fn grids_bytes(&self) -> u64 {
        self.dynamic.len() as u64 * GRID_BYTES
    }

    /// Writes the parameter blocks and grids of a launch into both buffers.
    pub(crate) fn write(&self, launch: &LaunchSizes, words: &mut [u8], grids: &mut [u8]) {
        // Each buffer is written in one piece, because its memory is often device-local and narrow
        // stores to it are slow.
        let numbers: &[u8] = bytemuck::cast_slice(&launch.params);
        words[..numbers.len()].copy_from_slice(numbers);
        for (i, d) in self.dynamic.iter().enumerate() {
            let list = match d.prepare {
                true => &launch.prepare_grids,
                false => &launch.grids,
            };
            if let Some(block) = d.copy_block {
                write_words(words, block, &[list[d.step][0] / 4]);
            }
            write_words(grids, i * (GRID_BYTES as usize / 4), &d.grid(list));
        }
    }

    /// A command of [`GpuProgram::steps`] with its indirect grid replaced by the given one.
    pub(crate) fn fixed(&self, call: VulkanCommand, grids: &[[u32; 3]]) -> VulkanCommand {
        let VulkanCommand::Run {
            set,
            grid: DispatchGrid::Indirect(at),
        } = call
        else {
            return call;
        };
        let grid = self.dynamic[(at / GRID_BYTES) as usize].grid(grids);
        match grid.contains(&0) {
            true => VulkanCommand::Noop,
            false => VulkanCommand::Run {
                set,
                grid: DispatchGrid::Direct(grid),
            },
        }
    }
}

/// Writes words at an offset counted in words.
fn write_words(bytes: &mut [u8], at: usize, words: &[u32]) {
    let bytes = bytes[at * 4..].chunks_exact_mut(4);
    for (to, word) in bytes.zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

/// A kernel that copies the number of words in its parameter block.
pub(crate) fn copy_kernel() -> KernelInstance {
    KernelInstance {
        name: "copy_words".to_string(),
        source: KernelSource::Wgsl(COPY.into()),
        args: vec![ArgAccess::Read, ArgAccess::Write],
        block_bytes: COPY_BLOCK_BYTES,
    }
}

/// The descriptor sets of a program, written once.
pub(crate) struct DescriptorSets {
    pub(crate) sets: Vec<vk::DescriptorSet>,
    pool: vk::DescriptorPool,
    device: Arc<VulkanDevice>,
}

impl Drop for DescriptorSets {
    fn drop(&mut self) {
        // SAFETY: the owner waited for the last submission that binds them.
        unsafe { self.device.raw.destroy_descriptor_pool(self.pool, None) };
    }
}

impl DescriptorSets {
    /// Creates the descriptor sets of `calls`. `memory` maps a slot to its buffer; `words` holds
    /// the parameter blocks.
    pub(crate) fn new<'a>(
        device: &Arc<VulkanDevice>,
        program: &GpuProgram,
        calls: &VulkanCommandList,
        pipelines: &[Arc<VulkanPipeline>],
        words: &VulkanBuffer,
        memory: impl Fn(SlotId) -> &'a VulkanBuffer,
    ) -> Result<DescriptorSets, VulkanError> {
        let buffers: usize = calls.sets.iter().map(|s| s.args.len()).sum();
        let blocks = calls.sets.iter().filter(|s| s.block.is_some()).count();
        let size = |ty, n: usize| {
            vk::DescriptorPoolSize::default()
                .ty(ty)
                .descriptor_count(n.max(1) as u32)
        };
        let sizes = [
            size(vk::DescriptorType::STORAGE_BUFFER, buffers),
            size(vk::DescriptorType::UNIFORM_BUFFER, blocks),
        ];
        let info = vk::DescriptorPoolCreateInfo::default()
            .max_sets(calls.sets.len().max(1) as u32)
            .pool_sizes(&sizes);
        // SAFETY: a valid create info.
        let pool = unsafe { device.raw.create_descriptor_pool(&info, None) }
            .map_err(device.failed("vkCreateDescriptorPool"))?;
        let mut sets = DescriptorSets {
            sets: Vec::new(),
            pool,
            device: Arc::clone(device),
        };
        if calls.sets.is_empty() {
            return Ok(sets);
        }
        let layouts: Vec<_> = calls
            .sets
            .iter()
            .map(|s| pipelines[s.pipeline].set)
            .collect();
        let info = vk::DescriptorSetAllocateInfo::default()
            .descriptor_pool(pool)
            .set_layouts(&layouts);
        // SAFETY: the pool is large enough for these sets.
        sets.sets = unsafe { device.raw.allocate_descriptor_sets(&info) }
            .map_err(device.failed("vkAllocateDescriptorSets"))?;
        for (set, &raw) in calls.sets.iter().zip(&sets.sets) {
            set.write(device, program, raw, words, &memory);
        }
        Ok(sets)
    }
}

impl DescriptorBindings {
    fn write<'a>(
        &self,
        device: &VulkanDevice,
        program: &GpuProgram,
        set: vk::DescriptorSet,
        words: &VulkanBuffer,
        memory: &impl Fn(SlotId) -> &'a VulkanBuffer,
    ) {
        let range = |buffer, offset, range: u64| {
            [vk::DescriptorBufferInfo::default()
                .buffer(buffer)
                .offset(offset)
                .range(range)]
        };
        let block = self.block.map(|(at, bytes)| range(words.buffer, at, bytes));
        let args: SmallVec<[_; 8]> = self
            .args
            .iter()
            .map(|&id| {
                let slot = program.slot(id);
                range(memory(id).buffer, slot.offset_bytes, slot.bytes.max(4))
            })
            .collect();
        let write = |at: usize, ty, info| {
            vk::WriteDescriptorSet::default()
                .dst_set(set)
                .dst_binding(at as u32)
                .descriptor_type(ty)
                .buffer_info(info)
        };
        let block = block
            .iter()
            .map(|b| write(0, vk::DescriptorType::UNIFORM_BUFFER, b));
        let args = args.iter().enumerate();
        let args = args.map(|(i, a)| write(i + 1, vk::DescriptorType::STORAGE_BUFFER, a));
        let writes: SmallVec<[_; 9]> = block.chain(args).collect();
        // SAFETY: the set is not in use. The ranges are inside their buffers because slots are.
        unsafe { device.raw.update_descriptor_sets(&writes, &[]) };
    }
}
