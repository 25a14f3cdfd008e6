//! [`GpuExecutable`]: a compiled program on any GPU runtime.
//!
//! A GPU runtime implements [`LoadedProgram`]: buffers, submission and waiting. [`GpuExecutable`]
//! contains the host code that is the same for all GPU runtimes. [`GpuExecutable`] checks names,
//! types and sizes, and converts I64 to I32 and back. It also evaluates symbolic sizes and turns
//! fault records of data checks into errors that name the node and the index.

mod control_flow;
mod executable;
mod inputs;
mod loaded_program;
mod pipelined;
mod readback;

use self::inputs::InputSlots;
pub use self::inputs::SharedBuffer;

use std::sync::Arc;
use std::task::{Context, Poll};

use self::control_flow::{FlowCode, ProgramCounter};
pub use self::loaded_program::{InputUpdate, LoadedProgram, ReadbackRange};
pub use self::readback::PendingReadback;

use tercet_ir::backend::{OutputSelection, places};
use tercet_ir::random::RngState;
use tercet_ir::{Bindings, EvalError, Port, RunError, Tensor};

use crate::device_data;
use crate::flow::StageId;
use crate::launch::LaunchSizes;
use crate::program::{CheckKind, GpuProgram, IoBinding, ProgramBuffer, RECORD_BYTES};

/// A submitted run that has not completed.
#[derive(Clone, Debug)]
struct InFlightRun {
    /// Signature indices of the outputs that the caller requested.
    output_indices: Vec<usize>,
    sizes: Bindings,
    /// True if completing this run advances the random state; false if the random state was reset
    /// after the run started.
    counts: bool,
}

/// A compiled program loaded through a [`LoadedProgram`].
pub struct GpuExecutable<D: LoadedProgram> {
    program: Arc<GpuProgram>,
    driver: std::cell::RefCell<D>,
    bounds: Bindings,
    launch: LaunchSizes,
    /// Sizes and random state that `launch` was computed for.
    launched: Option<(Bindings, RngState)>,
    sizes: Bindings,
    random: RngState,
    params_set: Vec<bool>,
    prepared: bool,
    flight: Option<InFlightRun>,
    /// A second run, submitted before the first one completed.
    pipelined: Option<InFlightRun>,
    last: Option<Bindings>,
    reads: Vec<ReadbackRange>,
    /// Buffer range of the fault records of data checks, read back after every run.
    faults: Option<ReadbackRange>,
    scratch: Vec<u8>,
    /// Device tensors bound to inputs, and what the host knows about the contents of the input
    /// slots.
    inputs: InputSlots,
    /// Stages that the run will execute next, but that are not yet submitted.
    due: Vec<StageId>,
    /// True if the launch-time values differ from those of the last submission.
    sizes_changed: bool,
    code: Arc<FlowCode>,
    /// Position of the run in flight within `code`.
    cursor: ProgramCounter,
    /// True if the run in flight waits for a predicate whose stage is already submitted.
    awaits_predicate: bool,
}

impl<D: LoadedProgram> GpuExecutable<D> {
    /// Creates an executable of `program`, which was planned for the symbol bounds `bounds`.
    pub fn new(program: Arc<GpuProgram>, driver: D, bounds: Bindings) -> GpuExecutable<D> {
        GpuExecutable {
            params_set: vec![false; program.signature.params.len()],
            inputs: InputSlots::new(program.signature.inputs.len()),
            faults: faults(&program),
            code: FlowCode::new(&program),
            cursor: ProgramCounter::default(),
            awaits_predicate: false,
            driver: std::cell::RefCell::new(driver),
            program,
            bounds,
            launch: LaunchSizes::default(),
            launched: None,
            sizes: Bindings::new(),
            random: RngState::default(),
            prepared: false,
            flight: None,
            pipelined: None,
            last: None,
            reads: Vec::new(),
            scratch: Vec::new(),
            due: Vec::new(),
            sizes_changed: false,
        }
    }

    /// The compiled program.
    pub fn program(&self) -> &Arc<GpuProgram> {
        &self.program
    }

    /// The program as loaded by the GPU runtime.
    pub fn driver(&mut self) -> &mut D {
        self.driver.get_mut()
    }

    /// Starts a run: binds inputs, evaluates symbolic sizes, uploads inputs and submits work.
    /// Without control flow it submits the whole program, otherwise the stages up to the first
    /// data-dependent predicate. Starting a run blocks only if earlier runs are still in flight.
    ///
    /// # Errors
    /// [`RunError`] that names an invalid input, an unbound symbol, or a parameter that is not set.
    pub fn start(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError> {
        self.finish_unwaited_runs()?;
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
            self.sizes_changed |= self.compute(&program, self.random)?;
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
        self.flight = Some(InFlightRun {
            output_indices: places,
            sizes: self.sizes.clone(),
            counts: true,
        });
        let advanced = self.advance();
        self.unless_failed(advanced)
    }

    /// Returns `result` unchanged; if it is an error, the run in flight ends.
    fn unless_failed<T>(&mut self, result: Result<T, RunError>) -> Result<T, RunError> {
        if result.is_err() {
            self.flight = None;
            self.awaits_predicate = false;
        }
        result
    }

    /// Advances the run in flight without blocking. Returns `Ready` once [`GpuExecutable::finish`]
    /// would not block.
    ///
    /// # Errors
    /// The [`RunError`] of a failed stage, branch or loop; the run then ends.
    pub fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        loop {
            match self.driver.get_mut().poll_done(cx) {
                Poll::Ready(done) => self.unless_failed(done)?,
                Poll::Pending => return Poll::Pending,
            }
            if !self.awaits_predicate {
                return Poll::Ready(Ok(()));
            }
            let decided = self.branch_on_predicate();
            self.unless_failed(decided)?;
        }
    }

    /// Advances the run in flight until all its stages are submitted, blocking at each predicate.
    fn run_to_results(&mut self) -> Result<(), RunError> {
        while self.awaits_predicate {
            let decided = self.branch_on_predicate();
            self.unless_failed(decided)?;
        }
        Ok(())
    }

    /// Completes runs in flight whose outputs were never fetched. Their outputs are dropped; states
    /// and the random state still advance.
    fn finish_unwaited_runs(&mut self) -> Result<(), RunError> {
        self.finish_oldest_run()?;
        // A second, pipelined run may also be in flight.
        self.finish_oldest_run()
    }

    fn finish_oldest_run(&mut self) -> Result<(), RunError> {
        match self.run_to_results() {
            Ok(()) => {}
            Err(e @ (RunError::DeviceLost { .. } | RunError::OutOfMemory { .. })) => return Err(e),
            // A data-check error of a run whose outputs were never fetched has no recipient, so it
            // is dropped.
            Err(_) => {}
        }
        let Some(flight) = self.take_current_run() else {
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

    /// Takes the oldest run in flight; a pipelined second run, if any, becomes the run in flight.
    fn take_current_run(&mut self) -> Option<InFlightRun> {
        std::mem::replace(&mut self.flight, self.pipelined.take())
    }

    /// Records a completed run: advances the random state and stores its sizes.
    fn ended(&mut self, flight: InFlightRun) {
        if flight.counts {
            self.random.count();
        }
        self.last = Some(flight.sizes);
    }

    /// Waits for the run started last and fetches its outputs.
    ///
    /// # Errors
    /// [`RunError::Node`] if a data check failed. In this case, all states keep their values from
    /// before the run.
    pub fn finish(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.run_to_results()?;
        let Some(flight) = self.take_current_run() else {
            outputs.clear();
            return Ok(());
        };
        let program = Arc::clone(&self.program);
        outputs.truncate(flight.output_indices.len());
        let mut types = Vec::with_capacity(flight.output_indices.len());
        for (at, &place) in flight.output_indices.iter().enumerate() {
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
                Some(i) => device_data::decode(bytes, &mut outputs[full[i]]),
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

    /// Evaluates the launch-time values if the sizes changed, or if the random state changed and
    /// the program depends on it. Returns whether the launch-time values were evaluated again.
    fn compute(&mut self, program: &GpuProgram, random: RngState) -> Result<bool, RunError> {
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
        io: &IoBinding,
        tensor: &Tensor,
    ) -> Result<(), RunError> {
        let _span = tracing::debug_span!("upload").entered();
        let slot = *self.program.slot(io.slot);
        if let Some(planes) = &io.soa_layout {
            tensor.align()?;
            let driver = self.driver.get_mut();
            return planes.repack(tensor.bytes(), &mut self.scratch, |at, bytes| {
                driver.write(slot.buffer, slot.offset_bytes + at, bytes)
            });
        }
        let bytes = device_data::encode(what, &port.name, tensor, &mut self.scratch)?;
        if bytes.is_empty() {
            return Ok(());
        }
        (self.driver.get_mut()).write(slot.buffer, slot.offset_bytes, bytes)
    }
}

/// Buffer range of the fault records; `None` if the program has no data checks.
fn faults(program: &GpuProgram) -> Option<ReadbackRange> {
    (!program.data_checks.is_empty()).then_some(ReadbackRange {
        buffer: ProgramBuffer::Faults,
        offset_bytes: 0,
        bytes: program.data_checks.len() as u64 * RECORD_BYTES,
    })
}

/// Outputs up to this many bytes are read back at their maximum size, for all sizes of the
/// run. The GPU runtime can then reuse its copy command if sizes change.
const SMALL_OUTPUT_BYTES: u64 = 64 << 10;

/// Buffer range of an output that must be read back for the sizes of this launch.
fn readback_range(
    program: &GpuProgram,
    launch: &LaunchSizes,
    io: &IoBinding,
) -> Option<ReadbackRange> {
    let slot = program.slot(io.slot);
    let bytes = u64::try_from(launch.value(io.bytes)).ok()?;
    Some(ReadbackRange {
        buffer: slot.buffer,
        offset_bytes: slot.offset_bytes,
        bytes: match bytes {
            0 => 0,
            _ if slot.bytes <= SMALL_OUTPUT_BYTES => slot.bytes,
            bytes => bytes,
        },
    })
}

/// The error of the first failed data check, in node order.
fn fault_of(program: &GpuProgram, launch: &LaunchSizes, records: &[u8]) -> Option<RunError> {
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
                "a dispatch timed out: the dispatch before it did not run, so the results are invalid; use \
                 `--device wgpu`, which keeps barriers, or update the driver"
                    .to_string(),
            ),
            CheckKind::Overflow => EvalError::Data(format!(
                "element {place} of an i64 result does not fit i32; this executor computes i64 as i32, \
                 so run on the CPU or use smaller numbers"
            )),
            CheckKind::KvLen => EvalError::Data(format!(
                "kv_len is {value}; accepted: 0 to {len}, the number of keys"
            )),
        };
        check.site.fail(source)
    })
}
