//! ONNX models as the commands open them: by the ending `.onnx`, with arrays for inputs that decide shapes.

use std::path::Path;

use tercet::{Signature, Symbol, Tensor};
use tercet_onnx::{ImportOptions, Imported, Model, OnnxError, sizes_of};

use super::tensors::read_tensors;
use crate::error::CliError;

/// An imported model with what was given for it.
pub(crate) struct Opened {
    pub(crate) imported: Imported,
    /// The arrays that were given, without those which became constants.
    pub(crate) given: Vec<(String, Tensor)>,
    /// Symbols that are none in it, since shapes have no form with them.
    pub(crate) fixed: Vec<Symbol>,
}

/// Whether a file is an ONNX model by its name.
pub(crate) fn is_onnx(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str());
    ending.is_some_and(|e| e.eq_ignore_ascii_case("onnx"))
}

/// Reads a model without importing it.
pub(crate) fn read(path: &Path) -> Result<Model, CliError> {
    Model::read(path).map_err(error(path))
}

/// What goes wrong with the model at a path.
pub(crate) fn error(path: &Path) -> impl Fn(OnnxError) -> CliError {
    move |source| CliError::Onnx {
        path: path.to_path_buf(),
        source,
    }
}

/// Imports a model. Of the arrays, as `--input` has them, those which decide shapes or have a default become constants. Where
/// shapes have no form with symbols, those are fixed at the sizes of the arrays, else at the bounds.
pub(crate) fn open(
    path: &Path,
    inputs: &[String],
    bounds: &[(String, usize)],
) -> Result<Opened, CliError> {
    let model = read(path)?;
    let mut options = ImportOptions::new();
    let ports = Signature {
        inputs: model.inputs(&options).map_err(error(path))?,
        ..Signature::default()
    };
    let mut inputs = inputs.to_vec();
    let texts = super::strings::take(&mut inputs, &ports.inputs, &model.strings())?;
    let mut given = read_tensors(&ports, &inputs)?;
    given.extend(texts);
    for port in model.describe().inputs.iter().filter(|p| p.has_default) {
        if let Some((name, tensor)) = given.iter().find(|(n, _)| *n == port.name) {
            options = options.value(name, tensor.clone());
        }
    }
    let value = |name: &str| {
        let found = given.iter().find(|(n, _)| n == name);
        found.map(|(_, t)| t.clone())
    };
    let arrays: Vec<(&str, &Tensor)> = given.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut sizes = sizes_of(&ports.inputs, &arrays);
    for (name, n) in bounds {
        let symbol = Symbol::new(name);
        if sizes.get(&symbol).is_none() {
            sizes.set(&symbol, *n);
        }
    }
    let mut fixed = Vec::new();
    let imported = model
        .import_at(&options, &sizes, &mut fixed, value)
        .map_err(error(path))?;
    let is_input = |name: &str| imported.inputs.iter().any(|p| p.name == name);
    let given = given.into_iter().filter(|(n, _)| is_input(n)).collect();
    Ok(Opened {
        imported,
        given,
        fixed,
    })
}
