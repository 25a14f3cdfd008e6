//! The buffers of an executable.

use std::collections::BTreeMap;
use std::sync::Arc;

use tercet_ir::CompileError;
use tercet_plan::{Buffer, Program};

use crate::bindings::{MAX_ARGS, Place};
use crate::device::{Gpu, Trouble};

pub(crate) const STORAGE: wgpu::BufferUsages = wgpu::BufferUsages::STORAGE
    .union(wgpu::BufferUsages::COPY_SRC)
    .union(wgpu::BufferUsages::COPY_DST);

/// What could not be made.
#[derive(Debug)]
pub(crate) struct Unmade {
    pub(crate) trouble: Trouble,
    pub(crate) what: &'static str,
    pub(crate) bytes: u64,
}

/// The buffers of an executable by the program's names.
#[derive(Clone, Debug)]
pub(crate) struct Buffers {
    /// Constants, shared by all clones.
    consts: Arc<BTreeMap<Buffer, wgpu::Buffer>>,
    /// Parameters and what is prepared from them, shared by clones until one sets its own.
    params: Arc<BTreeMap<Buffer, wgpu::Buffer>>,
    own: BTreeMap<Buffer, wgpu::Buffer>,
    empty: wgpu::Buffer,
    /// The numbers of a run.
    pub(crate) numbers: wgpu::Buffer,
}

/// Who shares a buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Always,
    UntilSet,
    Never,
}

fn sharing(buffer: Buffer) -> Sharing {
    match buffer {
        Buffer::Const(_) => Sharing::Always,
        Buffer::Param(_) | Buffer::Prepared => Sharing::UntilSet,
        Buffer::Input
        | Buffer::Output
        | Buffer::Faults
        | Buffer::Arena
        | Buffer::Counters
        | Buffer::State(_) => Sharing::Never,
    }
}

/// What a buffer is, for errors.
pub(crate) fn describe(buffer: Buffer) -> &'static str {
    match buffer {
        Buffer::Input => "the buffer of inputs",
        Buffer::Output => "the buffer of outputs",
        Buffer::Faults => "the buffer of data checks",
        Buffer::Arena => "the buffer of intermediate values",
        Buffer::Counters => "the buffer of counters",
        Buffer::Prepared => "the buffer of prepared parameters",
        Buffer::Const(_) => "a constant",
        Buffer::Param(_) => "a parameter",
        Buffer::State(_) => "a state",
    }
}

/// Refuses buffers above the device's limit.
///
/// # Errors
/// [`CompileError::Device`] that names the buffer and the limit.
pub(crate) fn check_sizes(program: &Program, limit: u64) -> Result<(), CompileError> {
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

impl Buffers {
    /// All buffers, zeroed.
    ///
    /// # Errors
    /// [`Unmade`] that names the first for which there is no memory.
    pub(crate) fn new(gpu: &Gpu, program: &Program, numbers: u64) -> Result<Buffers, Unmade> {
        let some = |which: Sharing| make_all(gpu, program, which);
        Ok(Buffers {
            consts: Arc::new(some(Sharing::Always)?),
            params: Arc::new(some(Sharing::UntilSet)?),
            own: some(Sharing::Never)?,
            empty: empty(gpu)?,
            numbers: make_numbers(gpu, numbers)?,
        })
    }

    /// Buffers for a clone: constants and parameters are shared, states copied.
    ///
    /// # Errors
    /// As [`Buffers::new`].
    pub(crate) fn try_clone(&self, gpu: &Gpu, program: &Program) -> Result<Buffers, Unmade> {
        let own = make_all(gpu, program, Sharing::Never)?;
        let states = own.iter().filter(|(b, _)| matches!(b, Buffer::State(_)));
        copy_all(gpu, states.map(|(b, new)| (&self.own[b], new)))?;
        Ok(Buffers {
            consts: Arc::clone(&self.consts),
            params: Arc::clone(&self.params),
            own,
            empty: empty(gpu)?,
            numbers: make_numbers(gpu, self.numbers.size())?,
        })
    }

    /// Makes the parameters this executable's own; false if they were.
    ///
    /// # Errors
    /// As [`Buffers::new`].
    pub(crate) fn unshare_params(&mut self, gpu: &Gpu, program: &Program) -> Result<bool, Unmade> {
        if Arc::get_mut(&mut self.params).is_some() {
            return Ok(false);
        }
        let new = make_all(gpu, program, Sharing::UntilSet)?;
        copy_all(gpu, new.iter().map(|(b, new)| (&self.params[b], new)))?;
        self.params = Arc::new(new);
        Ok(true)
    }

    /// A buffer of the program; `None` if no slot lies in it.
    pub(crate) fn get(&self, buffer: Buffer) -> Option<&wgpu::Buffer> {
        match sharing(buffer) {
            Sharing::Always => self.consts.get(&buffer),
            Sharing::UntilSet => self.params.get(&buffer),
            Sharing::Never => self.own.get(&buffer),
        }
    }

    /// The buffer of a binding.
    pub(crate) fn place(&self, place: Place) -> Option<&wgpu::Buffer> {
        match place {
            Place::Of(buffer) => self.get(buffer),
            Place::Empty => Some(&self.empty),
        }
    }
}

fn make_all(
    gpu: &Gpu,
    program: &Program,
    which: Sharing,
) -> Result<BTreeMap<Buffer, wgpu::Buffer>, Unmade> {
    let buffers = program.buffers().into_iter();
    let wanted = buffers.filter(|(b, _)| sharing(*b) == which);
    wanted
        .map(|(b, bytes)| Ok((b, make(gpu, describe(b), bytes, STORAGE)?)))
        .collect()
}

fn empty(gpu: &Gpu) -> Result<wgpu::Buffer, Unmade> {
    let align = u64::from(gpu.limits.min_storage_buffer_offset_alignment);
    make(
        gpu,
        "the buffer of empty tensors",
        MAX_ARGS as u64 * align,
        STORAGE,
    )
}

fn make_numbers(gpu: &Gpu, bytes: u64) -> Result<wgpu::Buffer, Unmade> {
    let usage = wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST;
    make(gpu, "the buffer of kernel parameters", bytes, usage)
}

/// A buffer of at least one word, zeroed.
///
/// # Errors
/// [`Unmade`] when there is no memory for it.
pub(crate) fn make(
    gpu: &Gpu,
    what: &'static str,
    bytes: u64,
    usage: wgpu::BufferUsages,
) -> Result<wgpu::Buffer, Unmade> {
    let descriptor = wgpu::BufferDescriptor {
        label: Some(what),
        size: bytes.max(4).next_multiple_of(4),
        usage,
        mapped_at_creation: false,
    };
    gpu.scoped(|| gpu.device.create_buffer(&descriptor))
        .map_err(|trouble| Unmade {
            trouble,
            what,
            bytes,
        })
}

/// Copies buffers of the same size, in one submission.
fn copy_all<'a>(
    gpu: &Gpu,
    pairs: impl Iterator<Item = (&'a wgpu::Buffer, &'a wgpu::Buffer)>,
) -> Result<(), Unmade> {
    gpu.scoped(|| {
        let mut encoder = (gpu.device).create_command_encoder(&Default::default());
        for (from, to) in pairs {
            encoder.copy_buffer_to_buffer(from, 0, to, 0, from.size().min(to.size()));
        }
        gpu.queue.submit([encoder.finish()]);
    })
    .map_err(|trouble| Unmade {
        trouble,
        what: "a copy of states or parameters",
        bytes: 0,
    })
}
