//! The device buffers of an executable.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercet_ir::CompileError;
use tercet_plan::{GpuProgram, ProgramBuffer};

use crate::bindings::{BindingTarget, MAX_ARGS};
use crate::device::{DeviceFault, WgpuDevice};

pub(crate) const STORAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

/// A buffer that could not be created.
#[derive(Debug)]
pub(crate) struct BufferError {
    pub(crate) fault: DeviceFault,
    pub(crate) what: &'static str,
    pub(crate) bytes: u64,
}

/// The device buffers of an executable, keyed by the program's buffer names.
#[derive(Clone, Debug)]
pub(crate) struct WgpuBuffers {
    /// Constants; shared by all clones.
    consts: Arc<BTreeMap<ProgramBuffer, wgpu::Buffer>>,
    /// The buffers of parameters, and buffers whose contents are prepared from parameters. Clones
    /// share these buffers until one clone sets a parameter.
    params: Arc<BTreeMap<ProgramBuffer, wgpu::Buffer>>,
    own: BTreeMap<ProgramBuffer, wgpu::Buffer>,
    empty: wgpu::Buffer,
    /// The parameter blocks of a run.
    pub(crate) numbers: wgpu::Buffer,
}

/// The executables that share a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BufferSharing {
    Always,
    UntilSet,
    Never,
}

fn sharing(buffer: ProgramBuffer) -> BufferSharing {
    match buffer {
        ProgramBuffer::Const(_) => BufferSharing::Always,
        ProgramBuffer::Param(_) | ProgramBuffer::Prepared => BufferSharing::UntilSet,
        ProgramBuffer::Input
        | ProgramBuffer::Output
        | ProgramBuffer::Faults
        | ProgramBuffer::Arena
        | ProgramBuffer::Counters
        | ProgramBuffer::State(_) => BufferSharing::Never,
    }
}

/// The description of a buffer in error messages.
pub(crate) fn describe(buffer: ProgramBuffer) -> &'static str {
    match buffer {
        ProgramBuffer::Input => "the buffer of inputs",
        ProgramBuffer::Output => "the buffer of outputs",
        ProgramBuffer::Faults => "the buffer of data checks",
        ProgramBuffer::Arena => "the buffer of intermediate values",
        ProgramBuffer::Counters => "the buffer of counters",
        ProgramBuffer::Prepared => "the buffer of prepared parameters",
        ProgramBuffer::Const(_) => "a constant",
        ProgramBuffer::Param(_) => "a parameter",
        ProgramBuffer::State(_) => "a state",
    }
}

/// Checks all buffer sizes against the device limit.
///
/// # Errors
/// [`CompileError::Device`] with the buffer and the limit.
pub(crate) fn check_sizes(program: &GpuProgram, limit: u64) -> Result<(), CompileError> {
    let sizes = program.buffers();
    match sizes.into_iter().find(|(_, bytes)| *bytes > limit) {
        None => Ok(()),
        Some((buffer, bytes)) => Err(CompileError::Device {
            reason: format!(
                "{} takes {bytes} bytes, above this device's {limit} for one buffer; lower the \
                 symbols' bounds or the batch",
                describe(buffer)
            ),
        }),
    }
}

impl WgpuBuffers {
    /// Allocates all buffers, zeroed.
    ///
    /// # Errors
    /// [`BufferError`] with the first buffer that exceeds the memory.
    pub(crate) fn new(
        gpu: &WgpuDevice,
        program: &GpuProgram,
        numbers: u64,
    ) -> Result<WgpuBuffers, BufferError> {
        let some = |which: BufferSharing| create_buffers(gpu, program, which);
        Ok(WgpuBuffers {
            consts: Arc::new(some(BufferSharing::Always)?),
            params: Arc::new(some(BufferSharing::UntilSet)?),
            own: some(BufferSharing::Never)?,
            empty: empty(gpu)?,
            numbers: make_numbers(gpu, numbers)?,
        })
    }

    /// Buffers for a clone of the executable: constants and parameters are shared, states are
    /// copied.
    ///
    /// # Errors
    /// As [`WgpuBuffers::new`].
    pub(crate) fn try_clone(
        &self,
        gpu: &WgpuDevice,
        program: &GpuProgram,
    ) -> Result<WgpuBuffers, BufferError> {
        let own = create_buffers(gpu, program, BufferSharing::Never)?;
        let states = own
            .iter()
            .filter(|(b, _)| matches!(b, ProgramBuffer::State(_)));
        copy_all(gpu, states.map(|(b, new)| (&self.own[b], new)))?;
        Ok(WgpuBuffers {
            consts: Arc::clone(&self.consts),
            params: Arc::clone(&self.params),
            own,
            empty: empty(gpu)?,
            numbers: make_numbers(gpu, self.numbers.size())?,
        })
    }

    /// Copies shared parameters so that this executable has its own; false if they were not shared.
    ///
    /// # Errors
    /// As [`WgpuBuffers::new`].
    pub(crate) fn unshare_params(
        &mut self,
        gpu: &WgpuDevice,
        program: &GpuProgram,
    ) -> Result<bool, BufferError> {
        if Arc::get_mut(&mut self.params).is_some() {
            return Ok(false);
        }
        let new = create_buffers(gpu, program, BufferSharing::UntilSet)?;
        copy_all(gpu, new.iter().map(|(b, new)| (&self.params[b], new)))?;
        self.params = Arc::new(new);
        Ok(true)
    }

    /// A buffer of the program; `None` if no slot uses it.
    pub(crate) fn get(&self, buffer: ProgramBuffer) -> Option<&wgpu::Buffer> {
        match sharing(buffer) {
            BufferSharing::Always => self.consts.get(&buffer),
            BufferSharing::UntilSet => self.params.get(&buffer),
            BufferSharing::Never => self.own.get(&buffer),
        }
    }

    /// The buffer that a binding refers to.
    pub(crate) fn buffer(&self, place: BindingTarget) -> Option<&wgpu::Buffer> {
        match place {
            BindingTarget::InBuffer(buffer) => self.get(buffer),
            BindingTarget::Empty => Some(&self.empty),
        }
    }
}

fn create_buffers(
    gpu: &WgpuDevice,
    program: &GpuProgram,
    which: BufferSharing,
) -> Result<BTreeMap<ProgramBuffer, wgpu::Buffer>, BufferError> {
    let buffers = program.buffers().into_iter();
    let wanted = buffers.filter(|(b, _)| sharing(*b) == which);
    wanted
        .map(|(b, bytes)| Ok((b, create_buffer(gpu, describe(b), bytes, STORAGE)?)))
        .collect()
}

fn empty(gpu: &WgpuDevice) -> Result<wgpu::Buffer, BufferError> {
    let align = u64::from(gpu.limits.min_storage_buffer_offset_alignment);
    create_buffer(
        gpu,
        "the buffer of empty tensors",
        MAX_ARGS as u64 * align,
        STORAGE,
    )
}

fn make_numbers(gpu: &WgpuDevice, bytes: u64) -> Result<wgpu::Buffer, BufferError> {
    let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    create_buffer(gpu, "the buffer of kernel parameters", bytes, usage)
}

/// Creates a zeroed buffer of at least one word.
///
/// # Errors
/// [`BufferError`] if the device is out of memory.
pub(crate) fn create_buffer(
    gpu: &WgpuDevice,
    what: &'static str,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> Result<wgpu::Buffer, BufferError> {
    let descriptor = wgpu::BufferDescriptor {
        label: Some(what),
        size: bytes.max(4).next_multiple_of(4),
        usage,
        mapped_at_creation: false,
    };
    gpu.scoped(|| gpu.device.create_buffer(&descriptor))
        .map_err(|trouble| BufferError {
            fault: trouble,
            what,
            bytes,
        })
}

/// Copies buffers into others of the same size, in one submission.
fn copy_all<'a>(
    gpu: &WgpuDevice,
    pairs: impl Iterator<Item = (&'a wgpu::Buffer, &'a wgpu::Buffer)>,
) -> Result<(), BufferError> {
    gpu.scoped(|| {
        let mut encoder = (gpu.device).create_command_encoder(&Default::default());
        for (from, to) in pairs {
            encoder.copy_buffer_to_buffer(from, 0, to, 0, from.size().min(to.size()));
        }
        gpu.queue.submit([encoder.finish()]);
    })
    .map_err(|trouble| BufferError {
        fault: trouble,
        what: "a copy of states or parameters",
        bytes: 0,
    })
}
