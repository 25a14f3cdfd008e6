//! The fast executor's executable: binds sizes, runs the steps and stores the states.

use std::future::ready;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tercet_ir::random::RngState;
use tercet_ir::{
    Bindings, EvalCtx, Executable, RunError, Signature, Tensor, TensorType,
    backend::{
        DeviceTensor, LastRun, OutputSelection, StepTime, TensorFuture, elements_of, find_port,
        places, replaced_elements,
    },
};

use crate::aligned_alloc::AlignedBuffer;
use crate::bound_inputs::{BoundInputs, on_host};
use crate::exec::constants::Constants;
use crate::exec::frame::ExecutionContext;
use crate::plan::CpuProgram;
use crate::pool::HelperPool;

/// A graph compiled for the fast executor.
pub(crate) struct CpuExecutable {
    program: Arc<CpuProgram>,
    pool: HelperPool,
    bounds: Bindings,
    states: Vec<AlignedBuffer>,
    frame: ExecutionContext,
    random: RngState,
    last: LastRun,
    bound: BoundInputs,
}

impl CpuExecutable {
    pub(crate) fn new(
        program: CpuProgram,
        pool: HelperPool,
        bounds: Bindings,
    ) -> Result<CpuExecutable, RunError> {
        let states = new_states(&program)?;
        Ok(CpuExecutable {
            frame: ExecutionContext::new(Constants::new(&program)),
            program: Arc::new(program),
            pool,
            bounds,
            states,
            random: RngState::default(),
            last: LastRun::default(),
            bound: BoundInputs::default(),
        })
    }

    /// This executable, which measures the steps of its runs.
    pub(crate) fn timed(mut self) -> CpuExecutable {
        self.frame.times = Some(Vec::new());
        self
    }

    /// A run on the calling thread; kernels use `threads` threads, including this one.
    fn run_here(
        &mut self,
        threads: usize,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        self.last.clear();
        let program = &*self.program;
        let inputs = &*self.bound.with(inputs);
        let frame = &mut self.frame;
        program
            .signature
            .bind(inputs, &self.bounds, &mut frame.sizes)?;
        frame.resize(program, threads)?;
        frame.prepare(program, threads)?;
        self.reset_outputs(outputs)?;
        let ordered: SmallVec<[&[u8]; 8]> = (program.signature.inputs.iter())
            .filter_map(|p| inputs.iter().find(|(n, _)| *n == p.name))
            .map(|(_, tensor)| tensor.bytes())
            .collect();
        let ctx = EvalCtx {
            random: self.random,
        };
        let (frame, states) = (&mut self.frame, &mut self.states);
        let results = outputs.iter_mut().map(Tensor::bytes_mut).collect();
        frame.play(program, ctx, &ordered, results, states)?;
        self.random.count();
        self.last.retain(outputs);
        Ok(())
    }

    /// Sets the types of the output tensors, reusing their memory.
    fn reset_outputs(&self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        let layouts = &self.frame.outputs;
        outputs.truncate(layouts.len());
        for (i, (layout, ty)) in layouts.iter().zip(&self.program.outputs).enumerate() {
            let what = "an output";
            match outputs.get_mut(i) {
                Some(tensor) => tensor.reset_to(ty.dtype, layout.shape()).map_err(|_| {
                    let bytes = TensorType::new(ty.dtype, layout.shape()).saturating_bytes();
                    RunError::OutOfMemory { what, bytes }
                })?,
                None => {
                    let ty = TensorType::new(ty.dtype, layout.shape());
                    outputs.push(crate::reference::zeros(ty, what)?);
                }
            }
        }
        Ok(())
    }
}

fn new_states(program: &CpuProgram) -> Result<Vec<AlignedBuffer>, RunError> {
    let ports = program.signature.states.iter();
    ports
        .map(|port| {
            let shape = port.ty.shape.eval(&Bindings::new())?;
            let ty = TensorType::new(port.ty.dtype, &shape);
            AlignedBuffer::zeroed(ty.size_bytes(), "a state")
        })
        .collect()
}

impl Executable for CpuExecutable {
    fn signature(&self) -> &Signature {
        &self.program.signature
    }

    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError> {
        let (at, port) = find_port(&self.program.signature.params, "param", name)?;
        port.check("param", &tensor)?;
        self.frame.constants.set(&self.program, at, tensor);
        Ok(())
    }

    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        let pool = self.pool.clone();
        pool.install(self.program.threads, |threads| {
            self.run_here(threads, inputs, outputs)
        })
    }

    fn submit(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError> {
        let places = places(&self.program.signature, wanted)?;
        let mut outputs = self.last.reuse();
        self.run_into(inputs, &mut outputs)?;
        self.last.request(places);
        Ok(())
    }

    /// Runs are synchronous, so a submitted run has already finished.
    fn submit_pipelined(
        &mut self,
        _: &[(&str, &Tensor)],
        _: &[(&str, &str)],
        _: OutputSelection<'_>,
    ) -> Result<bool, RunError> {
        Ok(false)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.last.take_requested(outputs);
        Ok(())
    }

    fn poll_run(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        Poll::Ready(Ok(()))
    }

    fn fetch_output_rows(
        &mut self,
        output: &str,
        rows: Range<usize>,
    ) -> Result<TensorFuture, RunError> {
        let tensor = self.read_output_rows(output, rows)?;
        Ok(Box::pin(ready(Ok(tensor))))
    }

    fn fetch_state(&mut self, name: &str) -> Result<TensorFuture, RunError> {
        let tensor = self.read_state(name)?;
        Ok(Box::pin(ready(Ok(tensor))))
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        self.last.rows(&self.program.signature, output, &rows)
    }

    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        Ok(on_host(tensor.clone()))
    }

    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        Ok(on_host(
            self.last.tensor(&self.program.signature, output)?.clone(),
        ))
    }

    fn release_outputs(&mut self) {
        self.last.clear();
    }

    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError> {
        self.bound
            .bind(&self.program.signature, "cpu", input, tensor)
    }

    fn unbind(&mut self, input: &str) -> Result<(), RunError> {
        self.bound.unbind(&self.program.signature, input)
    }

    fn kernel_variants(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<u32>, RunError> {
        let mut sizes = Bindings::new();
        let signature = &self.program.signature;
        signature.bind(inputs, &self.bounds, &mut sizes)?;
        let switches = self.program.row_switches.iter();
        let indices = switches.map(|switch| switch.index(&sizes));
        Ok(indices.collect::<Result<_, _>>()?)
    }

    fn timings(&mut self) -> Vec<StepTime> {
        self.frame.times.clone().unwrap_or_default()
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        port.check("state", tensor)?;
        self.states[at].bytes_mut().copy_from_slice(tensor.bytes());
        Ok(())
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        let shape = port.ty.shape.eval(&Bindings::new())?;
        let ty = TensorType::new(port.ty.dtype, &shape);
        let bytes = ty.size_bytes() as u64;
        Tensor::from_bytes(ty, self.states[at].bytes()).map_err(|_| RunError::OutOfMemory {
            what: "a copy of a state",
            bytes,
        })
    }

    fn write_state_elements(
        &mut self,
        name: &str,
        first: usize,
        values: &Tensor,
    ) -> Result<(), RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        let elements = replaced_elements(port, first, values)?;
        let size = values.dtype().size_bytes();
        self.states[at].bytes_mut()[elements.start * size..elements.end * size]
            .copy_from_slice(values.bytes());
        Ok(())
    }

    fn read_state_elements(&self, name: &str, elements: Range<usize>) -> Result<Tensor, RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        let ty = elements_of(port, &elements)?;
        let size = ty.dtype.size_bytes();
        let part = &self.states[at].bytes()[elements.start * size..elements.end * size];
        Tensor::from_bytes(ty, part).map_err(|_| RunError::OutOfMemory {
            what: "a copy of a state",
            bytes: part.len() as u64,
        })
    }

    fn random(&self) -> RngState {
        self.random
    }

    fn set_random(&mut self, random: RngState) {
        self.random = random;
    }

    fn reset(&mut self) {
        for state in &mut self.states {
            state.bytes_mut().fill(0);
        }
        self.random.counter = 0;
    }

    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError> {
        let mut states = new_states(&self.program)?;
        for (to, from) in states.iter_mut().zip(&self.states) {
            to.bytes_mut().copy_from_slice(from.bytes());
        }
        let clone = CpuExecutable {
            program: self.program.clone(),
            pool: self.pool.clone(),
            bounds: self.bounds.clone(),
            states,
            frame: ExecutionContext::new(self.frame.constants.clone()),
            random: self.random,
            last: LastRun::default(),
            bound: self.bound.clone(),
        };
        Ok(match self.frame.times {
            Some(_) => Box::new(clone.timed()),
            None => Box::new(clone),
        })
    }
}
