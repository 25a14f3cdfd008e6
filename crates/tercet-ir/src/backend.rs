//! The interface of every executor: [`Backend`] compiles a graph, [`Executable`] runs it.

mod debug_switches;
mod device_tensor;
mod explain;
mod last_run;
mod named_outputs;
mod options;
mod per_size;
mod signature;
mod state_elements;
mod switches;

pub use debug_switches::{BarrierOverride, DebugSwitches};
pub use device_tensor::{DeviceMemory, DeviceTensor};
pub use explain::{Explanation, KernelUse};
pub use last_run::{LastRun, no_run, places, rows_of};
pub use named_outputs::NamedOutputs;
pub use options::{CompileOptions, RetainValues, RetainedValue};
pub use per_size::{PerSizeError, PerSizeExecutable};
pub use signature::{Port, Signature, find_port};
pub use state_elements::{elements_of, replaced_elements};
pub use switches::{DeviceSwitches, SwitchError, SwitchableFeature, VariantFamily, VariantName};

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tercet_tensor::quant::Scheme;
use tercet_tensor::random::RngState;
use tercet_tensor::{Bindings, DType, Tensor};

use crate::error::{CompileError, RunError};
use crate::graph::{Graph, Node};

/// Whether a target can run a node without rewriting it.
///
/// ```
/// use tercet_ir::Support;
/// let missing = Support::Missing { reason: "no kernel for f64".to_string() };
/// assert!(Support::Native.is_native());
/// assert!(!missing.is_native());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// The target has a kernel for the node.
    Native,
    /// The target has no kernel for the node.
    Missing {
        /// Why the node is unsupported, for example `no kernel for f64`.
        reason: String,
    },
}

impl Support {
    /// True for [`Support::Native`].
    pub fn is_native(&self) -> bool {
        *self == Support::Native
    }
}

/// The nodes that a device can run. Implementations derive the answer from their kernel table, not
/// from a separate list.
///
/// ```
/// # use tercet_ir::{DType, Graph, Node, Type};
/// use tercet_ir::{OpKind, Support, Target, legalize::legalize};
/// struct Device;
/// impl Target for Device {
/// #    fn name(&self) -> &'static str {
/// #        "device"
/// #    }
///     fn supports(&self, _: &Graph, node: &Node) -> Support {
///         match node.op.kind() {
///             OpKind::Softmax => Support::Missing { reason: "no kernel".to_string() },
///             _ => Support::Native,
///         }
///     }
/// }
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [2, 3]))?;
/// # let y = g.softmax(x, 1)?;
/// # g.output("y", y)?;
/// let legal = legalize(&g, &Device)?;
/// assert!(legal.nodes().all(|(_, node)| node.op.kind() != OpKind::Softmax));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Target {
    /// The executor's name, for error messages.
    fn name(&self) -> &'static str;

    /// Whether the target runs the node without rewriting. The node's inputs are values of `graph`.
    fn supports(&self, graph: &Graph, node: &Node) -> Support;
}

/// Checks that the graph has outputs and that every symbol has an upper bound.
///
/// # Errors
/// [`CompileError::NoOutputs`] or [`CompileError::Unbounded`].
pub fn check_interface(graph: &Graph, bounds: &Bindings) -> Result<(), CompileError> {
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

/// Measured device time of one step.
///
/// ```
/// use tercet_ir::backend::StepTime;
/// let step = |op, start_ns, ns| StepTime { op, kernel: format!("{op}_f32"), start_ns, ns };
/// let times = [step("mat_mul", 0, 900), step("softmax", 1000, 100)];
/// let busy: u64 = times.iter().map(|t| t.ns).sum();
/// let end = times.iter().map(|t| t.start_ns + t.ns).max();
/// assert_eq!((busy, end), (1000, Some(1100)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTime {
    /// The operator of the step.
    pub op: &'static str,
    /// The kernel of the step.
    pub kernel: String,
    /// Start time in nanoseconds, from the start of the first step.
    pub start_ns: u64,
    /// Duration in nanoseconds.
    pub ns: u64,
}

/// Which outputs of a run are copied back to the host.
///
/// ```
/// use tercet_ir::backend::{OutputSelection, places};
/// use tercet_ir::{DType, Graph, Signature, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [4]))?;
/// g.output("copy", x)?;
/// let y = g.exp(x)?;
/// g.output("y", y)?;
/// let signature = Signature::of(&g);
/// assert_eq!(places(&signature, OutputSelection::All)?, [0, 1]);
/// assert_eq!(places(&signature, OutputSelection::Only(&["y"]))?, [1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputSelection<'a> {
    /// All outputs are copied, in the order of the signature.
    All,
    /// Only the outputs with these names are copied, in this order.
    Only(&'a [&'a str]),
}

/// A future for a tensor that is being read back from the device. The future does not borrow the
/// executable.
pub type TensorFuture = Pin<Box<dyn Future<Output = Result<Tensor, RunError>> + Send>>;

/// A device that compiles graphs.
///
/// ```
/// # use tercet_ir::backend::{Explanation, check_interface};
/// # use tercet_ir::{CompileError, DType, Executable, Graph, Scheme, Type};
/// use tercet_ir::{Backend, CompileOptions};
/// # type Compiled = Result<Box<dyn Executable>, CompileError>;
/// # struct Stub;
/// # impl Backend for Stub {
/// #     fn name(&self) -> &'static str { "stub" }
/// #     fn fast_matmul_dtypes(&self) -> Vec<DType> { vec![DType::F16] }
/// #     fn max_small_m_rows(&self, _: Scheme) -> Option<usize> { None }
/// #     fn compile(&self, _: &Graph, _: &CompileOptions) -> Compiled {
/// #         Err(CompileError::NoOutputs)
/// #     }
/// #     fn explain(&self, g: &Graph, o: &CompileOptions) -> Result<Explanation, CompileError> {
/// #         check_interface(g, &o.bounds)?;
/// #         Ok(Explanation { dispatches: 1, ..Explanation::default() })
/// #     }
/// # }
/// # fn open() -> Box<dyn Backend> { Box::new(Stub) }
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [4]))?;
/// # let y = g.exp(x)?;
/// # g.output("y", y)?;
/// // `open` returns any executor, for example that of a GPU.
/// let backend: Box<dyn Backend> = open();
/// assert_eq!(backend.explain(&g, &CompileOptions::new())?.dispatches, 1);
/// assert!(backend.fast_quant_matmul_dtypes().contains(&DType::F16));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Backend: Send + Sync {
    /// The executor's name: `cpu`, `reference`, `wgpu`, `vulkan`.
    fn name(&self) -> &'static str;

    /// The 16-bit dtypes that the device multiplies faster than F32. Setting one of them as
    /// [`CompileOptions::matmul_precision`] speeds up matmuls.
    fn fast_matmul_dtypes(&self) -> Vec<DType>;

    /// As [`Backend::fast_matmul_dtypes`], for matmuls with quantized weights only. It contains at
    /// least the dtypes of that method.
    fn fast_quant_matmul_dtypes(&self) -> Vec<DType> {
        self.fast_matmul_dtypes()
    }

    /// Maximum rows for which batching into one quantized matmul of this scheme is profitable.
    /// Larger batches use the prefill kernels. `None` if the time of a matmul grows with every row,
    /// as on CPUs.
    fn max_small_m_rows(&self, scheme: Scheme) -> Option<usize>;

    /// Returns the kernel families with variants that a switch can force or forbid; none by default.
    fn variant_families(&self) -> Vec<VariantFamily> {
        Vec::new()
    }

    /// The device and its driver, for example `NVIDIA H100, NVIDIA 570.86`. Results of devices with
    /// different descriptions may differ in their last bits.
    fn description(&self) -> String {
        self.name().to_string()
    }

    /// Free memory of the device in bytes, for choosing sizes before compiling. `None` if the
    /// driver does not report free memory.
    fn free_memory_bytes(&self) -> Option<u64> {
        None
    }

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

    /// Describes the program that [`Backend::compile`] would produce, without allocating on the
    /// device.
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

    fn fast_matmul_dtypes(&self) -> Vec<DType> {
        (**self).fast_matmul_dtypes()
    }

    fn fast_quant_matmul_dtypes(&self) -> Vec<DType> {
        (**self).fast_quant_matmul_dtypes()
    }

    fn max_small_m_rows(&self, scheme: Scheme) -> Option<usize> {
        (**self).max_small_m_rows(scheme)
    }

    fn variant_families(&self) -> Vec<VariantFamily> {
        (**self).variant_families()
    }

    fn description(&self) -> String {
        (**self).description()
    }

    fn free_memory_bytes(&self) -> Option<u64> {
        (**self).free_memory_bytes()
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

/// A compiled graph with its parameters and states.
///
/// Parameters are set before the first run. States start as zeros. After a failed run the
/// executable remains usable, and its states have their values from before the run.
///
/// ```
/// use tercet_ir::{Executable, RunError, Tensor};
///
/// /// Runs a graph on any device and returns the output `logits`.
/// fn logits(exe: &mut dyn Executable, tokens: &Tensor) -> Result<Tensor, RunError> {
///     let mut outputs = exe.run_outputs(&[("tokens", tokens)], &["logits"])?;
///     Ok(outputs.remove(0))
/// }
/// # let _: fn(&mut dyn Executable, &Tensor) -> Result<Tensor, RunError> = logits;
/// ```
pub trait Executable: Send {
    /// The names and types of inputs, parameters, states and outputs.
    fn signature(&self) -> &Signature;

    /// Sets a parameter. The memory is shared without a copy if the executor supports its layout.
    ///
    /// # Errors
    /// [`RunError`] when the parameter does not exist or its type differs.
    fn set_param(&mut self, name: &str, tensor: Tensor) -> Result<(), RunError>;

    /// Runs the graph on these inputs and writes the results into `outputs`, in the order of the
    /// outputs. The memory of `outputs` is reused: a second run with the same sizes allocates
    /// nothing.
    ///
    /// # Errors
    /// [`RunError`] that names the input, symbol or node.
    fn run_into(
        &mut self,
        inputs: &[(&str, &Tensor)],
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError>;

    /// Starts a run on these inputs; [`Executable::wait`] returns its results. The inputs are
    /// copied, except those that are unchanged since the previous run and are already on the GPU.
    /// If an earlier run was started and not waited for, that run is finished first and its results
    /// are dropped.
    ///
    /// # Errors
    /// [`RunError`] that names the input, output or symbol.
    fn submit(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError>;

    /// Enqueues a run whose inputs are outputs of the run in flight. The device starts the new run
    /// without waiting for the host. `carried` pairs each such input with an output of the run in
    /// flight of the same type; `inputs` are all other inputs. [`Executable::wait`] returns the
    /// results of the older run first. At most two runs are in flight.
    ///
    /// Returns false, without starting anything, if the executor cannot enqueue the run. Reasons:
    /// no run is in flight, or two already are; the sizes differ from those of the run in flight;
    /// the executed steps depend on data; or the executor computes during `submit`. The caller then
    /// waits and calls [`Executable::submit`].
    ///
    /// If the data makes the older run fail, the enqueued run computes on invalid inputs. The
    /// states of the older run are then not restored, unlike after a single failed run.
    ///
    /// # Errors
    /// [`RunError`] that names the input, output or symbol. The new run is not started, and the run
    /// in flight continues.
    fn submit_pipelined(
        &mut self,
        inputs: &[(&str, &Tensor)],
        carried: &[(&str, &str)],
        wanted: OutputSelection<'_>,
    ) -> Result<bool, RunError>;

    /// Blocks until the run in flight ends (the older one of two) and writes the requested outputs
    /// into `outputs`, whose memory is reused. Without a run in flight, `outputs` is cleared.
    ///
    /// # Errors
    /// [`RunError`] that names the node.
    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError>;

    /// Advances the latest run without blocking the thread. Ready when [`Executable::wait`] would
    /// not block, and also without a run in flight. Otherwise the executor wakes `cx` when polling
    /// again is useful. Only `wgpu` is notified by the device when work completes. On `vulkan` this
    /// call blocks, and on the CPU [`Executable::submit`] has already done the work.
    ///
    /// # Errors
    /// [`RunError`] that names the node; the run has then ended.
    fn poll_run(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), RunError>>;

    /// Asynchronous form of [`Executable::read_output_rows`], if the executor supports it.
    ///
    /// # Errors
    /// As [`Executable::read_output_rows`].
    fn fetch_output_rows(
        &mut self,
        output: &str,
        rows: std::ops::Range<usize>,
    ) -> Result<TensorFuture, RunError>;

    /// Asynchronous form of [`Executable::read_state`], if the executor supports it.
    ///
    /// # Errors
    /// As [`Executable::read_state`].
    fn fetch_state(&mut self, name: &str) -> Result<TensorFuture, RunError>;

    /// Reads `rows` of the first axis of an output of the last completed run. Outputs remain on the
    /// device, so a part of a large output can be read without copying all of it.
    ///
    /// # Errors
    /// [`RunError`] when the output or the rows do not exist, or no run has completed.
    fn read_output_rows(
        &mut self,
        output: &str,
        rows: std::ops::Range<usize>,
    ) -> Result<Tensor, RunError>;

    /// Copies a tensor to this executable's device.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`], [`RunError::DeviceLost`]; [`RunError::Narrow`] for an integer
    /// that does not fit the device's integer type.
    fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, RunError>;

    /// An output of the last completed run as a separate tensor on the device. The tensor can be an
    /// input of this or another executable of the same device. The tensor is a copy (on the host,
    /// shared memory), so later runs do not change it.
    ///
    /// # Errors
    /// [`RunError`] when the output does not exist, no run has completed, or memory is exhausted.
    fn output_on_device(&mut self, output: &str) -> Result<DeviceTensor, RunError>;

    /// Releases the executable's reference to output memory that it has returned. The owner of the
    /// returned tensors can then write to their memory without a copy. Outputs of that run may not
    /// be readable afterwards ([`Executable::read_output_rows`], [`Executable::output_on_device`]).
    fn release_outputs(&mut self);

    /// Binds an input to a tensor on the device, from the next run on. Runs may then omit the
    /// input. If a run provides the bound input anyway, the provided tensor is used for that run
    /// only. A binding persists after [`Executable::reset`], and clones of the executable have the
    /// same binding. Sizes may differ between bindings, within the bounds.
    ///
    /// # Errors
    /// [`RunError::UnknownName`], [`RunError::Type`]; [`RunError::OtherDevice`] for a tensor of
    /// another executor or another of its devices.
    fn bind(&mut self, input: &str, tensor: &DeviceTensor) -> Result<(), RunError>;

    /// Removes a binding: runs must provide the input again.
    ///
    /// # Errors
    /// [`RunError::UnknownName`].
    fn unbind(&mut self, input: &str) -> Result<(), RunError>;

    /// Kernel variants that a run with inputs of these shapes would use: an index for each choice that
    /// depends on sizes, in a fixed order. If the indices of two runs are equal, each row of a matmul
    /// has the same bits in both. Values of the inputs are not read.
    ///
    /// # Errors
    /// [`RunError`] if the shapes do not match the signature.
    fn kernel_variants(&self, inputs: &[(&str, &Tensor)]) -> Result<Vec<u32>, RunError>;

    /// Device times of the steps of the last run, in execution order. Empty unless the device was
    /// opened with timing enabled. The steps of a loop appear once per iteration.
    fn timings(&mut self) -> Vec<StepTime>;

    /// Replaces the contents of a state.
    ///
    /// # Errors
    /// [`RunError`] when the state does not exist or its type differs.
    fn write_state(&mut self, name: &str, tensor: &Tensor) -> Result<(), RunError>;

    /// A copy of the contents of a state.
    ///
    /// # Errors
    /// [`RunError`] when the state does not exist.
    fn read_state(&self, name: &str) -> Result<Tensor, RunError>;

    /// Replaces consecutive elements of a state, in row-major order, from the element `first` on. The
    /// default writes the whole state.
    ///
    /// # Errors
    /// [`RunError`] when the state does not exist, its dtype differs, or the elements exceed it.
    fn write_state_elements(
        &mut self,
        name: &str,
        first: usize,
        values: &Tensor,
    ) -> Result<(), RunError> {
        let (_, port) = find_port(&self.signature().states, "state", name)?;
        let elements = replaced_elements(port, first, values)?;
        let size = values.dtype().size_bytes();
        let mut state = self.read_state(name)?;
        state.bytes_mut()[elements.start * size..elements.end * size]
            .copy_from_slice(values.bytes());
        self.write_state(name, &state)
    }

    /// A copy of consecutive elements of a state, in row-major order, as a tensor of one axis. The
    /// default reads the whole state.
    ///
    /// # Errors
    /// [`RunError`] when the state does not exist or the elements exceed it.
    fn read_state_elements(
        &self,
        name: &str,
        elements: std::ops::Range<usize>,
    ) -> Result<Tensor, RunError> {
        let (_, port) = find_port(&self.signature().states, "state", name)?;
        let ty = elements_of(port, &elements)?;
        let size = ty.dtype.size_bytes();
        let state = self.read_state(name)?;
        let bytes = &state.bytes()[elements.start * size..elements.end * size];
        Ok(Tensor::from_bytes(ty, bytes)?)
    }

    /// The random seed, if one was set, and the random counter of the next run.
    fn random(&self) -> RngState;

    /// Sets the seed and the counter of random numbers from the next run on; nothing is recompiled.
    ///
    /// A seed replaces the seed of every random operator of the graph. Operators still draw
    /// different numbers, because their streams differ in every graph that was built by [`Graph`]'s
    /// methods. The counter increases by one with each completed run; a run in flight does not
    /// change it. The same seed, counter, inputs and states give the same results on every
    /// executor.
    fn set_random(&mut self, random: RngState);

    /// Sets every state to zeros and the random counter to 0. Parameters and a seed that was set
    /// are unchanged.
    fn reset(&mut self);

    /// Another executable of the same program. The new executable shares the parameters and copies
    /// the states.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`] when the copy does not fit in memory.
    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError>;
}

impl dyn Executable + '_ {
    /// Completes when [`Executable::wait`] would not block. Waiting does not block the thread if
    /// the executor supports that ([`Executable::poll_run`]). In a browser, this is the only way to
    /// wait for results.
    ///
    /// # Errors
    /// As [`Executable::poll_run`].
    pub async fn finished(&mut self) -> Result<(), RunError> {
        std::future::poll_fn(|cx| self.poll_run(cx)).await
    }

    /// Asynchronous form of [`Executable::submit`] and [`Executable::wait`]. If the future is
    /// dropped early, the run stays in flight and the next run discards its results.
    ///
    /// # Errors
    /// [`RunError`] that names the input, output, symbol or node.
    pub async fn run_async(
        &mut self,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
        outputs: &mut Vec<Tensor>,
    ) -> Result<(), RunError> {
        // Finishes an earlier run whose future was dropped. The error of that run is irrelevant;
        // `submit` below reports a lost device.
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

    /// Runs the graph on these inputs and returns the results by the names of the outputs.
    ///
    /// # Errors
    /// [`RunError`] that names the input, symbol or node.
    pub fn run_named(&mut self, inputs: &[(&str, &Tensor)]) -> Result<NamedOutputs, RunError> {
        let results = self.run(inputs)?;
        Ok(NamedOutputs::new(self.signature(), results))
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
        self.submit(inputs, OutputSelection::Only(outputs))?;
        self.wait(&mut results)?;
        Ok(results)
    }
}
