//! One run of a graph on tensors at hand, with a look at values inside it.

use tercet_ir::{
    Backend, Bindings, CompileError, CompileOptions, Graph, Keep, RunError, Signature, Tensor,
    Value,
};

use crate::Device;

/// Why the values of a graph could not be had.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// A tensor of a leaf is missing.
    #[error("`{name}` was not given; every input and parameter is needed")]
    Missing {
        /// The leaf.
        name: String,
    },
    /// The graph with every value as a result could not be built.
    #[error("cannot look into the graph")]
    Graph(#[source] CompileError),
    /// The graph cannot be compiled for an executor.
    #[error("{device} cannot compile the graph")]
    Compile {
        /// The executor.
        device: &'static str,
        /// Why.
        #[source]
        source: CompileError,
    },
    /// An executor failed on the tensors.
    #[error("{device} fails on these inputs")]
    Run {
        /// The executor.
        device: &'static str,
        /// Why.
        #[source]
        source: RunError,
    },
}

/// A graph and the tensors of its leaves by name: inputs, parameters and, where they are not zeros, states.
#[derive(Clone, Debug)]
pub(crate) struct Once<'a> {
    graph: &'a Graph,
    signature: Signature,
    inputs: Vec<(&'a str, &'a Tensor)>,
    tensors: Vec<(&'a str, &'a Tensor)>,
    /// The sizes of the inputs.
    sizes: Bindings,
}

impl<'a> Once<'a> {
    pub(crate) fn new(
        graph: &'a Graph,
        tensors: &[(&'a str, &'a Tensor)],
    ) -> Result<Once<'a>, VerifyError> {
        let signature = Signature::of(graph);
        let find = |name: &str| {
            let found = tensors.iter().find(|(n, _)| *n == name).copied();
            found.ok_or_else(|| VerifyError::Missing {
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
        bound.map_err(|source| VerifyError::Run {
            device: "every device",
            source,
        })?;
        Ok(Once {
            graph,
            signature,
            inputs,
            tensors: tensors.to_vec(),
            sizes,
        })
    }

    /// What these values are, each node computed as it is written.
    pub(crate) fn values(
        &self,
        backend: &dyn Backend,
        values: &[Value],
    ) -> Result<Vec<Tensor>, VerifyError> {
        let device = backend.name();
        let keep = Keep::Values(values.to_vec());
        let (_, kept) = keep.of(self.graph).map_err(VerifyError::Graph)?;
        let options = CompileOptions {
            bounds: self.sizes.clone(),
            keep,
            ..CompileOptions::new()
        };
        let mut exe = (backend.compile(self.graph, &options))
            .map_err(|source| VerifyError::Compile { device, source })?;
        let failed = |source| VerifyError::Run { device, source };
        for (name, tensor) in &self.tensors {
            let is = |ports: &[tercet_ir::Port]| ports.iter().any(|p| p.name == *name);
            if is(&self.signature.params) {
                exe.set_param(name, (*tensor).clone()).map_err(failed)?;
            } else if is(&self.signature.states) {
                exe.write_state(name, tensor).map_err(failed)?;
            }
        }
        let names: Vec<&str> = kept.iter().map(|k| k.output.as_str()).collect();
        exe.run_outputs(&self.inputs, &names).map_err(failed)
    }
}

/// The bytes of values that one run of [`NodeValues`] keeps; a single value may have more.
const KEPT_BYTES: u64 = 128 << 20;

/// What every node of a graph computes, in the order of the nodes: [`node_values`].
pub struct NodeValues<'a> {
    once: Once<'a>,
    device: &'a Device,
    /// Values that were not computed yet, from the last to the first.
    left: Vec<Value>,
    /// Computed and not yet given, from the last to the first.
    ready: Vec<(Value, Tensor)>,
    most_bytes: u64,
}

/// What every node of a graph computes on a device for these tensors: inputs, parameters and, where they are not
/// zeros, states by name. The graph is compiled without passes and with its values as results ([`Keep`]), so that they
/// are those of the nodes as they were written, and nothing is fused. Where they are many, it runs more than once,
/// each time from the same states and random numbers, so that memory stays bounded. Graphs inside nodes are not looked
/// into.
///
/// # Errors
/// [`VerifyError::Missing`] for a tensor that is not there; [`VerifyError::Run`] for one of another type.
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
) -> Result<NodeValues<'a>, VerifyError> {
    let (_, kept) = Keep::All.of(graph).map_err(VerifyError::Graph)?;
    Ok(NodeValues {
        once: Once::new(graph, tensors)?,
        device,
        left: kept.into_iter().rev().map(|k| k.value).collect(),
        ready: Vec::new(),
        most_bytes: KEPT_BYTES,
    })
}

impl NodeValues<'_> {
    /// Keeps no more than this many bytes of values at once, but at least one value.
    pub fn with_memory(self, most_bytes: u64) -> Self {
        NodeValues { most_bytes, ..self }
    }

    /// Takes the next values that fit together.
    fn next_group(&mut self) -> Result<Vec<Value>, VerifyError> {
        let (mut group, mut bytes) = (Vec::new(), 0u64);
        while let Some(&value) = self.left.last() {
            let ty = self.once.graph.ty(value).eval(&self.once.sizes);
            let ty = ty.map_err(|e| VerifyError::Run {
                device: self.device.name(),
                source: e.into(),
            })?;
            bytes = bytes.saturating_add(ty.size_bytes() as u64);
            if bytes > self.most_bytes && !group.is_empty() {
                break;
            }
            group.push(value);
            self.left.pop();
        }
        Ok(group)
    }
}

impl Iterator for NodeValues<'_> {
    type Item = Result<(Value, Tensor), VerifyError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() && !self.left.is_empty() {
            let done = self.next_group().and_then(|group| {
                let tensors = self.once.values(self.device.backend(), &group)?;
                Ok(group.into_iter().zip(tensors).rev().collect())
            });
            match done {
                Ok(ready) => self.ready = ready,
                Err(e) => {
                    self.left.clear();
                    return Some(Err(e));
                }
            }
        }
        self.ready.pop().map(Ok)
    }
}
