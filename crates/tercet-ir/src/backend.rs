//! What every executor offers: [`Backend`] compiles a graph, [`Executable`] runs it.

mod explain;
mod last_run;

pub use explain::{Explanation, KernelUse};
pub use last_run::{LastRun, no_run, places, rows_of};

use std::sync::Arc;

use crate::dim::{Bindings, Symbol};
use crate::error::{CompileError, RunError};
use crate::graph::{Graph, Node};
use crate::ops::Op;
use crate::tensor::Tensor;
use crate::types::Type;

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

/// Choices of a compilation.
#[derive(Clone, Debug, Default)]
pub struct CompileOptions {
    /// Upper bounds of the symbols.
    pub bounds: Bindings,
    /// Passes to leave out, by name; see [`crate::passes::PIPELINE`].
    pub without_passes: Vec<String>,
}

impl CompileOptions {
    /// No bounds, all passes.
    pub fn new() -> CompileOptions {
        CompileOptions::default()
    }

    /// Sets the upper bound of a symbol and returns the options, for chaining.
    pub fn bound(mut self, symbol: &str, bound: usize) -> CompileOptions {
        self.bounds.set(&Symbol::new(symbol), bound);
        self
    }

    /// Leaves out a pass and returns the options, for chaining.
    pub fn without_pass(mut self, name: &str) -> CompileOptions {
        self.without_passes.push(name.to_string());
        self
    }
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

/// A named value at the border of a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The name.
    pub name: String,
    /// The declared type.
    pub ty: Type,
}

/// The names and types at the border of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Given at each run.
    pub inputs: Vec<Port>,
    /// Set once, kept.
    pub params: Vec<Port>,
    /// Kept from run to run.
    pub states: Vec<Port>,
    /// The results, in the order in which a run gives them.
    pub outputs: Vec<Port>,
}

impl Signature {
    /// The signature of a graph.
    pub fn of(graph: &Graph) -> Signature {
        let mut s = Signature::default();
        for (_, node) in graph.nodes() {
            let (list, name) = match &node.op {
                Op::Input(o) => (&mut s.inputs, &o.name),
                Op::Param(o) => (&mut s.params, &o.name),
                Op::State(o) => (&mut s.states, &o.name),
                _ => continue,
            };
            list.push(Port {
                name: name.clone(),
                ty: node.outputs[0].clone(),
            });
        }
        s.outputs = graph
            .outputs()
            .iter()
            .map(|o| Port {
                name: o.name.clone(),
                ty: graph.ty(o.value).clone(),
            })
            .collect();
        s
    }

    /// The values of the symbols for these inputs, checked: every input given once, with its
    /// declared dtype and rank, known sizes equal, one size per symbol, none above its bound.
    /// Writes into `sizes`, reusing it.
    ///
    /// # Errors
    /// [`RunError`] that names the input and the symbol.
    pub fn bind(
        &self,
        inputs: &[(&str, &Tensor)],
        bounds: &Bindings,
        sizes: &mut Bindings,
    ) -> Result<(), RunError> {
        for (name, _) in inputs {
            find_port(&self.inputs, "input", name)?;
        }
        sizes.clear();
        for port in &self.inputs {
            let Some((_, tensor)) = inputs.iter().find(|(n, _)| *n == port.name) else {
                let (name, ty) = (port.name.clone(), port.ty.clone());
                return Err(RunError::Missing {
                    what: "input",
                    name,
                    ty,
                });
            };
            port.bind(tensor, "input", inputs, bounds, sizes)?;
        }
        // Expressions such as 2*s are checked when every symbol has its size.
        for port in &self.inputs {
            let (_, tensor) = inputs
                .iter()
                .find(|(n, _)| *n == port.name)
                .expect("invariant: the loop above found every input");
            for (dim, &size) in port.ty.shape.iter().zip(tensor.shape()) {
                if dim.eval(sizes)? != size {
                    return Err(port.mismatch("input", tensor));
                }
            }
        }
        Ok(())
    }
}

impl Port {
    fn mismatch(&self, what: &'static str, found: &Tensor) -> RunError {
        RunError::Type {
            what,
            name: self.name.clone(),
            expected: self.ty.clone(),
            found: found.ty().clone(),
        }
    }

    fn bind(
        &self,
        tensor: &Tensor,
        what: &'static str,
        inputs: &[(&str, &Tensor)],
        bounds: &Bindings,
        sizes: &mut Bindings,
    ) -> Result<(), RunError> {
        if tensor.dtype() != self.ty.dtype || tensor.shape().len() != self.ty.rank() {
            return Err(self.mismatch(what, tensor));
        }
        for (dim, &size) in self.ty.shape.iter().zip(tensor.shape()) {
            let Some(symbol) = dim.as_symbol() else {
                continue;
            };
            match sizes.get(symbol) {
                Some(first) if first != size => {
                    return Err(RunError::Conflict {
                        symbol: symbol.clone(),
                        first,
                        first_input: first_use(inputs, self, symbol),
                        second: size,
                        second_input: self.name.clone(),
                    });
                }
                Some(_) => {}
                None => sizes.set(symbol, size),
            }
            if let Some(bound) = bounds.get(symbol)
                && size > bound
            {
                let (symbol, input) = (symbol.clone(), self.name.clone());
                return Err(RunError::AboveBound {
                    symbol,
                    input,
                    value: size,
                    bound,
                });
            }
        }
        Ok(())
    }

    /// Checks a parameter or state tensor against the declared type, whose sizes must be known.
    ///
    /// # Errors
    /// [`RunError::Type`] when dtype or shape differ.
    pub fn check(&self, what: &'static str, tensor: &Tensor) -> Result<(), RunError> {
        let sizes = self.ty.shape.as_known();
        if tensor.dtype() == self.ty.dtype && sizes.as_deref() == Some(tensor.shape()) {
            return Ok(());
        }
        Err(self.mismatch(what, tensor))
    }
}

/// The input that gave a symbol its first size; inputs are bound in the order of the signature, but
/// any other input that carries the symbol explains the conflict as well.
fn first_use(inputs: &[(&str, &Tensor)], second: &Port, symbol: &Symbol) -> String {
    let other = inputs.iter().find(|(n, _)| *n != second.name);
    other.map_or_else(
        || format!("another axis of `{symbol}`"),
        |(n, _)| (*n).to_string(),
    )
}

/// The port of this name.
///
/// # Errors
/// [`RunError::UnknownName`] with the names there are.
pub fn find_port<'a>(
    ports: &'a [Port],
    what: &'static str,
    name: &str,
) -> Result<(usize, &'a Port), RunError> {
    ports
        .iter()
        .enumerate()
        .find(|(_, p)| p.name == name)
        .ok_or_else(|| {
            let known: Vec<&str> = ports.iter().map(|p| p.name.as_str()).collect();
            let known = if known.is_empty() {
                "none".to_string()
            } else {
                known.join(", ")
            };
            RunError::UnknownName {
                what,
                name: name.to_string(),
                known,
            }
        })
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

/// A device that compiles graphs.
pub trait Backend: Send + Sync {
    /// The executor's name: `cpu`, `reference`, `wgpu`, `vulkan`.
    fn name(&self) -> &'static str;

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

    /// Starts a run on these inputs, which are copied; [`Executable::wait`] gives its results. A run
    /// that was started before and not waited for is finished first, its results dropped.
    ///
    /// # Errors
    /// [`RunError`] that names the input, output or symbol.
    fn submit(&mut self, inputs: &[(&str, &Tensor)], wanted: Wanted<'_>) -> Result<(), RunError>;

    /// Waits for the run started last and writes the wanted outputs into `outputs`, whose memory is
    /// reused; without such a run `outputs` is emptied.
    ///
    /// # Errors
    /// [`RunError`] that names the node.
    fn wait(&mut self, outputs: &mut Vec<Tensor>) -> Result<(), RunError>;

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

    /// Sets every state to zeros and the step of random numbers to 0. Parameters stay.
    fn reset(&mut self);

    /// Another executable of the same program that shares the parameters and has a copy of the
    /// states.
    ///
    /// # Errors
    /// [`RunError::OutOfMemory`] when there is no room for it.
    fn try_clone(&self) -> Result<Box<dyn Executable>, RunError>;
}

impl dyn Executable + '_ {
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
