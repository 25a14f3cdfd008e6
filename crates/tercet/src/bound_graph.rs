//! A single run of a graph on given tensors, with access to intermediate values.

use tercet_ir::backend::RetainedValue;
use tercet_ir::{
    Backend, Bindings, CompileError, CompileOptions, Graph, RetainValues, RunError, Signature,
    Tensor, Value,
};

use crate::{Device, optimized};

/// Errors of computing the values of a graph.
///
/// ```
/// use tercet::{DType, Device, EvaluateError, Graph, Type, node_values};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.exp(x)?;
/// g.output("y", y)?;
/// let device = Device::cpu();
/// let error = node_values(&g, &[], &device).err();
/// assert!(matches!(error, Some(EvaluateError::Missing { name }) if name == "x"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, thiserror::Error)]
pub enum EvaluateError {
    /// The tensor of an input or parameter is missing.
    #[error("`{name}` is missing; tensors for all inputs and parameters are required")]
    Missing {
        /// Name of the input or parameter.
        name: String,
    },
    /// The graph with all values as outputs could not be built.
    #[error("cannot add outputs for the values of the graph")]
    Graph(#[source] CompileError),
    /// An executor cannot compile the graph.
    #[error("{device} cannot compile the graph")]
    Compile {
        /// Name of the executor.
        device: &'static str,
        /// The compile error.
        #[source]
        source: CompileError,
    },
    /// The run failed.
    #[error("{device} fails on these inputs")]
    Run {
        /// Name of the executor.
        device: &'static str,
        /// The run error.
        #[source]
        source: RunError,
    },
}

/// A graph with tensors for its leaves, by name: inputs, parameters and, if they are not zero,
/// states.
#[derive(Clone, Debug)]
pub(crate) struct BoundGraph<'a> {
    graph: &'a Graph,
    signature: Signature,
    inputs: Vec<(&'a str, &'a Tensor)>,
    tensors: Vec<(&'a str, &'a Tensor)>,
    /// Sizes of the symbols, from the inputs.
    sizes: Bindings,
}

impl<'a> BoundGraph<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        tensors: &[(&'a str, &'a Tensor)],
    ) -> Result<BoundGraph<'a>, EvaluateError> {
        let signature = Signature::of(graph);
        let find = |name: &str| {
            let found = tensors.iter().find(|(n, _)| *n == name).copied();
            found.ok_or_else(|| EvaluateError::Missing {
                name: name.to_string(),
            })
        };
        let inputs = signature.inputs.iter().map(|p| find(&p.name));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        for port in &signature.params {
            find(&port.name)?;
        }
        let mut sizes = Bindings::new();
        let bound = signature.bind(&inputs, &Bindings::new(), &mut sizes);
        bound.map_err(|source| EvaluateError::Run {
            device: "every device",
            source,
        })?;
        Ok(BoundGraph {
            graph,
            signature,
            inputs,
            tensors: tensors.to_vec(),
            sizes,
        })
    }

    /// Computes these values; each node runs without passes.
    pub(crate) fn values(
        &self,
        backend: &dyn Backend,
        values: &[Value],
    ) -> Result<Vec<Tensor>, EvaluateError> {
        let keep = RetainValues::Values(values.to_vec());
        let (_, kept) = keep.add_outputs(self.graph).map_err(EvaluateError::Graph)?;
        let options = CompileOptions {
            bounds: self.sizes.clone(),
            retain: keep,
            ..CompileOptions::new()
        };
        self.outputs(backend, self.graph, &options, &kept)
    }

    /// Computes these values with all passes. Values whose outputs would change the kernels of the
    /// program together are computed apart.
    pub(crate) fn optimized_values(
        &self,
        backend: &dyn Backend,
        values: &[Value],
    ) -> Result<Vec<Tensor>, EvaluateError> {
        let options = self.options();
        if let [_, _, ..] = values
            && !optimized::keeps_kernels(self.graph, backend, &options, values)
                .map_err(|source| compiling(backend, source))?
        {
            let (first, second) = values.split_at(values.len() / 2);
            let mut all = self.optimized_values(backend, first)?;
            all.extend(self.optimized_values(backend, second)?);
            return Ok(all);
        }
        let keep = RetainValues::Values(values.to_vec());
        let (open, kept) = keep.add_outputs(self.graph).map_err(EvaluateError::Graph)?;
        self.outputs(backend, &open, &options, &kept)
    }

    /// The values that the optimized program writes to memory.
    pub(crate) fn materialized(&self, backend: &dyn Backend) -> Result<Vec<Value>, EvaluateError> {
        optimized::materialized(self.graph, backend, &self.options())
            .map_err(|source| compiling(backend, source))
    }

    fn options(&self) -> CompileOptions {
        CompileOptions {
            bounds: self.sizes.clone(),
            ..CompileOptions::new()
        }
    }

    /// Compiles a graph with the interface of this one, runs it, and returns these outputs.
    fn outputs(
        &self,
        backend: &dyn Backend,
        graph: &Graph,
        options: &CompileOptions,
        kept: &[RetainedValue],
    ) -> Result<Vec<Tensor>, EvaluateError> {
        let device = backend.name();
        let compiled = backend.compile(graph, options);
        let mut exe = compiled.map_err(|source| compiling(backend, source))?;
        let failed = |source| EvaluateError::Run { device, source };
        // Compilation removes parameters that no result depends on.
        let params = exe.signature().params.clone();
        for (name, tensor) in &self.tensors {
            let is = |ports: &[tercet_ir::Port]| ports.iter().any(|p| p.name == *name);
            if is(&params) {
                exe.set_param(name, (*tensor).clone()).map_err(failed)?;
            } else if is(&self.signature.states) {
                exe.write_state(name, tensor).map_err(failed)?;
            }
        }
        let names: Vec<&str> = kept.iter().map(|k| k.output.as_str()).collect();
        exe.run_outputs(&self.inputs, &names).map_err(failed)
    }
}

fn compiling(backend: &dyn Backend, source: CompileError) -> EvaluateError {
    EvaluateError::Compile {
        device: backend.name(),
        source,
    }
}

/// Maximum bytes of values that one run of [`NodeValues`] returns. A single value may be larger.
const KEPT_BYTES: u64 = 128 << 20;

/// Iterator over the values of all nodes of a graph, in node order: [`node_values`].
///
/// ```
/// use tercet::{DType, Device, Graph, Tensor, Type, node_values};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.exp(x)?;
/// g.output("y", y)?;
/// let (x, device) = (Tensor::from_slice(&[2], &[0f32, 0.0])?, Device::cpu());
/// for computed in node_values(&g, &[("x", &x)], &device)?.with_memory(1 << 20) {
///     let (value, tensor) = computed?;
///     assert_eq!((value, tensor.as_slice::<f32>()?), (y, &[1.0, 1.0][..]));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct NodeValues<'a> {
    graph: BoundGraph<'a>,
    device: &'a Device,
    /// Values that are not computed yet, in reverse order.
    remaining: Vec<Value>,
    /// Computed values that were not returned yet, in reverse order.
    computed: Vec<(Value, Tensor)>,
    max_bytes: u64,
    /// Whether the program has all passes.
    optimized: bool,
}

/// Computes the values that the optimized program of a graph writes to memory, on a device: all
/// passes run and kernels are fused as in a normal run. Values inside fused kernels are not
/// included. `tensors` are those of [`node_values`].
///
/// # Errors
/// Those of [`node_values`], and [`EvaluateError::Compile`] if the device does not support the graph.
///
/// ```
/// # #[cfg(feature = "cpu")] {
/// use tercet::{DType, Device, Graph, Tensor, Type, optimized_values};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let e = g.exp(x)?;
/// let y = g.tanh(e)?;
/// g.output("y", y)?;
/// let (x, device) = (Tensor::from_slice(&[2], &[0f32, 0.0])?, Device::cpu());
/// let values: Vec<_> = optimized_values(&g, &[("x", &x)], &device)?.collect::<Result<_, _>>()?;
/// // One kernel computes `tanh` of `exp`, so only the result is in memory.
/// assert_eq!(values.iter().map(|(value, _)| *value).collect::<Vec<_>>(), [y]);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn optimized_values<'a>(
    graph: &'a Graph,
    tensors: &[(&'a str, &'a Tensor)],
    device: &'a Device,
) -> Result<NodeValues<'a>, EvaluateError> {
    let graph = BoundGraph::new(graph, tensors)?;
    let values = graph.materialized(device.backend())?;
    Ok(NodeValues {
        graph,
        device,
        remaining: values.into_iter().rev().collect(),
        computed: Vec::new(),
        max_bytes: KEPT_BYTES,
        optimized: true,
    })
}

/// Computes the value of every node of a graph on a device. `tensors` contains inputs, parameters
/// and nonzero states by name. The graph is compiled without passes and with its values as outputs
/// ([`RetainValues`]), so nodes are not fused. Large graphs run several times from the same states and
/// random numbers, which limits memory. Nodes inside subgraphs are not included.
///
/// # Errors
/// [`EvaluateError::Missing`] if a tensor is missing; [`EvaluateError::Run`] if a tensor has the wrong
/// type.
///
/// ```
/// # #[cfg(feature = "cpu")] {
/// use tercet::{DType, Device, Graph, Tensor, Type, node_values};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [2]))?;
/// let y = g.exp(x)?;
/// let z = g.plus(y, x)?;
/// g.output("z", z)?;
/// let x = Tensor::from_slice(&[2], &[0f32, 1.0])?;
/// let device = Device::cpu();
/// let values = node_values(&g, &[("x", &x)], &device)?.collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(values[0].0, y);
/// assert_eq!(values[1].1.as_slice::<f32>()?[0], 1.0);
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn node_values<'a>(
    graph: &'a Graph,
    tensors: &[(&'a str, &'a Tensor)],
    device: &'a Device,
) -> Result<NodeValues<'a>, EvaluateError> {
    let (_, kept) = RetainValues::All
        .add_outputs(graph)
        .map_err(EvaluateError::Graph)?;
    Ok(NodeValues {
        graph: BoundGraph::new(graph, tensors)?,
        device,
        remaining: kept.into_iter().rev().map(|k| k.value).collect(),
        computed: Vec::new(),
        max_bytes: KEPT_BYTES,
        optimized: false,
    })
}

impl NodeValues<'_> {
    /// Limits the memory of computed values to this many bytes. At least one value is always
    /// computed.
    pub fn with_memory(self, max_bytes: u64) -> Self {
        NodeValues { max_bytes, ..self }
    }

    /// Takes the next values that fit into the memory limit together.
    fn next_group(&mut self) -> Result<Vec<Value>, EvaluateError> {
        let (mut group, mut bytes) = (Vec::new(), 0u64);
        while let Some(&value) = self.remaining.last() {
            let ty = self.graph.graph.ty(value).eval(&self.graph.sizes);
            let ty = ty.map_err(|e| EvaluateError::Run {
                device: self.device.name(),
                source: e.into(),
            })?;
            bytes = bytes.saturating_add(ty.size_bytes() as u64);
            if bytes > self.max_bytes && !group.is_empty() {
                break;
            }
            group.push(value);
            self.remaining.pop();
        }
        Ok(group)
    }
}

impl Iterator for NodeValues<'_> {
    type Item = Result<(Value, Tensor), EvaluateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.computed.is_empty() && !self.remaining.is_empty() {
            let done = self.next_group().and_then(|group| {
                let backend = self.device.backend();
                let tensors = match self.optimized {
                    true => self.graph.optimized_values(backend, &group)?,
                    false => self.graph.values(backend, &group)?,
                };
                Ok(group.into_iter().zip(tensors).rev().collect())
            });
            match done {
                Ok(ready) => self.computed = ready,
                Err(e) => {
                    self.remaining.clear();
                    return Some(Err(e));
                }
            }
        }
        self.computed.pop().map(Ok)
    }
}
