//! The executable: binds sizes, runs the steps, keeps the states.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use tercet_ir::{
    Bindings, EvalCtx, Executable, RunError, Signature, Tensor, TensorType,
    backend::{LastRun, StepTime, Wanted, find_port, places},
};

use crate::exec::constants::Constants;
use crate::exec::frame::Frame;
use crate::exec::memory::Buffer;
use crate::plan::Program;
use crate::pool::Pool;

/// A compiled graph of the fast executor.
pub(crate) struct CpuExecutable {
    program: Arc<Program>,
    pool: Pool,
    bounds: Bindings,
    states: Vec<Buffer>,
    frame: Frame,
    runs: u64,
    last: LastRun,
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
            runs: 0,
            last: LastRun::default(),
        })
    }

    /// A run on this thread; kernels use its current team, of `threads`.
    fn run_here(
        &mut self,
        threads: usize,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        self.last.forget();
        let program = &*self.program;
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
        let ctx = EvalCtx { step: self.runs };
        let (frame, states) = (&mut self.frame, &mut self.states);
        let results = outputs.iter_mut().map(Tensor::bytes_mut).collect();
        frame.play(program, ctx, &ordered, results, states)?;
        self.runs += 1;
        self.last.keep(outputs);
        Ok(())
    }

    /// Makes the output tensors the right types, keeping their memory.
    fn reset_outputs(&self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        let layouts = &self.frame.outputs;
        outputs.truncate(layouts.len());
        for (i, (layout, ty)) in layouts.iter().zip(&self.program.outputs).enumerate() {
            let bytes = (layout.numel() * ty.dtype.size_bytes()) as u64;
            let what = "an output";
            match outputs.get_mut(i) {
                Some(tensor) => tensor
                    .reset_to(ty.dtype, layout.shape())
                    .map_err(|_| RunError::OutOfMemory { what, bytes })?,
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
        pool.install(|| self.run_here(pool.threads(), inputs, outputs))
    }

    fn submit(&mut self, inputs: &[(&str, &Tensor)], wanted: Wanted<'_>) -> Result<(), RunError> {
        let places = places(&self.program.signature, wanted)?;
        let mut outputs = self.last.reuse();
        self.run_into(inputs, &mut outputs)?;
        self.last.want(places);
        Ok(())
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.last.take(outputs);
        Ok(())
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        self.last.rows(&self.program.signature, output, &rows)
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

    fn reset(&mut self) {
        for state in &mut self.states {
            state.bytes_mut().fill(0);
        }
        self.runs = 0;
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
            runs: self.runs,
            last: LastRun::default(),
        }))
    }
}
