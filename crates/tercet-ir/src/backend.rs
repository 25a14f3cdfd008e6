//! What every executor offers: [`Backend`] compiles a graph, [`Executable`] runs it.

mod device_tensor;
mod explain;
mod last_run;
mod options;
mod signature;

pub use device_tensor::{DeviceMemory, DeviceTensor};
pub use explain::{Explanation, KernelUse};
pub use last_run::{LastRun, no_run, places, rows_of};
pub use options::{CompileOptions, Keep, Kept};
pub use signature::{Port, Signature, find_port};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::dim::Bindings;
use crate::dtype::DType;
use crate::error::{CompileError, RunError};
use crate::graph::{Graph, Node};
use crate::quant::Scheme;
use crate::random::Random;
use crate::tensor::Tensor;

/// Whether a target runs a node as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It has a kernel.
    Native,
    /// It has none, with the reason.
    Missing {
        /// Why, for example `no kernel for f64`.
        reason: String,
    },
}

impl Support {
    /// True for [`Support::Native`].
    pub fn is_native(&self) -> bool {
        *self == Support::Native
    }
}

/// What a device can run; derived from its kernel table, never from a list kept by hand.
pub trait Target {
    /// The executor's name, for errors.
    fn name(&self) -> &'static str;

    /// Whether the node, whose inputs are values of `graph`, runs as it is.
    fn supports(&self, graph: &Graph, node: &Node) -> Support;
}

/// Refuses graphs without results and symbols without bounds.
///
/// # Errors
/// [`CompileError::NoOutputs`] or [`CompileError::Unbounded`].
pub fn check_borders(graph: &Graph, bounds: &Bindings) -> Result<(), CompileError> {
    if graph.results().next().is_none() {
        return Err(CompileError::NoOutputs);
    }
    match graph
        .symbols()
        .into_iter()
        .find(|s| bounds.get(s).is_none())
    {
        Some(symbol) => Err(CompileError::Unbounded { symbol }),
        None => Ok(()),
    }
}

/// How long a step took on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// The operator.
    pub op: &'static str,
    /// The kernel.
    pub kernel: String,
    /// When it started, in nanoseconds from the start of the first step.
    pub start_ns: u64,
    /// How long it took, in nanoseconds.
    pub ns: u64,
}

/// Which outputs of a run are read back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted<'a> {
    /// All, in the order of the signature.
    All,
    /// These, in this order.
    Only(&'a [&'a str]),
}

/// A tensor on its way from a device; it does not hold the executable.
pub type Fetch = Pin<Box<dyn Future<Output = Result<Tensor, RunError>> + Send>>;

/// A device that compiles graphs.
pub trait Backend: Send + Sync {
    /// The executor's name: `cpu`, `reference`, `wgpu`, `vulkan`.
    fn name(&self) -> &'static str;

    /// The types that [`CompileOptions::products`] may name to gain something: those of 16 bits that the device
    /// multiplies faster than F32.
    fn products(&self) -> Vec<DType>;

    /// The same for products with packed weights only: at least those of [`Backend::products`].
    fn packed_products(&self) -> Vec<DType> {
        self.products()
    }

    /// Rows up to which a product with weights that are packed in this scheme gains by more of them in one run; beyond, it takes kernels of long
    /// prompts. None where each row takes its time, as on processors.
    fn packed_rows(&self, scheme: Scheme) -> Option<usize>;

    /// Compiles a graph.
    ///
    /// # Errors
    /// [`CompileError`] that lists every node the device cannot run, or names the symbol without a
    /// bound.
    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError>;

    /// What [`Backend::compile`] would run; nothing is allocated on the device.
    ///
    /// # Errors
    /// As [`Backend::compile`].
    fn explain(&self, graph: &Graph, options: &CompileOptions)
    -> Result<Explanation, CompileError>;
}

impl<B: Backend + ?Sized> Backend for Arc<B> {
    fn name(&self) -> &'static str {
        (**self).name()
    }

    fn products(&self) -> Vec<DType> {
        (**self).products()
    }

    fn packed_products(&self) -> Vec<DType> {
        (**self).packed_products()
    }

    fn packed_rows(&self, scheme: Scheme) -> Option<usize> {
        (**self).packed_rows(scheme)
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        (**self).compile(graph, options)
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        (**self).explain(graph, options)
    }
}

/// A compiled graph with its parameters and state.
///
/// Parameters are set before the first run. States start as zeros. A failed run leaves the
/// executable usable and its states as they were before the run.
pub trait Executable: Send {
    /// The names and types of inputs, parameters, states and outputs.
    fn signature(&self) -> &Signature;

    /// Sets a parameter. The memory is shared, not copied, where the executor can use it as it is.
    ///
    /// # Errors
    /// [`RunError`] when there is no such parameter or its type differs.
    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError>;

    /// Runs the graph on these inputs and writes the results, in the order of the outputs, into
    /// `outputs`, whose memory is reused: after a first run of the same sizes nothing is allocated.
    ///
    /// # Errors
    /// [`RunError`] that names the input, symbol or node.
    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError>;

    /// Starts a run on these inputs, which are copied, but for those that a GPU holds already because they are the same as
    /// in the run before; [`Executable::wait`] gives its results. A run
    /// that was started before and not waited for is finished first, its results dropped.
    ///
    /// # Errors
    /// [`RunError`] that names the input, output or symbol.
    fn submit(&mut self, inputs: &[(&str, &Tensor)], wanted: Wanted<'_>) -> Result<(), RunError>;

    /// Starts a run behind the one under way, before its results are there: the device goes from one to the other without
    /// waiting for the host. `carried` are inputs, each with the output of the run under way that it takes its value from, of
    /// the same type; `inputs` are the others. [`Executable::wait`] gives the results of the older run first. Two runs are under way at
    /// most.
    ///
    /// False, and nothing is started, where the executor cannot: without a run under way or with another behind it, for other sizes
    /// than those of that run, where data decides what is played, and on those that compute while they submit. Whoever
    /// called then waits, and submits as ever.
    ///
    /// Where data makes the older run fail, so does the run behind it work on what it was not meant for: states are not
    /// those before, as they are after a run that fails alone.
    ///
    /// # Errors
    /// [`RunError`] that names the input, output or symbol; nothing is started, and the run under way goes on.
    fn submit_behind(
        &mut self,
        inputs: &[(&str, &Tensor)],
        carried: &[(&str, &str)],
        wanted: Wanted<'_>,
    ) -> Result<bool, RunError>;

    /// Waits for the run under way, the older one of two, and writes the wanted outputs into `outputs`, whose memory is
    /// reused; without such a run `outputs` is emptied.
    ///
    /// # Errors
    /// [`RunError`] that names the node.
    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError>;

    /// Carries the run started last on, as far as it goes without blocking the thread, and is ready when
    /// [`Executable::wait`] does not block. Else the waker of `cx` is called when it is worth asking again. Ready, too,
    /// without such a run. Only `wgpu` is told by the device when work is done: on `vulkan` this waits for it, and on the CPU
    /// [`Executable::submit`] did all.
    ///
    /// # Errors
    /// [`RunError`] that names the node; the run is over then.
    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>>;

    /// Starts to read what [`Executable::read_output_rows`] reads, without waiting for it where the executor can.
    ///
    /// # Errors
    /// As [`Executable::read_output_rows`].
    fn fetch_output_rows(
        &mut self,
        output: &str,
        rows: std::ops::Range<usize>,
    ) -> Result<Fetch, RunError>;

    /// Starts to read what [`Executable::read_state`] reads, without waiting for it where the executor can.
    ///
    /// # Errors
    /// As [`Executable::read_state`].
    fn fetch_state(&mut self, name: &str) -> Result<Fetch, RunError>;

    /// Rows of an output of the last completed run: `rows` of its first axis. Outputs stay where
    /// they were computed, so that a large one need not be read back to see a part.
    ///
    /// # Errors
    /// [`RunError`] when there is no such output, no run yet, or no such rows.
    fn read_output_rows(
        &mut self,
        output: &str,
        rows: std::ops::Range<usize>,
    ) -> Result<Tensor, RunError>;

    /// Copies a tensor to this executable's device.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`]; [`RunError::Narrow`] for an integer that the device cannot
    /// hold.
    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError>;

    /// An output of the last completed run as a tensor of its own on the device, where it can be an input of this or
    /// another executable of the same device. It is a copy there (on the host, shared memory): later runs do not change
    /// it.
    ///
    /// # Errors
    /// [`RunError`] when there is no such output, no completed run, or no room.
    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError>;

    /// Lets go of the memory of outputs that were given: it is that of whoever has the tensors, who can write there without
    /// a copy. Outputs of that run may not be readable afterwards ([`Executable::read_output_rows`],
    /// [`Executable::output_on_device`]).
    fn release_outputs(&mut self);

    /// Binds an input to a tensor on the device, from the next run on: runs need not be given it any more. A run that
    /// is given the input all the same takes what it is given, that once. A binding stays after
    /// [`Executable::reset`], and clones have it, too. Sizes may differ from binding to binding within the bounds.
    ///
    /// # Errors
    /// [`RunError::UnknownName`], [`RunError::Type`]; [`RunError::OtherDevice`] for a tensor of another executor or
    /// another of its devices.
    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError>;

    /// Ends a binding: runs must be given the input again.
    ///
    /// # Errors
    /// [`RunError::UnknownName`].
    fn unbind(&mut self, input: &str) -> Result<(), RunError>;

    /// The times on the device of the steps of the last run in the order played, where the device was opened to
    /// measure them; else empty. Steps of a loop are there once for each iteration.
    fn timings(&mut self) -> Vec<StepTime>;

    /// Replaces the contents of a state.
    ///
    /// # Errors
    /// [`RunError`] when there is no such state or its type differs.
    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError>;

    /// A copy of the contents of a state.
    ///
    /// # Errors
    /// [`RunError`] when there is no such state.
    fn read_state(&self, name: &str) -> Result<Tensor, RunError>;

    /// The seed of random numbers, if one was set, and the counter of the next run.
    fn random(&self) -> Random;

    /// Sets the seed and the counter of random numbers from the next run on; nothing is compiled. With a seed, every
    /// random operator draws what it would had the graph been built with this one; operators stay apart by their
    /// streams, which differ in every graph that was built by [`Graph`]'s methods. The counter goes up by one with
    /// each completed run, and by none for a run under way now. The same seed, counter, inputs and states give the
    /// same results, on every executor.
    fn set_random(&mut self, random: Random);

    /// Sets every state to zeros and the counter of random numbers to 0. Parameters stay, and so does a seed that was
    /// set.
    fn reset(&mut self);

    /// Another executable of the same program that shares the parameters and has a copy of the
    /// states.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`] when there is no room for it.
    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError>;
}

impl dyn Executable + '_ {
    /// Waits, without blocking the thread where the executor can ([`Executable::poll_run`]), until
    /// [`Executable::wait`] does not block: the only way to results in a browser.
    ///
    /// # Errors
    /// As [`Executable::poll_run`].
    pub async fn finished(&mut self) -> Result<(), RunError> {
        std::future::poll_fn(|cx| self.poll_run(cx)).await
    }

    /// As [`Executable::submit`] and [`Executable::wait`], awaiting the results. Dropped before it is ready, it leaves a run
    /// under way, whose results the next run discards.
    ///
    /// # Errors
    /// [`RunError`] that names the input, output, symbol or node.
    pub async fn run_async(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: Wanted<'_>,
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        // One that was dropped before; what became of it concerns nobody, and a lost device is told below.
        let _ = self.finished().await;
        self.submit(inputs, wanted)?;
        self.finished().await?;
        self.wait(outputs)
    }

    /// Runs the graph on these inputs and returns the results in the order of the outputs.
    ///
    /// # Errors
    /// [`RunError`] that names the input, symbol or node.
    pub fn run(&mut self, inputs: &[(&str, &Tensor)]) -> Result<Vec<Tensor>, RunError> {
        let mut outputs = Vec::new();
        self.run_into(inputs, &mut outputs)?;
        Ok(outputs)
    }

    /// Runs the graph on these inputs and returns only the named outputs, in this order.
    ///
    /// # Errors
    /// [`RunError`] that names the input, output, symbol or node.
    pub fn run_outputs(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &[&str],
    ) -> Result<Vec<Tensor>, RunError> {
        let mut results = Vec::new();
        self.submit(inputs, Wanted::Only(outputs))?;
        self.wait(&mut results)?;
        Ok(results)
    }
}
