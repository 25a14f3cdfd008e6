//! An executable of a program, whatever plays it.
//!
//! A player implements [`Driver`]: buffers, submission, waiting. [`GpuExecutable`] does the rest once
//! for all players: names, types and sizes are checked, I64 is narrowed and widened, numbers are
//! computed, faults become errors that name node and index.

mod behind;
mod executable;
mod inputs;
mod play;
mod reading;

use self::inputs::Inputs;
pub use self::inputs::SharedBuffer;

use std::sync::Arc;
use std::task::{Context, Poll};

use self::play::{Code, Cursor};
pub use self::reading::Fetched;

use tercet_ir::backend::{Wanted, places};
use tercet_ir::random::Random;
use tercet_ir::{Bindings, DType, EvalError, Port, RunError, Tensor};

use crate::flow::StageId;
use crate::launch::Launch;
use crate::narrow;
use crate::program::{Buffer, CheckKind, Io, Program};

/// A range of a buffer to be read after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Read {
    /// The buffer.
    pub buffer: Buffer,
    /// Where the range starts, a multiple of 4.
    pub offset_bytes: u64,
    /// Its size, a multiple of 4.
    pub bytes: u64,
}

/// What the device puts into place between a run and the one behind it.
#[derive(Clone, Copy, Debug)]
pub enum Put<'a> {
    /// Bytes of the host, whole words.
    Bytes {
        /// The buffer.
        buffer: Buffer,
        /// Where they go, a multiple of 4.
        offset_bytes: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// A range of one buffer, into another.
    Copy {
        /// The range.
        from: Read,
        /// The other buffer.
        buffer: Buffer,
        /// Where it goes, a multiple of 4.
        offset_bytes: u64,
    },
}

/// The device side of one executable.
///
/// A driver holds the buffers of [`Program::buffers`], zeroed at first but for the constants, which
/// hold their tensors. Calls come from one thread at a time; between `submit` and `wait` only `wait`,
/// `poll_done` and `submit_behind` are called, unless the submission has no reads: then another may follow. After an error the driver remains usable unless the device is lost.
pub trait Driver: Send + Sized + 'static {
    /// The executor's name.
    const NAME: &'static str;

    /// Writes into a buffer, before the next submission. `offset_bytes` is a multiple of 4; the end
    /// of the bytes need not be: the rest of the last word is then zeroed.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`].
    fn write(&mut self, buffer: Buffer, offset_bytes: u64, bytes: &[u8]) -> Result<(), RunError>;

    /// Writes zeros all over a buffer.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn clear(&mut self, buffer: Buffer) -> Result<(), RunError>;

    /// Runs [`Program::prepare`] with the numbers of `launch` and waits for it.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn prepare(&mut self, launch: &Launch) -> Result<(), RunError>;

    /// A run begins: the times of the last one are forgotten.
    fn begin(&mut self);

    /// Starts these stages of [`Program::steps`], one after the other, each as often as it is named, and
    /// after them the copies for `reads`. `changed` says whether the numbers differ from those of the last
    /// submission. A run without control flow is one submission of the one stage.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn submit(
        &mut self,
        launch: &Launch,
        stages: &[StageId],
        changed: bool,
        reads: &[Read],
    ) -> Result<(), RunError>;

    /// Starts a run of a program without control flow behind the submission that is not waited for yet, once these things are
    /// in their places, and copies for `reads` after it. `changed` as for [`Driver::submit`]. There is one such submission at a time.
    /// False, and nothing is started, where the driver cannot.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn submit_behind(
        &mut self,
        launch: &Launch,
        changed: bool,
        puts: &[Put<'_>],
        reads: &[Read],
    ) -> Result<bool, RunError>;

    /// Waits for the submission, the older one of two, and gives the bytes of each of its reads, in order.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn wait(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), RunError>;

    /// Ready when [`Driver::wait`] does not block; the waker of `cx` is called when it is worth asking again. A driver
    /// that is not told when work is done waits for it here.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn poll_done(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>>;

    /// A buffer of its own on the device, which executables of one device copy from.
    type Shared: SharedBuffer;

    /// Copies a range into a buffer of its own.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn share(&mut self, range: Read) -> Result<Self::Shared, RunError>;

    /// A buffer of its own with these bytes; a last word that is not whole is filled with zeros.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn share_bytes(&mut self, bytes: &[u8]) -> Result<Self::Shared, RunError>;

    /// True if the buffer is on this driver's device.
    fn reaches(&self, shared: &Self::Shared) -> bool;

    /// Copies the beginning of a buffer into a range of another, before the next submission.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn take(&mut self, shared: &Self::Shared, range: Read) -> Result<(), RunError>;

    /// Reads a range now.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn read(&mut self, read: Read, take: &mut dyn FnMut(&[u8])) -> Result<(), RunError>;

    /// Starts to read a range, as it is now, without waiting for it; a driver that is not told when work is done reads it.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn fetch(&mut self, read: Read) -> Result<Fetched, RunError>;

    /// When each step of the last run started, in nanoseconds from the first, and how long it took, as
    /// (step, start, duration), in the order played: steps of a loop once for each iteration. Empty where the
    /// device does not measure.
    fn step_times(&mut self) -> Vec<(usize, u64, u64)>;

    /// Another driver of the same program that shares parameters, constants and prepared values and
    /// has a copy of the states.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn try_clone(&mut self) -> Result<Self, RunError>;

    /// Makes this driver's parameters, and what is prepared from them, its own before one is
    /// written: clones keep theirs.
    ///
    /// # Errors
    /// As [`Driver::write`].
    fn unshare_params(&mut self) -> Result<(), RunError>;
}

/// What a run in flight was started with.
#[derive(Clone, Debug)]
struct Flight {
    /// Places of the wanted outputs.
    wanted: Vec<usize>,
    sizes: Bindings,
    /// Its end counts in the random numbers, which were not set since it was started.
    counts: bool,
}

/// An executable of a program through a driver.
pub struct GpuExecutable<D: Driver> {
    program: Arc<Program>,
    driver: std::cell::RefCell<D>,
    bounds: Bindings,
    launch: Launch,
    /// The sizes and the random numbers that `launch` was computed for.
    launched: Option<(Bindings, Random)>,
    sizes: Bindings,
    random: Random,
    params_set: Vec<bool>,
    prepared: bool,
    flight: Option<Flight>,
    /// The run that was started behind it.
    behind: Option<Flight>,
    last: Option<Bindings>,
    reads: Vec<Read>,
    /// The records of data checks, read after every run.
    faults: Option<Read>,
    scratch: Vec<u8>,
    /// What inputs are bound to, and what the device holds of them.
    inputs: Inputs,
    /// Stages that are to be played and were not yet submitted.
    due: Vec<StageId>,
    /// The numbers differ from those of the last submission.
    changed: bool,
    code: Arc<Code>,
    /// Where the run in flight stands in it.
    cursor: Cursor,
    /// The run in flight stands at a predicate, which was submitted.
    undecided: bool,
}

impl<D: Driver> GpuExecutable<D> {
    /// An executable of a program, planned for these bounds.
    pub fn new(program: Arc<Program>, driver: D, bounds: Bindings) -> GpuExecutable<D> {
        GpuExecutable {
            params_set: vec![false; program.signature.params.len()],
            inputs: Inputs::new(program.signature.inputs.len()),
            faults: faults(&program),
            code: Code::of(&program),
            cursor: Cursor::default(),
            undecided: false,
            driver: std::cell::RefCell::new(driver),
            program,
            bounds,
            launch: Launch::default(),
            launched: None,
            sizes: Bindings::new(),
            random: Random::default(),
            prepared: false,
            flight: None,
            behind: None,
            last: None,
            reads: Vec::new(),
            scratch: Vec::new(),
            due: Vec::new(),
            changed: false,
        }
    }

    /// The program.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// The driver.
    pub fn driver(&mut self) -> &mut D {
        self.driver.get_mut()
    }

    /// Binds the inputs, computes the numbers, uploads and submits: everything, or what comes before data decides what
    /// is played. Nothing waits but for a run that was started before.
    ///
    /// # Errors
    /// [`RunError`] that names the input, symbol or parameter.
    pub fn start(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: Wanted<'_>,
    ) -> Result<(), RunError> {
        self.land()?;
        let program = Arc::clone(&self.program);
        let places = places(&program.signature, wanted)?;
        self.bind_sizes(inputs)?;
        for (port, set) in program.signature.params.iter().zip(&self.params_set) {
            if !set {
                let (name, ty) = (port.name.clone(), port.ty.clone());
                return Err(RunError::Missing {
                    what: "param",
                    name,
                    ty,
                });
            }
        }
        {
            let _span = tracing::debug_span!("numbers").entered();
            self.changed |= self.compute(&program, self.random)?;
        }
        if !self.prepared && !program.prepare.is_empty() {
            let _span = tracing::debug_span!("prepare").entered();
            self.driver.get_mut().prepare(&self.launch)?;
        }
        self.prepared = true;
        self.send_inputs(inputs)?;
        self.due.clear();
        self.driver.get_mut().begin();
        self.cursor.begin(&self.code);
        self.flight = Some(Flight {
            wanted: places,
            sizes: self.sizes.clone(),
            counts: true,
        });
        let advanced = self.advance();
        self.unless_failed(advanced)
    }

    /// A run that failed is no longer in flight.
    fn unless_failed<T>(&mut self, result: Result<T, RunError>) -> Result<T, RunError> {
        if result.is_err() {
            self.flight = None;
            self.undecided = false;
        }
        result
    }

    /// Plays the run in flight on as far as it goes without waiting: ready when [`GpuExecutable::finish`] does not block.
    ///
    /// # Errors
    /// [`RunError`] of what data decided, after which the run is over.
    pub fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        loop {
            match self.driver.get_mut().poll_done(cx) {
                Poll::Ready(done) => self.unless_failed(done)?,
                Poll::Pending => return Poll::Pending,
            }
            if !self.undecided {
                return Poll::Ready(Ok(()));
            }
            let decided = self.decide();
            self.unless_failed(decided)?;
        }
    }

    /// Plays the run in flight to where its results are submitted.
    fn play_on(&mut self) -> Result<(), RunError> {
        while self.undecided {
            let decided = self.decide();
            self.unless_failed(decided)?;
        }
        Ok(())
    }

    /// Finishes the runs that nobody waited for: their results are dropped, but they count.
    fn land(&mut self) -> Result<(), RunError> {
        self.land_one()?;
        // There is another where one was started behind it.
        self.land_one()
    }

    fn land_one(&mut self) -> Result<(), RunError> {
        match self.play_on() {
            Ok(()) => {}
            Err(e @ (RunError::DeviceLost { .. } | RunError::OutOfMemory { .. })) => return Err(e),
            // It failed by its data, which concerns nobody.
            Err(_) => {}
        }
        let Some(flight) = self.first_flight() else {
            return Ok(());
        };
        let (program, launch, mut failed) = (&self.program, &self.launch, false);
        let has_faults = self.faults.is_some();
        self.driver.get_mut().wait(&mut |i, bytes| {
            failed |= has_faults && i == 0 && fault_of(program, launch, bytes).is_some();
        })?;
        if !failed {
            self.ended(flight);
        }
        Ok(())
    }

    /// Takes the run under way; what was started behind it is under way from now on.
    fn first_flight(&mut self) -> Option<Flight> {
        std::mem::replace(&mut self.flight, self.behind.take())
    }

    /// A run was completed.
    fn ended(&mut self, flight: Flight) {
        if flight.counts {
            self.random.count();
        }
        self.last = Some(flight.sizes);
    }

    /// Waits for the run started last and takes its outputs.
    ///
    /// # Errors
    /// [`RunError::Node`] when a check of data failed; states are then as before the run.
    pub fn finish(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.play_on()?;
        let Some(flight) = self.first_flight() else {
            outputs.clear();
            return Ok(());
        };
        let program = Arc::clone(&self.program);
        outputs.truncate(flight.wanted.len());
        let mut types = Vec::with_capacity(flight.wanted.len());
        for (at, &place) in flight.wanted.iter().enumerate() {
            let ty = program.outputs[place].ty.eval(&flight.sizes)?;
            match outputs.get(at) {
                Some(old) if *old.ty() == ty => {}
                Some(_) => outputs[at] = Tensor::zeros(ty.clone())?,
                None => outputs.push(Tensor::zeros(ty.clone())?),
            }
            types.push(ty);
        }
        let full: Vec<usize> = (0..types.len()).filter(|&i| types[i].numel() > 0).collect();
        let has_faults = self.faults.is_some();
        let mut fault = None;
        let launch = &self.launch;
        let _span = tracing::debug_span!("wait and read back").entered();
        self.driver.get_mut().wait(
            &mut |i, bytes| match i.checked_sub(usize::from(has_faults)) {
                None => fault = fault_of(&program, launch, bytes),
                Some(i) => narrow::decode(bytes, &mut outputs[full[i]]),
            },
        )?;
        match fault {
            Some(fault) => Err(fault),
            None => {
                self.ended(flight);
                Ok(())
            }
        }
    }

    /// Computes the numbers if the sizes, or what depends on the count of runs, changed.
    fn compute(&mut self, program: &Program, random: Random) -> Result<bool, RunError> {
        let same = self.launched.as_ref().is_some_and(|(sizes, launched)| {
            *sizes == self.sizes && (*launched == random || !program.tape.draws())
        });
        if same {
            return Ok(false);
        }
        self.launched = None;
        self.launch.compute(program, &self.sizes, random)?;
        self.launched = Some((self.sizes.clone(), random));
        Ok(true)
    }

    fn send(
        &mut self,
        what: &'static str,
        port: &Port,
        io: &Io,
        tensor: &Tensor,
    ) -> Result<(), RunError> {
        let _span = tracing::debug_span!("upload").entered();
        let slot = *self.program.slot(io.slot);
        if let Some(planes) = &io.planes {
            tensor.align()?;
            let driver = self.driver.get_mut();
            return planes.write(tensor.bytes(), &mut self.scratch, |at, bytes| {
                driver.write(slot.buffer, slot.offset_bytes + at, bytes)
            });
        }
        let bytes = narrow::encode(what, &port.name, tensor, &mut self.scratch)?;
        if bytes.is_empty() {
            return Ok(());
        }
        (self.driver.get_mut()).write(slot.buffer, slot.offset_bytes, bytes)
    }
}

/// The range of the records of data checks.
fn faults(program: &Program) -> Option<Read> {
    let bytes = program.bytes_of(|b| b == Buffer::Faults);
    (!program.data_checks.is_empty()).then_some(Read {
        buffer: Buffer::Faults,
        offset_bytes: 0,
        bytes,
    })
}

/// Outputs up to this size are read back whole, whatever their size in a run, so that players need
/// not prepare another copy for new sizes.
const SMALL_OUTPUT_BYTES: u64 = 64 << 10;

/// The range to read for the sizes of a launch.
fn whole(program: &Program, launch: &Launch, io: &Io) -> Option<Read> {
    let slot = program.slot(io.slot);
    let bytes = u64::try_from(launch.value(io.bytes)).ok()?;
    Some(Read {
        buffer: slot.buffer,
        offset_bytes: slot.offset_bytes,
        bytes: match bytes {
            0 => 0,
            _ if slot.bytes <= SMALL_OUTPUT_BYTES => slot.bytes,
            bytes => bytes,
        },
    })
}

/// The error of the first check that failed, by the order of the nodes.
fn fault_of(program: &Program, launch: &Launch, records: &[u8]) -> Option<RunError> {
    let word = |at: usize| -> u32 {
        let bytes = records.get(at..at + 4);
        bytes.map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    };
    let failed = program.data_checks.iter().find_map(|check| {
        let at = program.slot(check.record).offset_bytes as usize;
        let place = word(at).checked_sub(1)? as usize;
        Some((check, place, word(at + 4) as i32))
    });
    failed.map(|(check, place, value)| {
        let len = launch.value(check.len) as usize;
        let index = i64::from(value);
        let source = match &check.kind {
            CheckKind::Index => EvalError::Index { index, len },
            CheckKind::Coordinates(lens) => {
                let len = launch.value(lens[place % lens.len()]) as usize;
                EvalError::Index { index, len }
            }
            CheckKind::KvLen => EvalError::Data(format!(
                "kv_len is {value}; accepted: 0 to {len}, the keys given"
            )),
        };
        check.site.fail(source)
    })
}

/// The dtype that the device holds values of a dtype in.
pub(crate) fn device_dtype(dtype: DType) -> DType {
    match dtype {
        DType::I64 => DType::I32,
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::F64
        | DType::I32
        | DType::U32
        | DType::I8
        | DType::U8
        | DType::Bool => dtype,
    }
}
