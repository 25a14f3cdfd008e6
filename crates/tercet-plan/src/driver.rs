//! An executable of a program, whatever plays it.
//!
//! A player implements [`Driver`]: buffers, submission, waiting. [`GpuExecutable`] does the rest once
//! for all players: names, types and sizes are checked, I64 is narrowed and widened, numbers are
//! computed, faults become errors that name node and index.

mod behind;
mod executable;
mod inputs;
mod play;
mod player;
mod reading;

use self::inputs::Inputs;
pub use self::inputs::SharedBuffer;

use std::sync::Arc;
use std::task::{Context, Poll};

use self::play::{Code, Cursor};
pub use self::player::{Driver, Put, Read};
pub use self::reading::Fetched;

use tercet_ir::backend::{Wanted, places};
use tercet_ir::random::Random;
use tercet_ir::{Bindings, DType, EvalError, Port, RunError, Tensor};

use crate::emit::RECORD_BYTES;
use crate::flow::StageId;
use crate::launch::Launch;
use crate::narrow;
use crate::program::{Buffer, CheckKind, Io, Program};

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
    (!program.data_checks.is_empty()).then_some(Read {
        buffer: Buffer::Faults,
        offset_bytes: 0,
        bytes: program.data_checks.len() as u64 * RECORD_BYTES,
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
            CheckKind::Order => EvalError::Data(
                "a dispatch waited in vain for the one before it, which this device has not run: its results are not to be \
                 trusted; run through wgpu, which keeps barriers, or update the driver"
                    .to_string(),
            ),
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
