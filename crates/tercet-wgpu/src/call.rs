//! Translates a program into the dispatches of one compute pass under WebGPU's rules. The result is
//! plain data.
//!
//! WebGPU cannot copy a buffer onto itself, so copies and fills are kernels. `bindings.rs` has the
//! rules for bindings.

use std::collections::HashMap;
use std::sync::Arc;

use tercet_ir::CompileError;
use tercet_plan::{
    ArgAccess, BufferSlot, GpuProgram, KernelId, KernelInstance, KernelSource, LaunchSizes,
    ProgramStep, SlotId, StepOp,
};

use crate::bindings::{OverlapPolicy, StorageBinding, bindings};
use crate::rewrite::{BindingRewrite, rewrite};
use crate::spirv::specialized;

/// Threads per workgroup of the copy and fill kernels.
const GROUP: u32 = 256;
/// Bytes of the parameter block of the copy and fill kernels.
const BLOCK_BYTES: u32 = 16;

/// Kernel code in the form that a device receives.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum WgpuKernelCode {
    /// Rewritten WGSL with the entry point `main`; wgpu compiles it.
    Wgsl(Arc<str>),
    /// Unmodified WGSL with the entry point `main`; Tercet compiles it to SPIR-V for the device.
    Lowered(Arc<str>),
    /// Rewritten WGSL of a user kernel; always compiled with wgpu's checks.
    UserWgsl {
        /// The source of the module.
        text: Arc<str>,
        /// The name of the entry point.
        entry: Arc<str>,
    },
    /// SPIR-V with its specialization constants filled in.
    SpirV(Arc<[u32]>),
}

/// A kernel with the binding declarations that a group of dispatches needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PipelineVariant {
    /// The name of the kernel instance.
    pub name: String,
    /// The kernel code with rewritten bindings.
    pub code: WgpuKernelCode,
    /// Bytes of the parameter block at binding 0; 0 if there is none.
    pub block_bytes: u32,
    /// The storage bindings as (binding, writable).
    pub storage: Vec<(u32, bool)>,
}

impl PipelineVariant {
    /// The size of the code in bytes.
    pub(crate) fn code_bytes(&self) -> u64 {
        match &self.code {
            WgpuKernelCode::Wgsl(text)
            | WgpuKernelCode::Lowered(text)
            | WgpuKernelCode::UserWgsl { text, .. } => text.len() as u64,
            WgpuKernelCode::SpirV(words) => 4 * words.len() as u64,
        }
    }
}

/// The workgroup count of a dispatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallGrid {
    /// The grid that the launch gives for the step.
    Launch,
    /// One thread per word that the step copies.
    Copy,
    /// One thread per word of this number of words, or an empty grid if the step is inactive.
    Words(u32),
}

/// A dispatch without the values that depend on the sizes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DispatchCall {
    /// The index of its pipeline variant.
    pub(crate) variant: usize,
    pub(crate) bound: Vec<StorageBinding>,
    /// The byte offset of its parameter block.
    pub(crate) block_offset_bytes: u64,
    pub(crate) grid: CallGrid,
    /// The index of its program step.
    pub(crate) step: usize,
}

impl DispatchCall {
    /// The workgroup counts, computed from the step grids of the launch. A zero skips the dispatch.
    pub(crate) fn grid(&self, grids: &[[u32; 3]], max_grid: u32) -> [u32; 3] {
        match self.grid {
            CallGrid::Launch => grids.get(self.step).copied().unwrap_or_default(),
            CallGrid::Copy => flat(copied_words(grids, self.step), max_grid),
            CallGrid::Words(_) if grids.get(self.step) == Some(&[0; 3]) => [0; 3],
            CallGrid::Words(words) => flat(words, max_grid),
        }
    }
}

/// The number of words that a copy step copies.
fn copied_words(grids: &[[u32; 3]], step: usize) -> u32 {
    grids.get(step).map_or(0, |g| g[0] / 4)
}

/// A grid with one thread per word.
pub fn flat(words: u32, max_grid: u32) -> [u32; 3] {
    let groups = words.div_ceil(GROUP);
    let x = groups.min(max_grid);
    [x, groups.div_ceil(x.max(1)), 1]
}

/// The device limits that the dispatch list depends on.
#[derive(Clone, Copy, Debug)]
pub struct CallLimits {
    /// Maximum size of a binding.
    pub max_binding_bytes: u64,
    /// Alignment of the offsets of storage bindings.
    pub storage_align_bytes: u64,
    /// Alignment of the offsets of uniform bindings.
    pub uniform_align_bytes: u64,
    /// Maximum number of workgroups of a dimension.
    pub max_grid: u32,
    /// Whether the device accepts SPIR-V, which is not subject to WebGPU's binding rules.
    pub takes_spirv: bool,
}

/// The parameter block of a copy or fill kernel; these blocks follow the program's own blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HelperBlock {
    at_word: usize,
    grid: CallGrid,
    step: usize,
    /// True if `step` is an index in [`GpuProgram::prepare`] instead of [`GpuProgram::steps`].
    prepare: bool,
    word: u32,
}

/// The dispatches of a program.
#[derive(Clone, Debug)]
pub struct WgpuCommandList {
    pub(crate) variants: Vec<PipelineVariant>,
    pub(crate) prepare: Vec<DispatchCall>,
    pub(crate) steps: Vec<DispatchCall>,
    /// The size of all parameter blocks in bytes.
    pub(crate) numbers_bytes: u64,
    pub(crate) max_grid: u32,
    helper_blocks: Vec<HelperBlock>,
}

impl WgpuCommandList {
    /// Translates a program into dispatches.
    ///
    /// # Errors
    /// [`CompileError::TooLarge`] if a slot exceeds the binding size limit.
    /// [`CompileError::Device`] if a kernel cannot be rewritten to satisfy WebGPU.
    pub fn new(program: &GpuProgram, rules: CallLimits) -> Result<WgpuCommandList, CompileError> {
        let last_block = program.kernels.iter().map(|k| u64::from(k.block_bytes));
        let words = 4 * program.params.len() as u64 + last_block.max().unwrap_or(0);
        let mut writer = CommandListBuilder {
            program,
            rules,
            commands: WgpuCommandList {
                variants: Vec::new(),
                prepare: Vec::new(),
                steps: Vec::new(),
                numbers_bytes: words.next_multiple_of(rules.uniform_align_bytes),
                max_grid: rules.max_grid,
                helper_blocks: Vec::new(),
            },
            variant_ids: HashMap::new(),
            helper_kernels: [
                own_kernel("copy", include_str!("../shaders/copy.wgsl"), true),
                own_kernel("fill", include_str!("../shaders/fill.wgsl"), false),
            ],
        };
        for (prepare, steps) in [(true, &program.prepare), (false, &program.steps)] {
            for (at, step) in steps.iter().enumerate() {
                let call = writer.call(step, at, prepare)?;
                match prepare {
                    true => writer.commands.prepare.extend(call),
                    false => writer.commands.steps.extend(call),
                }
            }
        }
        Ok(writer.commands)
    }

    /// The index of a pipeline variant; equal variants are stored once.
    fn add(&mut self, variant: PipelineVariant) -> usize {
        let same = self.variants.iter().position(|v| *v == variant);
        same.unwrap_or_else(|| {
            self.variants.push(variant);
            self.variants.len() - 1
        })
    }

    /// Writes the parameter blocks of a launch: the program's blocks, then those of copies and
    /// fills.
    pub(crate) fn numbers(&self, launch: &LaunchSizes, out: &mut Vec<u8>) {
        out.clear();
        out.extend(launch.params.iter().flat_map(|w| w.to_le_bytes()));
        for block in &self.helper_blocks {
            let grids = match block.prepare {
                true => &launch.prepare_grids,
                false => &launch.grids,
            };
            let words = match block.grid {
                CallGrid::Words(words) => words,
                CallGrid::Copy | CallGrid::Launch => copied_words(grids, block.step),
            };
            out.resize(4 * block.at_word, 0);
            out.extend_from_slice(&words.to_le_bytes());
            out.extend_from_slice(&block.word.to_le_bytes());
        }
    }
}

fn own_kernel(name: &str, text: &str, reads: bool) -> KernelInstance {
    let args = match reads {
        true => vec![ArgAccess::Read, ArgAccess::Write],
        false => vec![ArgAccess::Write],
    };
    KernelInstance {
        name: name.to_string(),
        source: KernelSource::Wgsl(text.into()),
        args,
        block_bytes: BLOCK_BYTES,
    }
}

/// The id of the copy kernel; the program's own ids count from zero.
const COPY: KernelId = KernelId(u32::MAX);
/// The id of the fill kernel.
const FILL: KernelId = KernelId(u32::MAX - 1);

struct CommandListBuilder<'a> {
    program: &'a GpuProgram,
    rules: CallLimits,
    commands: WgpuCommandList,
    /// Variant indices by kernel and binding rewrites.
    variant_ids: HashMap<(KernelId, Vec<BindingRewrite>), usize>,
    helper_kernels: [KernelInstance; 2],
}

impl CommandListBuilder<'_> {
    fn call(
        &mut self,
        step: &ProgramStep,
        at: usize,
        prepare: bool,
    ) -> Result<Option<DispatchCall>, CompileError> {
        let program = self.program;
        match &step.work {
            StepOp::Dispatch(d) => {
                let block = 4 * u64::from(d.block);
                self.dispatch(d.kernel, &d.args, block, CallGrid::Launch, step, at)
                    .map(Some)
            }
            StepOp::Copy { src, dst, .. } => {
                if src == dst || program.slot(*dst).bytes == 0 {
                    return Ok(None);
                }
                let block = self.own_block(CallGrid::Copy, at, prepare, 0);
                self.dispatch(COPY, &[*src, *dst], block, CallGrid::Copy, step, at)
                    .map(Some)
            }
            StepOp::Fill { dst, word } => {
                let words = (program.slot(*dst).bytes / 4) as u32;
                if words == 0 {
                    return Ok(None);
                }
                let grid = CallGrid::Words(words);
                let block = self.own_block(grid, at, prepare, *word);
                self.dispatch(FILL, &[*dst], block, grid, step, at)
                    .map(Some)
            }
        }
    }

    /// Reserves a parameter block and returns its byte offset.
    fn own_block(&mut self, grid: CallGrid, step: usize, prepare: bool, word: u32) -> u64 {
        let offset = self.commands.numbers_bytes;
        let align = self.rules.uniform_align_bytes;
        self.commands.numbers_bytes = (offset + u64::from(BLOCK_BYTES)).next_multiple_of(align);
        self.commands.helper_blocks.push(HelperBlock {
            at_word: (offset / 4) as usize,
            grid,
            step,
            prepare,
            word,
        });
        offset
    }

    fn dispatch(
        &mut self,
        id: KernelId,
        args: &[SlotId],
        block_offset_bytes: u64,
        grid: CallGrid,
        step: &ProgramStep,
        at: usize,
    ) -> Result<DispatchCall, CompileError> {
        let slots: Vec<BufferSlot> = args.iter().map(|&s| *self.program.slot(s)).collect();
        let limit = self.rules.max_binding_bytes;
        if let Some(slot) = slots.iter().find(|s| s.bytes > limit) {
            return Err(CompileError::TooLarge {
                node: step.node,
                op: step.op,
                bytes: slot.bytes,
                limit,
            });
        }
        let kernel = self.kernel(id);
        let refused = |why: String| CompileError::Device {
            reason: format!("kernel {} does not fit WebGPU's rules: {why}", kernel.name),
        };
        let overlap = match (&kernel.source, self.rules.takes_spirv) {
            (KernelSource::Wgsl(_), false) | (KernelSource::UserWgsl { .. }, _) => {
                OverlapPolicy::Merged
            }
            (KernelSource::Wgsl(_), true) | (KernelSource::SpirV { .. }, _) => {
                OverlapPolicy::Unchanged
            }
        };
        let align = self.rules.storage_align_bytes;
        let (binds, bound) = bindings(&slots, &kernel.args, align, overlap).map_err(refused)?;
        let known = self.variant_ids.get(&(id, binds.clone())).copied();
        let variant = match known {
            Some(known) => known,
            None => {
                let lowers = self.rules.takes_spirv;
                let variant = variant(kernel, &binds, &bound, lowers).map_err(refused)?;
                let at = self.commands.add(variant);
                self.variant_ids.insert((id, binds), at);
                at
            }
        };
        Ok(DispatchCall {
            variant,
            bound,
            block_offset_bytes,
            grid,
            step: at,
        })
    }

    fn kernel(&self, id: KernelId) -> &KernelInstance {
        match id {
            COPY => &self.helper_kernels[0],
            FILL => &self.helper_kernels[1],
            KernelId(at) => &self.program.kernels[at as usize],
        }
    }
}

fn variant(
    kernel: &KernelInstance,
    binds: &[BindingRewrite],
    bound: &[StorageBinding],
    lowers: bool,
) -> Result<PipelineVariant, String> {
    let code = match &kernel.source {
        KernelSource::Wgsl(text) if lowers => WgpuKernelCode::Lowered(Arc::clone(text)),
        KernelSource::Wgsl(text) => WgpuKernelCode::Wgsl(rewrite(text, binds)?.into()),
        KernelSource::UserWgsl { text, entry } => WgpuKernelCode::UserWgsl {
            text: rewrite(text, binds)?.into(),
            entry: Arc::clone(entry),
        },
        KernelSource::SpirV { module, constants } => {
            let words = module.words().map_err(|e| e.to_string())?;
            WgpuKernelCode::SpirV(specialized(words, constants)?.into())
        }
    };
    Ok(PipelineVariant {
        name: kernel.name.clone(),
        code,
        block_bytes: kernel.block_bytes,
        storage: bound.iter().map(|b| (b.binding, b.writable)).collect(),
    })
}
