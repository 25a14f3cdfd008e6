//! Implementation of [`tercet_ir::Executable`] for compiled programs.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use tercet_ir::backend::{DeviceTensor, OutputSelection, StepTime, TensorFuture, find_port};
use tercet_ir::random::RngState;
use tercet_ir::{Executable, RunError, Signature, Tensor};

use super::{GpuExecutable, LoadedProgram};
use crate::program::{ProgramBuffer, StepOp};

impl<D: LoadedProgram> Executable for GpuExecutable<D> {
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
        if let Some(planes) = &program.param_io[at].soa_layout {
            let place = at as u32;
            self.launch.non_f16_params.retain(|p| *p != place);
            tensor.align()?;
            if !planes.fits_f16(tensor.bytes()) {
                self.launch.non_f16_params.push(place);
            }
            self.launched = None;
        }
        self.send("param", port, &program.param_io[at], &tensor)?;
        self.params_set[at] = true;
        Ok(())
    }

    fn submit(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError> {
        self.start(inputs, wanted)
    }

    fn submit_pipelined(
        &mut self,
        inputs: &[(&str, &Tensor)],
        carried: &[(&str, &str)],
        wanted: OutputSelection<'_>,
    ) -> Result<bool, RunError> {
        self.start_pipelined(inputs, carried, wanted)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.finish(outputs)
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        let part = self.output_part(output, &rows)?;
        let driver = self.driver.get_mut();
        part.read_now(driver)
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        GpuExecutable::poll_run(self, cx)
    }

    fn fetch_output_rows(
        &mut self,
        output: &str,
        rows: Range<usize>,
    ) -> Result<TensorFuture, RunError> {
        let part = self.output_part(output, &rows)?;
        let driver = self.driver.get_mut();
        part.fetch(driver)
    }

    fn fetch_state(&mut self, name: &str) -> Result<TensorFuture, RunError> {
        let part = self.state_part(name)?;
        let driver = self.driver.get_mut();
        part.fetch(driver)
    }

    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        self.to_device(tensor)
    }

    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        self.share_output(output)
    }

    /// Does nothing, because outputs are read back into host tensors that the executable does not
    /// keep.
    fn release_outputs(&mut self) {}

    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError> {
        self.bind_input(input, tensor)
    }

    fn unbind(&mut self, input: &str) -> Result<(), RunError> {
        self.unbind_input(input)
    }

    fn kernel_variants(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<u32>, RunError> {
        let sizes = self.sizes_of(inputs, &[])?;
        self.launch.branches(&self.program, &sizes)
    }

    fn timings(&mut self) -> Vec<StepTime> {
        let program = &self.program;
        let times = self.driver.get_mut().step_times().into_iter();
        // A driver may time all steps. In loops the sizes of the last iteration say nothing about
        // the others.
        let (is_plain, ran) = (program.flow.is_empty(), &self.launch.has_workgroups);
        let times = times.filter(|(at, ..)| !is_plain || ran.get(*at).is_none_or(|ran| *ran));
        let timed = times.map(|(at, start_ns, ns)| {
            let step = &program.steps[at];
            let kernel = match &step.work {
                StepOp::Dispatch(d) => program.kernels[d.kernel.0 as usize].to_string(),
                StepOp::Copy { .. } => "copy".to_string(),
                StepOp::Fill { .. } => "fill".to_string(),
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
        self.start(inputs, OutputSelection::All)?;
        self.finish(outputs)
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        let program = Arc::clone(&self.program);
        let (at, port) = find_port(&program.signature.states, "state", name)?;
        port.check("state", tensor)?;
        self.send("state", port, &program.states[at], tensor)
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        let part = self.state_part(name)?;
        part.read_now(&mut *self.driver.borrow_mut())
    }

    fn write_state_elements(
        &mut self,
        name: &str,
        first: usize,
        values: &Tensor,
    ) -> Result<(), RunError> {
        self.write_elements(name, first, values)
    }

    fn read_state_elements(&self, name: &str, elements: Range<usize>) -> Result<Tensor, RunError> {
        let part = self.state_elements(name, &elements)?;
        part.read_now(&mut *self.driver.borrow_mut())
    }

    fn random(&self) -> RngState {
        self.random
    }

    fn set_random(&mut self, random: RngState) {
        self.random = random;
        for flight in self.flight.iter_mut().chain(&mut self.pipelined) {
            flight.counts = false;
        }
    }

    fn reset(&mut self) {
        self.set_random(RngState {
            counter: 0,
            ..self.random
        });
        for at in 0..self.program.signature.states.len() {
            // A lost device is ignored here, because the next run reports it.
            let _ = self.driver.get_mut().clear(ProgramBuffer::State(at as u32));
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
