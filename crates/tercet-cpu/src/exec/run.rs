//! The executable: binds sizes, runs the steps, keeps the states.

use std::future::ready;
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tercet_ir::random::Random;
use tercet_ir::{
    Bindings, EvalCtx, Executable, RunError, Signature, Tensor, TensorType,
    backend::{DeviceTensor, Fetch, LastRun, StepTime, Wanted, find_port, places},
};

use crate::bound::{Bound, on_host};
use crate::exec::constants::Constants;
use crate::exec::frame::Frame;
use crate::pages::Buffer;
use crate::plan::Program;
use crate::pool::Pool;

/// A compiled graph of the fast executor.
pub(crate) struct CpuExecutable {
    program: Arc<Program>,
    pool: Pool,
    bounds: Bindings,
    states: Vec<Buffer>,
    frame: Frame,
    random: Random,
    last: LastRun,
    bound: Bound,
}

impl CpuExecutable {
    pub(crate) fn new(
        program: Program,
        pool: Pool,
        bounds: Bindings,
    ) -> Result<CpuExecutable, RunError> {
        let states = new_states(&program)?;
        Ok(CpuExecutable {
            frame: Frame::new(Constants::new(&program)),
            program: Arc::new(program),
            pool,
            bounds,
            states,
            random: Random::default(),
            last: LastRun::default(),
            bound: Bound::default(),
        })
    }

    /// A run on this thread; kernels are spread over `threads`, this one among them.
    fn run_here(
        &mut self,
        threads: usize,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        self.last.forget();
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
        self.last.keep(outputs);
        Ok(())
    }

    /// Makes the output tensors the right types, keeping their memory.
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

fn new_states(program: &Program) -> Result<Vec<Buffer>, RunError> {
    let ports = program.signature.states.iter();
    ports
        .map(|port| {
            let shape = port.ty.shape.eval(&Bindings::new())?;
            let ty = TensorType::new(port.ty.dtype, &shape);
            Buffer::zeroed(ty.size_bytes(), "a state")
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

    fn submit(&mut self, inputs: &[(&str, &Tensor)], wanted: Wanted<'_>) -> Result<(), RunError> {
        let places = places(&self.program.signature, wanted)?;
        let mut outputs = self.last.reuse();
        self.run_into(inputs, &mut outputs)?;
        self.last.want(places);
        Ok(())
    }

    /// Runs are over when they are submitted.
    fn submit_behind(
        &mut self,
        _: &[(&str, &Tensor)],
        _: &[(&str, &str)],
        _: Wanted<'_>,
    ) -> Result<bool, RunError> {
        Ok(false)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.last.take(outputs);
        Ok(())
    }

    fn poll_run(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        Poll::Ready(Ok(()))
    }

    fn fetch_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Fetch, RunError> {
        let tensor = self.read_output_rows(output, rows)?;
        Ok(Box::pin(ready(Ok(tensor))))
    }

    fn fetch_state(&mut self, name: &str) -> Result<Fetch, RunError> {
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
        self.last.forget();
    }

    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError> {
        self.bound
            .bind(&self.program.signature, "cpu", input, tensor)
    }

    fn unbind(&mut self, input: &str) -> Result<(), RunError> {
        self.bound.unbind(&self.program.signature, input)
    }

    fn timings(&mut self) -> Vec<StepTime> {
        Vec::new()
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

    fn random(&self) -> Random {
        self.random
    }

    fn set_random(&mut self, random: Random) {
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
        Ok(Box::new(CpuExecutable {
            program: self.program.clone(),
            pool: self.pool.clone(),
            bounds: self.bounds.clone(),
            states,
            frame: Frame::new(self.frame.constants.clone()),
            random: self.random,
            last: LastRun::default(),
            bound: self.bound.clone(),
        }))
    }
}
