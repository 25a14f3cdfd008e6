//! Opens ONNX models for the commands: by the extension `.onnx`, with arrays for inputs that
//! determine shapes.

use std::path::Path;

use tercet::{Signature, Symbol, Tensor};
use tercet_onnx::{ImportOptions, ImportedModel, OnnxError, OnnxModel, sizes_of};

use super::tensors::read_tensors_with_u64;
use crate::error::CliError;

/// An imported model with its input arrays.
pub(crate) struct OpenedOnnxModel {
    pub(crate) imported: ImportedModel,
    /// Input arrays, without those that became constants of the graph.
    pub(crate) arrays: Vec<(String, Tensor)>,
    /// Symbols that import replaced by numbers, because shapes cannot be expressed with them.
    pub(crate) fixed: Vec<Symbol>,
}

/// Whether the file name has the extension of an ONNX model.
pub(crate) fn is_onnx(path: &Path) -> bool {
    let ending = path.extension().and_then(|e| e.to_str());
    ending.is_some_and(|e| e.eq_ignore_ascii_case("onnx"))
}

/// Reads a model without importing it.
pub(crate) fn read(path: &Path) -> Result<OnnxModel, CliError> {
    OnnxModel::read(path).map_err(error(path))
}

/// Wraps an ONNX error with the path of the model.
pub(crate) fn error(path: &Path) -> impl Fn(OnnxError) -> CliError {
    move |source| CliError::Onnx {
        path: path.to_path_buf(),
        source,
    }
}

/// Imports a model. Arrays of `--input` become constants if they determine shapes or if the input
/// has a default. If shapes cannot be expressed with symbols, the symbols are fixed at the sizes of
/// the arrays, or else at the bounds.
pub(crate) fn open(
    path: &Path,
    inputs: &[String],
    bounds: &[(String, usize)],
) -> Result<OpenedOnnxModel, CliError> {
    let model = read(path)?;
    let mut options = ImportOptions::new();
    let ports = Signature {
        inputs: model.inputs(&options).map_err(error(path))?,
        ..Signature::default()
    };
    let mut inputs = inputs.to_vec();
    let texts = super::strings::take_string_inputs(&mut inputs, &ports.inputs, &model.strings())?;
    let declared = model.describe().inputs;
    let unsigned = declared.into_iter().filter(|p| p.dtype == "uint64");
    let unsigned: Vec<String> = unsigned.map(|p| p.name).collect();
    let mut given = read_tensors_with_u64(&ports, &inputs, &unsigned)?;
    given.extend(texts);
    let types: Vec<_> = given.iter().map(|(n, t)| (n.as_str(), t.ty())).collect();
    let adapted = model.options_for(&options, &types).map_err(error(path))?;
    let ports = match adapted {
        Some(adapted) => {
            options = adapted;
            Signature {
                inputs: model.inputs(&options).map_err(error(path))?,
                ..Signature::default()
            }
        }
        None => ports,
    };
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
    Ok(OpenedOnnxModel {
        imported,
        arrays: given,
        fixed,
    })
}
