//! The results of a run by the names of the outputs.

use tercet_tensor::Tensor;

use super::Signature;
use crate::error::RunError;

/// The results of a run, by the names of the graph's outputs.
///
/// ```
/// # use tercet_ir::{DType, Graph, Signature, Tensor, Type};
/// use tercet_ir::{RunError, backend::NamedOutputs};
/// # let mut g = Graph::new();
/// # let x = g.input("x", Type::new(DType::F32, [1]))?;
/// # g.output("y", x)?;
/// # let results = vec![Tensor::from_slice(&[1], &[7f32])?];
/// // `results` are those of a run of a graph with the output `y`.
/// let mut outputs = NamedOutputs::new(&Signature::of(&g), results);
/// assert_eq!(outputs.get("y")?.as_slice::<f32>()?, [7.0]);
/// assert!(matches!(outputs.take("z"), Err(RunError::UnknownName { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct NamedOutputs {
    outputs: Vec<(String, Tensor)>,
}

impl NamedOutputs {
    /// Pairs results in the order of the signature with their names.
    pub fn new(signature: &Signature, results: Vec<Tensor>) -> NamedOutputs {
        let names = signature.outputs.iter().map(|port| port.name.clone());
        NamedOutputs {
            outputs: names.zip(results).collect(),
        }
    }

    /// The result of an output.
    ///
    /// # Errors
    /// [`RunError::UnknownName`] with the names of the outputs.
    pub fn get(&self, name: &str) -> Result<&Tensor, RunError> {
        Ok(&self.outputs[self.position(name)?].1)
    }

    /// Removes the result of an output and returns it.
    ///
    /// # Errors
    /// [`RunError::UnknownName`] with the names of the remaining outputs.
    pub fn take(&mut self, name: &str) -> Result<Tensor, RunError> {
        let at = self.position(name)?;
        Ok(self.outputs.remove(at).1)
    }

    /// Names and results, in the order of the outputs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.outputs.iter().map(|(name, of)| (name.as_str(), of))
    }

    fn position(&self, name: &str) -> Result<usize, RunError> {
        let found = self.outputs.iter().position(|(own, _)| own == name);
        found.ok_or_else(|| RunError::UnknownName {
            what: "output",
            name: name.to_string(),
            known: match self.outputs.is_empty() {
                true => "none".to_string(),
                false => {
                    let known: Vec<&str> = self.outputs.iter().map(|(own, _)| &**own).collect();
                    known.join(", ")
                }
            },
        })
    }
}
