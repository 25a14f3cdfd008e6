//! A compiled graph on a wgpu device.

use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};

use tercet_ir::backend::{DeviceTensor, OutputSelection, StepTime, TensorFuture};
use tercet_ir::random::RngState;
use tercet_ir::{Executable, RunError, Signature, Tensor};
use tercet_plan::{GpuExecutable, GpuProgram};

use crate::driver::WgpuDriver;

/// A compiled graph on a wgpu device.
///
/// Browsers do not allow blocking. Use [`WgpuExecutable::run_async`] there, or `submit`, `finished`
/// and `wait` in this order, and read with `fetch_state` and `fetch_output_rows`. Blocking calls
/// (`run`, `read_state`, `read_output_rows`, or `wait` before `finished` is ready) return an error
/// in a browser.
///
/// ```
/// use tercet_ir::backend::OutputSelection;
/// use tercet_ir::{CompileOptions, Executable, Graph, Tensor};
/// use tercet_wgpu::WgpuBackend;
/// /// Runs a graph with the input `x` without blocking.
/// async fn run(
///     backend: &WgpuBackend,
///     g: &Graph,
///     x: &Tensor,
/// ) -> Result<Vec<Tensor>, Box<dyn std::error::Error>> {
///     let mut exe = backend.compile_async(g, &CompileOptions::new()).await?;
///     let mut outputs = Vec::new();
///     exe.run_async(&[("x", x)], OutputSelection::All, &mut outputs).await?;
///     assert_eq!(outputs.len(), exe.signature().outputs.len());
///     Ok(outputs)
/// }
/// ```
pub struct WgpuExecutable {
    inner: GpuExecutable<WgpuDriver>,
}

impl WgpuExecutable {
    pub(crate) fn new(inner: GpuExecutable<WgpuDriver>) -> WgpuExecutable {
        WgpuExecutable { inner }
    }

    /// The compiled GPU program.
    pub fn program(&self) -> &Arc<GpuProgram> {
        self.inner.program()
    }

    /// Runs the graph on these inputs and writes the requested outputs into `outputs`, without
    /// blocking the thread. The first poll uploads the inputs. If the future is dropped before it
    /// is ready, the run continues on the device and the next run discards its results.
    ///
    /// # Errors
    /// As [`Executable::run_into`].
    pub async fn run_async(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        let exe: &mut dyn Executable = &mut self.inner;
        exe.run_async(inputs, wanted, outputs).await
    }

    /// The executable type that all GPU runtimes share, with the wgpu driver.
    pub fn inner(&mut self) -> &mut GpuExecutable<WgpuDriver> {
        &mut self.inner
    }
}

impl Executable for WgpuExecutable {
    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError> {
        self.inner.set_param(name, tensor)
    }

    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        self.inner.run_into(inputs, outputs)
    }

    fn submit(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError> {
        self.inner.submit(inputs, wanted)
    }

    fn submit_pipelined(
        &mut self,
        inputs: &[(&str, &Tensor)],
        carried: &[(&str, &str)],
        wanted: OutputSelection<'_>,
    ) -> Result<bool, RunError> {
        self.inner.submit_pipelined(inputs, carried, wanted)
    }

    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError> {
        self.inner.wait(outputs)
    }

    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>> {
        Executable::poll_run(&mut self.inner, cx)
    }

    fn fetch_output_rows(
        &mut self,
        output: &str,
        rows: Range<usize>,
    ) -> Result<TensorFuture, RunError> {
        self.inner.fetch_output_rows(output, rows)
    }

    fn fetch_state(&mut self, name: &str) -> Result<TensorFuture, RunError> {
        self.inner.fetch_state(name)
    }

    fn read_output_rows(&mut self, output: &str, rows: Range<usize>) -> Result<Tensor, RunError> {
        self.inner.read_output_rows(output, rows)
    }

    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError> {
        self.inner.upload(tensor)
    }

    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError> {
        self.inner.output_on_device(output)
    }

    fn release_outputs(&mut self) {
        self.inner.release_outputs();
    }

    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError> {
        self.inner.bind(input, tensor)
    }

    fn unbind(&mut self, input: &str) -> Result<(), RunError> {
        self.inner.unbind(input)
    }

    fn kernel_variants(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<u32>, RunError> {
        self.inner.kernel_variants(inputs)
    }

    fn timings(&mut self) -> Vec<StepTime> {
        self.inner.timings()
    }

    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError> {
        self.inner.write_state(name, tensor)
    }

    fn read_state(&self, name: &str) -> Result<Tensor, RunError> {
        self.inner.read_state(name)
    }

    fn write_state_elements(
        &mut self,
        name: &str,
        first: usize,
        values: &Tensor,
    ) -> Result<(), RunError> {
        self.inner.write_state_elements(name, first, values)
    }

    fn read_state_elements(&self, name: &str, elements: Range<usize>) -> Result<Tensor, RunError> {
        self.inner.read_state_elements(name, elements)
    }

    fn random(&self) -> RngState {
        self.inner.random()
    }

    fn set_random(&mut self, random: RngState) {
        self.inner.set_random(random);
    }

    fn reset(&mut self) {
        self.inner.reset();
    }

    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError> {
        self.inner.try_clone()
    }
}
