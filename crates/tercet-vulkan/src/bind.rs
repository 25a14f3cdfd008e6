//! A program flattened to calls, and the descriptor sets that its calls bind.
//!
//! [`flatten`] decides everything that recording needs and touches no device. A grid that depends on
//! sizes is read by the device from the grids buffer. So is a copy whose length does: it becomes a
//! dispatch of a small kernel, because a recorded copy has a fixed length and a longer one would
//! overwrite what lies behind.

use std::sync::Arc;

use ash::vk;
use smallvec::{SmallVec, smallvec};
use tercet_plan::{Access, Dispatch, Instance, Launch, Num, Program, SlotId, Source, Step, Work};

use crate::device::Device;
use crate::error::GpuError;
use crate::memory::Memory;
use crate::pipeline::Pipeline;

/// Bytes of a grid in the grids buffer: three words, and one to keep reads aligned.
pub(crate) const GRID_BYTES: u64 = 16;
/// Bytes of the block of the copying kernel.
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

/// Workgroups of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    /// Known.
    Direct([u32; 3]),
    /// At this offset of the grids buffer.
    Indirect(u64),
}

/// What a step becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// Binds a set with its pipeline and dispatches.
    Run { set: usize, grid: Grid },
    /// Copies a known number of bytes.
    Copy {
        src: SlotId,
        dst: SlotId,
        bytes: u64,
    },
    /// Fills a slot.
    Fill { dst: SlotId, word: u32 },
    /// Nothing, at any size.
    Nothing,
}

impl Call {
    /// True if it is not the work of a shader.
    pub(crate) fn is_transfer(self) -> bool {
        match self {
            Call::Copy { .. } | Call::Fill { .. } => true,
            Call::Run { .. } | Call::Nothing => false,
        }
    }
}

/// What a descriptor set binds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Set {
    /// The pipeline, by the number of its kernel; the copying kernel comes after the program's.
    pub(crate) pipeline: usize,
    /// Where its parameter block starts in the buffer of blocks, and its size.
    block: Option<(u64, u64)>,
    args: SmallVec<[SlotId; 8]>,
}

/// Where a grid, or the length of a copy, comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dynamic {
    /// In [`Program::prepare`] rather than in [`Program::steps`].
    prepare: bool,
    step: usize,
    /// For copies: where their block starts, in words.
    copy_block: Option<usize>,
}

impl Dynamic {
    /// The grid, where these are the grids of the steps of its list.
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

/// A program as calls.
pub(crate) struct Calls {
    /// Of [`Program::steps`].
    pub(crate) steps: Vec<Call>,
    /// Of [`Program::prepare`].
    pub(crate) prepare: Vec<Call>,
    pub(crate) sets: Vec<Set>,
    dynamic: Vec<Dynamic>,
    words: usize,
    align_words: usize,
    /// A copy's length depends on sizes.
    pub(crate) copies: bool,
    copy_pipeline: usize,
}

/// Turns a program into calls. Parameter blocks of copies start at multiples of `align_bytes`.
pub(crate) fn flatten(program: &Program, align_bytes: u32) -> Calls {
    let mut calls = Calls {
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

impl Calls {
    fn call(&mut self, program: &Program, step: &Step, prepare: bool, at: usize) -> Call {
        match &step.work {
            Work::Dispatch(d) => self.dispatch(program, d, prepare, at),
            Work::Copy { src, dst, bytes } => match bytes.known() {
                Some(0) => Call::Nothing,
                Some(bytes) => Call::Copy {
                    src: *src,
                    dst: *dst,
                    bytes: bytes as u64,
                },
                None => self.copy(*src, *dst, prepare, at),
            },
            Work::Fill { dst, .. } if program.slot(*dst).bytes == 0 => Call::Nothing,
            Work::Fill { dst, word } => Call::Fill {
                dst: *dst,
                word: *word,
            },
        }
    }

    fn dispatch(&mut self, program: &Program, d: &Dispatch, prepare: bool, at: usize) -> Call {
        if d.grid.contains(&Num::ZERO) {
            return Call::Nothing;
        }
        let known = d.grid.map(Num::known);
        let grid = match known {
            [Some(x), Some(y), Some(z)] => Grid::Direct([x, y, z].map(|n| n as u32)),
            _ => self.indirect(prepare, at, None),
        };
        let bytes = u64::from(program.kernels[d.kernel.0 as usize].block_bytes);
        self.sets.push(Set {
            pipeline: d.kernel.0 as usize,
            block: (bytes > 0).then_some((u64::from(d.block) * 4, bytes)),
            args: d.args.clone(),
        });
        Call::Run {
            set: self.sets.len() - 1,
            grid,
        }
    }

    fn copy(&mut self, src: SlotId, dst: SlotId, prepare: bool, at: usize) -> Call {
        self.copies = true;
        let block = self.words.next_multiple_of(self.align_words);
        self.words = block + COPY_BLOCK_BYTES as usize / 4;
        self.sets.push(Set {
            pipeline: self.copy_pipeline,
            block: Some((block as u64 * 4, u64::from(COPY_BLOCK_BYTES))),
            args: smallvec![src, dst],
        });
        Call::Run {
            set: self.sets.len() - 1,
            grid: self.indirect(prepare, at, Some(block)),
        }
    }

    fn indirect(&mut self, prepare: bool, step: usize, copy_block: Option<usize>) -> Grid {
        self.dynamic.push(Dynamic {
            prepare,
            step,
            copy_block,
        });
        Grid::Indirect((self.dynamic.len() as u64 - 1) * GRID_BYTES)
    }

    /// The size of the buffer of parameter blocks.
    pub(crate) fn words_bytes(&self) -> u64 {
        self.words as u64 * 4
    }

    /// The size of the buffer of grids.
    pub(crate) fn grids_bytes(&self) -> u64 {
        self.dynamic.len() as u64 * GRID_BYTES
    }

    /// Writes the numbers of a launch into both buffers.
    pub(crate) fn write(&self, launch: &Launch, words: &mut [u8], grids: &mut [u8]) {
        // In one piece: this memory is often that of the device, where narrow stores are slow.
        let numbers: &[u8] = bytemuck::cast_slice(&launch.params);
        words[..numbers.len()].copy_from_slice(numbers);
        for (i, d) in self.dynamic.iter().enumerate() {
            let list = match d.prepare {
                true => &launch.prepare_grids,
                false => &launch.grids,
            };
            if let Some(block) = d.copy_block {
                put(words, block, &[list[d.step][0] / 4]);
            }
            put(grids, i * (GRID_BYTES as usize / 4), &d.grid(list));
        }
    }

    /// A call of [`Program::steps`] where these are the grids of the steps.
    pub(crate) fn fixed(&self, call: Call, grids: &[[u32; 3]]) -> Call {
        let Call::Run {
            set,
            grid: Grid::Indirect(at),
        } = call
        else {
            return call;
        };
        let grid = self.dynamic[(at / GRID_BYTES) as usize].grid(grids);
        match grid.contains(&0) {
            true => Call::Nothing,
            false => Call::Run {
                set,
                grid: Grid::Direct(grid),
            },
        }
    }
}

/// Writes words at an offset counted in words.
fn put(bytes: &mut [u8], at: usize, words: &[u32]) {
    let bytes = bytes[at * 4..].chunks_exact_mut(4);
    for (to, word) in bytes.zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
}

/// The kernel that copies as many words as its block says.
pub(crate) fn copy_kernel() -> Instance {
    Instance {
        name: "copy_words".to_string(),
        source: Source::Wgsl(COPY.into()),
        args: vec![Access::Read, Access::Write],
        block_bytes: COPY_BLOCK_BYTES,
    }
}

/// Descriptor sets of a program, written once.
pub(crate) struct Sets {
    pub(crate) sets: Vec<vk::DescriptorSet>,
    pool: vk::DescriptorPool,
    device: Arc<Device>,
}

impl Drop for Sets {
    fn drop(&mut self) {
        // SAFETY: the owner waited for the last submission that binds them.
        unsafe { self.device.raw.destroy_descriptor_pool(self.pool, None) };
    }
}

impl Sets {
    /// The sets of `calls`; `memory` gives the buffer of a slot, `words` holds the blocks.
    pub(crate) fn new<'a>(
        device: &Arc<Device>,
        program: &Program,
        calls: &Calls,
        pipelines: &[Arc<Pipeline>],
        words: &Memory,
        memory: impl Fn(SlotId) -> &'a Memory,
    ) -> Result<Sets, GpuError> {
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
        // SAFETY: a valid description.
        let pool = unsafe { device.raw.create_descriptor_pool(&info, None) }
            .map_err(device.failed("vkCreateDescriptorPool"))?;
        let mut sets = Sets {
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

impl Set {
    fn write<'a>(
        &self,
        device: &Device,
        program: &Program,
        set: vk::DescriptorSet,
        words: &Memory,
        memory: &impl Fn(SlotId) -> &'a Memory,
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
        // SAFETY: the set is not in use; the ranges lie inside their buffers, as slots do.
        unsafe { device.raw.update_descriptor_sets(&writes, &[]) };
    }
}
