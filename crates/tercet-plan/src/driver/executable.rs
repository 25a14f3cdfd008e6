//! What callers see of an executable of a program.

use std::ops::Range;
use std::sync::Arc;

use tercet_ir::backend::{DeviceTensor, StepTime, Wanted, find_port, no_run, rows_of};
use tercet_ir::random::Random;
use tercet_ir::{Bindings, Executable, RunError, Signature, Tensor, TensorType};

use super::{Driver, GpuExecutable, Read};
use crate::narrow;
use crate::program::{Buffer, Work};

impl<D: Driver> Executable for GpuExecutable<D> {
    fn signature(&self) -> &Signature {
        &self.program.signature
    }

    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError> {
        let program = Arc::clone(&self.program);
        let (at, port) = find_port(&program.signature.params, "param", name)?;
        port.check("param", &tensor)?;
        self.driver.get_mut().unshare_params()?;
        self.prepared = false;
        self.params_set[at] = false;
        if let Some(planes) = &program.param_io[at].planes {
            let place = at as u32;
            self.launch.unfit.retain(|p| *p != place);
            if !planes.fit_half(tensor.bytes()) {
                self.launch.unfit.push(place);
            }
            self.launched = None;
        }
        self.send("param", port, &program.param_io[at], &tensor)?;
        self.params_set[at] = true;
        Ok(())
    }

    fn submit(&mut self, inputs: &[(&str, &Tensor)], wanted: Wanted<'_>) -> Result<(), RunError> {
        self.start(inputs, wanted)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.finish(outputs)
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        let program = Arc::clone(&self.program);
        let (at, port) = find_port(&program.signature.outputs, "output", output)?;
        let io = &program.outputs[at];
        let Some(sizes) = &self.last else {
            return Err(no_run(port));
        };
        let full = io.ty.eval(sizes)?;
        let part = rows_of(output, &full, &rows)?;
        let mut tensor = Tensor::zeros(part.clone())?;
        if part.numel() == 0 {
            return Ok(tensor);
        }
        let slot = *program.slot(io.slot);
        let row = narrow::device_bytes(&part) / rows.len();
        let start = row * rows.start;
        let aligned = start / 4 * 4;
        let read = Read {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes + aligned as u64,
            bytes: ((row * rows.end).next_multiple_of(4) - aligned) as u64,
        };
        self.driver.get_mut().read(read, &mut |bytes| {
            narrow::decode(&bytes[start - aligned..], &mut tensor);
        })?;
        Ok(tensor)
    }

    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        self.to_device(tensor)
    }

    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        self.share_output(output)
    }

    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError> {
        self.bind_input(input, tensor)
    }

    fn unbind(&mut self, input: &str) -> Result<(), RunError> {
        self.unbind_input(input)
    }

    fn timings(&mut self) -> Vec<StepTime> {
        let program = &self.program;
        let times = self.driver.get_mut().step_times().into_iter();
        let timed = times.map(|(at, start_ns, ns)| {
            let step = &program.steps[at];
            let kernel = match &step.work {
                Work::Dispatch(d) => program.kernels[d.kernel.0 as usize].to_string(),
                Work::Copy { .. } => "copy".to_string(),
                Work::Fill { .. } => "fill".to_string(),
            };
            let op = step.op;
            StepTime {
                op,
                kernel,
                start_ns,
                ns,
            }
        });
        timed.collect()
    }

    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        self.start(inputs, Wanted::All)?;
        self.finish(outputs)
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        let program = Arc::clone(&self.program);
        let (at, port) = find_port(&program.signature.states, "state", name)?;
        port.check("state", tensor)?;
        self.send("state", port, &program.states[at], tensor)
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        let (at, port) = find_port(&self.program.signature.states, "state", name)?;
        let ty: TensorType = port.ty.eval(&Bindings::new())?;
        let slot = *self.program.slot(self.program.states[at].slot);
        let mut tensor = Tensor::zeros(ty.clone())?;
        if ty.numel() == 0 {
            return Ok(tensor);
        }
        let read = Read {
            buffer: slot.buffer,
            offset_bytes: slot.offset_bytes,
            bytes: narrow::device_bytes(&ty).next_multiple_of(4) as u64,
        };
        let take = &mut |bytes: &[u8]| narrow::decode(bytes, &mut tensor);
        self.driver.borrow_mut().read(read, take)?;
        Ok(tensor)
    }

    fn random(&self) -> Random {
        self.random
    }

    fn set_random(&mut self, random: Random) {
        self.random = random;
        if let Some(flight) = &mut self.flight {
            flight.counts = false;
        }
    }

    fn reset(&mut self) {
        self.set_random(Random {
            counter: 0,
            ..self.random
        });
        for at in 0..self.program.signature.states.len() {
            // A lost device says so at the next run.
            let _ = self.driver.get_mut().clear(Buffer::State(at as u32));
        }
    }

    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError> {
        let driver = self.driver.borrow_mut().try_clone()?;
        let program = Arc::clone(&self.program);
        let mut clone = GpuExecutable::new(program, driver, self.bounds.clone());
        clone.params_set.clone_from(&self.params_set);
        clone.prepared = self.prepared;
        clone.random = self.random;
        clone.inputs = self.inputs.rebound();
        Ok(Box::new(clone))
    }
}
