//! The extension module `tercet._tercet`, which the Python package `tercet` (`python/tercet`)
//! re-exports.
//!
//! The module exposes the graphs, devices, errors and results of the crates `tercet` and
//! `tercet-models`. The module adds conversions from and to NumPy ([`array`]) and from keywords to
//! attributes ([`literal`]). The module releases the GIL while it compiles or runs.
//!
//! An extension module takes Python's symbols from the process that loads it. One wheel (`abi3`)
//! therefore works with all Python versions from 3.9, and the module links no libpython. A Rust
//! test program does not run inside Python. With pyo3's feature `extension-module` it does not
//! link; without the feature it needs a local `libpython`. Therefore this crate has no Rust tests
//! and is not part of `cargo test --workspace`; `cargo xtask python` builds and tests it.

mod arithmetic;
mod array;
mod classifier;
#[cfg(feature = "train")]
mod curve;
mod device;
mod device_tensor;
mod dlpack;
mod encoder;
mod errors;
mod forms;
mod generation;
mod graph;
mod html;
mod index;
mod language;
mod literal;
mod numpy_buffer;
mod onnx;
mod onnx_session;
mod operator;
mod report;
mod sampling;
#[cfg(feature = "splat")]
mod scene;
mod session;
mod speech;
mod stream;
#[cfg(feature = "train")]
mod train;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::exceptions::{PyFileNotFoundError, PyValueError};
use pyo3::prelude::*;
use tercet::DType;
use tercet_models::{MatmulPrecision, ModelFamily, ModelFiles};

/// Opens a model, graph or scene and returns an object of the matching class:
///
/// - `.tercet`: a graph in text form.
/// - `.ply`: a 3D Gaussian splatting scene.
/// - `.onnx`: an ONNX model.
/// - `.gguf`, or a Hugging Face folder: a language model, sentence encoder, classifier or speech
///   recognition model.
///
/// The default `dtype` is `auto`. Language models then compute in f32, with matmul inputs in f16 or
/// bf16 if the weights and the device make that faster. Encoders compute in f32.
///
/// A graph has no device until `compile`. `bounds` are maximum sizes of an ONNX model's symbols,
/// for which it is compiled once. Without a bound, the model is compiled for the next power of two.
#[pyfunction]
#[pyo3(signature = (path, *, device=None, dtype=None, context=None, bounds=None))]
fn load<'py>(
    py: Python<'py>,
    path: PathBuf,
    device: Option<&str>,
    dtype: Option<&str>,
    context: Option<usize>,
    bounds: Option<BTreeMap<String, usize>>,
) -> PyResult<Bound<'py, PyAny>> {
    if !path.exists() {
        return Err(PyFileNotFoundError::new_err(format!(
            "{}: no such file or folder",
            path.display()
        )));
    }
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    if bounds.is_some() && extension != "onnx" {
        return Err(PyValueError::new_err(
            "bounds are for ONNX models; pass the bounds of a graph to compile()",
        ));
    }
    if extension == "tercet" {
        if device.is_some() || dtype.is_some() || context.is_some() {
            return Err(PyValueError::new_err(
                "a graph takes no device, dtype or context in load(); pass the device to compile()",
            ));
        }
        let bytes = std::fs::read(&path)?;
        let text = tercet::decode_text(&bytes).map_err(errors::text)?;
        let graph = tercet::parse(text).map_err(errors::text)?;
        return Ok(Bound::new(py, graph::PyGraph::from_graph(graph))?.into_any());
    }
    #[cfg(feature = "splat")]
    if extension == "ply" {
        if dtype.is_some() || context.is_some() {
            return Err(PyValueError::new_err(
                "a scene takes no dtype or context: it is rendered in f32",
            ));
        }
        let scene = py.detach(|| {
            let device = device::open(device.unwrap_or("auto"))?;
            scene::PyScene::open(&path, device).map_err(errors::model)
        })?;
        return Ok(Bound::new(py, scene)?.into_any());
    }
    if extension == "onnx" {
        if dtype.is_some() || context.is_some() {
            return Err(PyValueError::new_err(
                "an ONNX model takes no dtype or context: it runs in the dtypes of its file",
            ));
        }
        let bounds = bounds.into_iter().flatten().collect();
        let device = device.unwrap_or("auto");
        let model = py.detach(|| {
            let device = device::open(device)?;
            onnx::PyOnnxModel::open(path.as_path(), &device, bounds).map_err(onnx::error)
        })?;
        return Ok(Bound::new(py, model)?.into_any());
    }
    let (dtype, products) = match dtype {
        None | Some("auto") => (DType::F32, MatmulPrecision::Auto),
        Some(dtype) => (array::dtype(dtype)?, MatmulPrecision::Full),
    };
    let (files, family, device) = py.detach(|| {
        let files = ModelFiles::open(&path).map_err(errors::model)?;
        let family = files.family().map_err(errors::model)?;
        PyResult::Ok((files, family, device::open(device.unwrap_or("auto"))?))
    })?;
    load_family(py, (&files, family), &device, (dtype, products), context)
}

/// Creates the Python object for a model of this family.
fn load_family<'py>(
    py: Python<'py>,
    (files, family): (&ModelFiles, ModelFamily),
    device: &tercet::Device,
    (dtype, products): (DType, MatmulPrecision),
    context: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    match family {
        ModelFamily::Decoder => {
            let (files, device) = (files.clone(), device.clone());
            let model = py.detach(|| {
                language::PyLanguageModel::open(files, device, (dtype, products), context)
            });
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        ModelFamily::Vision => Err(errors::model(tercet_models::ModelError::Unsupported(
            "image models are not supported in Python; use `tercet embed` or `tercet classify`"
                .to_string(),
        ))),
        ModelFamily::Encoder if classifier::PyClassifier::is(files) => {
            let model =
                py.detach(|| classifier::PyClassifier::open(files, device, dtype, context));
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        ModelFamily::Encoder => {
            let model = py.detach(|| encoder::PyEncoder::open(files, device, dtype, context));
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        ModelFamily::VisionLanguage => Err(errors::model(tercet_models::ModelError::Unsupported(
            "vision-language models are not supported in Python; use `tercet chat` or `tercet generate`"
                .to_string(),
        ))),
        ModelFamily::TextToText => {
            let reason = "encoder-decoders are not supported in Python; use `tercet generate`";
            let unsupported = tercet_models::ModelError::Unsupported(reason.to_string());
            Err(errors::model(unsupported))
        }
        ModelFamily::Speech => {
            if context.is_some() || products == MatmulPrecision::Full {
                return Err(PyValueError::new_err(
                    "a speech recognition model takes no dtype or context: it runs in f32",
                ));
            }
            let model = py.detach(|| speech::PyRecognizer::open(files, device));
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
    }
}

/// Name, operands, attributes with their accepted values, description.
type OperatorRow = (String, Vec<String>, Vec<(String, String)>, String);

/// Lists the operators as tuples (name, operands, attributes with their accepted values,
/// description).
#[pyfunction]
fn operators() -> Vec<OperatorRow> {
    let row = |kind: &tercet::OpKind| {
        let doc = kind.doc();
        let operands = doc.operands.iter().map(ToString::to_string).collect();
        let attrs = kind
            .attr_kinds()
            .into_iter()
            .map(|(name, kind)| (name.to_string(), kind))
            .collect();
        (doc.name.to_string(), operands, attrs, doc.text.to_string())
    };
    tercet::OpKind::ALL.iter().map(row).collect()
}

#[pymodule]
fn _tercet(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(load, module)?)?;
    module.add_function(wrap_pyfunction!(operators, module)?)?;
    module.add_function(wrap_pyfunction!(device::devices, module)?)?;
    module.add_class::<graph::PyGraph>()?;
    module.add_class::<value::PyValue>()?;
    module.add_class::<operator::PyOperator>()?;
    module.add_class::<session::PySession>()?;
    module.add_class::<report::PyExplanation>()?;
    module.add_class::<report::PyVerification>()?;
    module.add_class::<language::PyLanguageModel>()?;
    module.add_class::<generation::PyGeneration>()?;
    module.add_class::<encoder::PyEncoder>()?;
    module.add_class::<classifier::PyClassifier>()?;
    module.add_class::<speech::PyRecognizer>()?;
    module.add_class::<speech::PyTranscription>()?;
    module.add_class::<speech::PySegment>()?;
    module.add_class::<report::PyTrace>()?;
    #[cfg(feature = "train")]
    {
        module.add_function(wrap_pyfunction!(train::train, module)?)?;
        module.add_class::<train::PyTrainer>()?;
    }
    #[cfg(feature = "splat")]
    {
        module.add_class::<scene::PyScene>()?;
        module.add_class::<scene::PyImage>()?;
    }
    onnx::PyOnnxModel::register(module)?;
    module.add_class::<onnx_session::PyNodeArg>()?;
    module.add_class::<onnx_session::PyModelMeta>()?;
    module.add_class::<device_tensor::PyDeviceTensor>()?;
    module.add_function(wrap_pyfunction!(dlpack::capsule, module)?)?;
    errors::register(module)
}
