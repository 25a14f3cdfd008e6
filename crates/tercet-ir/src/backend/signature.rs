//! The interface of a graph: names and types, and the symbol sizes that follow from input shapes.

use smallvec::SmallVec;
use tercet_tensor::{Bindings, DimError, Symbol, Tensor, TensorType, Type};

use crate::error::RunError;
use crate::graph::Graph;
use crate::ops::Op;

/// A named input, parameter, state or output of a graph.
///
/// ```
/// use tercet_ir::{DType, Port, Tensor, Type};
/// let port = Port { name: "bias".to_string(), ty: Type::new(DType::F32, [2]) };
/// port.check("param", &Tensor::from_slice(&[2], &[0f32, 1.0])?)?;
/// let error = port.check("param", &Tensor::from_slice(&[2], &[0i32, 1])?).unwrap_err();
/// assert_eq!(error.to_string(), "param `bias` is i32[2]; expected f32[2]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// Name of the port.
    pub name: String,
    /// The declared type.
    pub ty: Type,
}

/// The names and types of a graph's inputs, parameters, states and outputs.
///
/// ```
/// use tercet_ir::{Bindings, DType, Dim, Graph, Signature, Symbol, Tensor, Type};
/// let mut g = Graph::new();
/// let x = g.input("x", Type::new(DType::F32, [Dim::sym("rows"), Dim::Known(2)]))?;
/// let y = g.softmax(x, 1)?;
/// g.output("y", y)?;
/// let signature = Signature::of(&g);
/// assert_eq!(signature.outputs[0].ty.to_string(), "f32[rows, 2]");
/// let mut sizes = Bindings::new();
/// let x = Tensor::from_slice(&[3, 2], &[0f32; 6])?;
/// signature.bind(&[("x", &x)], &Bindings::new(), &mut sizes)?;
/// assert_eq!(sizes.get(&Symbol::new("rows")), Some(3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// Inputs, provided at each run.
    pub inputs: Vec<Port>,
    /// Parameters, set once before the first run.
    pub params: Vec<Port>,
    /// States, which persist between runs.
    pub states: Vec<Port>,
    /// The outputs, in the order of a run's results.
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

    /// Validates inputs and computes the symbol sizes. Every input must be provided once, with its
    /// declared dtype and rank. Known sizes must match, each symbol must have one size, and no size
    /// may exceed its bound. Writes the result into `sizes`, whose memory is reused.
    ///
    /// # Errors
    /// [`RunError`] that names the input and the symbol.
    pub fn bind(
        &self,
        inputs: &[(&str, &Tensor)],
        bounds: &Bindings,
        sizes: &mut Bindings,
    ) -> Result<(), RunError> {
        let types = inputs.iter().map(|(name, tensor)| (*name, tensor.ty()));
        let types: SmallVec<[(&str, &TensorType); 16]> = types.collect();
        self.bind_types(&types, bounds, sizes)
    }

    /// As [`Signature::bind`], for the types of the inputs.
    ///
    /// # Errors
    /// As [`Signature::bind`].
    pub fn bind_types(
        &self,
        inputs: &[(&str, &TensorType)],
        bounds: &Bindings,
        sizes: &mut Bindings,
    ) -> Result<(), RunError> {
        for (at, (name, _)) in inputs.iter().enumerate() {
            if self.inputs.get(at).is_none_or(|port| port.name != *name) {
                find_port(&self.inputs, "input", name)?;
            }
        }
        sizes.clear();
        for (at, port) in self.inputs.iter().enumerate() {
            let Some(tensor) = type_of(inputs, at, &port.name) else {
                let (name, ty) = (port.name.clone(), port.ty.clone());
                return Err(RunError::Missing {
                    what: "input",
                    name,
                    ty,
                });
            };
            port.bind(tensor, "input", inputs, bounds, sizes)?;
        }
        // Expressions such as 2*s determine symbols that are not directly an axis.
        for (at, port) in self.inputs.iter().enumerate() {
            if let Some(tensor) = type_of(inputs, at, &port.name) {
                port.solve(tensor, bounds, sizes)?;
            }
        }
        // Expressions can be checked only after every symbol has a size.
        for (at, port) in self.inputs.iter().enumerate() {
            let tensor = type_of(inputs, at, &port.name)
                .expect("invariant: the loop above found every input");
            for (dim, &size) in port.ty.shape.iter().zip(&tensor.shape) {
                if dim.eval(sizes)? != size {
                    return Err(port.mismatch("input", tensor));
                }
            }
        }
        Ok(())
    }
}

impl Port {
    fn mismatch(&self, what: &'static str, found: &TensorType) -> RunError {
        RunError::Type {
            what,
            name: self.name.clone(),
            expected: self.ty.clone(),
            found: found.clone(),
        }
    }

    fn bind(
        &self,
        tensor: &TensorType,
        what: &'static str,
        inputs: &[(&str, &TensorType)],
        bounds: &Bindings,
        sizes: &mut Bindings,
    ) -> Result<(), RunError> {
        if tensor.dtype != self.ty.dtype || tensor.shape.len() != self.ty.rank() {
            return Err(self.mismatch(what, tensor));
        }
        for (dim, &size) in self.ty.shape.iter().zip(&tensor.shape) {
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
            self.check_bound(symbol, size, bounds)?;
        }
        Ok(())
    }

    fn check_bound(
        &self,
        symbol: &Symbol,
        value: usize,
        bounds: &Bindings,
    ) -> Result<(), RunError> {
        match bounds.get(symbol).filter(|bound| value > *bound) {
            None => Ok(()),
            Some(bound) => Err(RunError::AboveBound {
                symbol: symbol.clone(),
                input: self.name.clone(),
                value,
                bound,
            }),
        }
    }

    /// Sets the symbols that follow from the sizes of expressions.
    fn solve(
        &self,
        tensor: &TensorType,
        bounds: &Bindings,
        sizes: &mut Bindings,
    ) -> Result<(), RunError> {
        for (axis, (dim, &size)) in self.ty.shape.iter().zip(&tensor.shape).enumerate() {
            let Some((symbol, value)) = dim.solve(size, sizes) else {
                continue;
            };
            let value = value.map_err(|reason| DimError::NoSolution {
                name: self.name.clone(),
                axis,
                size,
                dim: dim.clone(),
                reason,
            })?;
            self.check_bound(symbol, value, bounds)?;
            sizes.set(symbol, value);
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
        Err(self.mismatch(what, tensor.ty()))
    }
}

/// The type of the input with this name. The input is usually at the same index as in the
/// signature, so that index is tried first.
fn type_of<'a>(inputs: &[(&str, &'a TensorType)], at: usize, name: &str) -> Option<&'a TensorType> {
    let own = inputs.get(at).filter(|(n, _)| *n == name);
    let found = own.or_else(|| inputs.iter().find(|(n, _)| *n == name));
    found.map(|(_, ty)| *ty)
}

/// An input for the error message about conflicting sizes of a symbol. Inputs are bound in the
/// order of the signature, so the input that this function finds is usually the one that set the
/// symbol first. Any other input that contains the symbol explains the conflict too.
fn first_use(inputs: &[(&str, &TensorType)], second: &Port, symbol: &Symbol) -> String {
    let other = inputs.iter().find(|(n, _)| *n != second.name);
    other.map_or_else(
        || format!("another axis of `{symbol}`"),
        |(n, _)| (*n).to_string(),
    )
}

/// The port with this name.
///
/// # Errors
/// [`RunError::UnknownName`] with the valid names.
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
