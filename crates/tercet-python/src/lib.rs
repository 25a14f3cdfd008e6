//! The module `tercet._tercet`, which the package `tercet` (`python/tercet`) shows: the engine for Python.
//!
//! It is a thin door: graphs, devices, errors and results are those of the crates `tercet` and `tercet-models`. What
//! it adds is the way from and to NumPy ([`array`]), from keywords to attributes ([`literal`]), and Python's lock,
//! which is released while anything compiles or runs.
//!
//! An extension module takes Python's symbols from the process that loads it, so that one wheel (`abi3`) serves all
//! versions from 3.9 on and none is linked. A test program has no such process: with pyo3's feature `extension-module` it
//! does not link, without it it needs a `libpython` of the machine. So no test is written in Rust here, and nothing of
//! this crate is built by `cargo test --workspace`: `cargo xtask python` builds and tests it.

mod array;
mod classifier;
#[cfg(feature = "train")]
mod curve;
mod device;
mod encoder;
mod errors;
mod generation;
mod graph;
mod html;
mod language;
mod lent;
mod literal;
mod onnx;
mod operator;
mod report;
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
use tercet_models::{Family, ModelFiles, Products};

/// Opens a model, a graph or a scene: a graph in text form (`.tercet`), a scene of 3-D Gaussians (`.ply`), a GGUF file, a Hugging Face folder of a language model, of
/// a sentence encoder, of a classifier or of a speech recognizer, an ONNX model.
///
/// `dtype` is `auto` by default: language models compute in f32, but rows of prompts are multiplied in f16 or bf16 where
/// weights and device gain by it; encoders compute in f32.
///
/// A graph has no device yet: it takes one in `compile`. `bounds` are the greatest sizes of an ONNX model's symbols, for
/// which it is compiled once; without one it is compiled for the next power of two.
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
            "bounds are for the symbols of an ONNX model; a graph takes them in compile()",
        ));
    }
    if extension == "tercet" {
        if device.is_some() || dtype.is_some() || context.is_some() {
            return Err(PyValueError::new_err(
                "a graph takes no device, dtype or context when it is loaded; give the device to compile()",
            ));
        }
        let bytes = std::fs::read(&path)?;
        let text = tercet::decode_text(&bytes).map_err(errors::text)?;
        let graph = tercet::parse(text).map_err(errors::text)?;
        return Ok(Bound::new(py, graph::PyGraph::of(graph))?.into_any());
    }
    #[cfg(feature = "splat")]
    if extension == "ply" {
        if dtype.is_some() || context.is_some() {
            return Err(PyValueError::new_err(
                "a scene takes no dtype or context: it is drawn in f32",
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
            onnx::PyOnnxModel::open(&path, &device, bounds).map_err(onnx::error)
        })?;
        return Ok(Bound::new(py, model)?.into_any());
    }
    let (dtype, products) = match dtype {
        None | Some("auto") => (DType::F32, Products::Auto),
        Some(dtype) => (array::dtype(dtype)?, Products::Exact),
    };
    let (files, family, device) = py.detach(|| {
        let files = ModelFiles::open(&path).map_err(errors::model)?;
        let family = files.family().map_err(errors::model)?;
        PyResult::Ok((files, family, device::open(device.unwrap_or("auto"))?))
    })?;
    of_family(py, (&files, family), &device, (dtype, products), context)
}

/// What a model of this family is in Python.
fn of_family<'py>(
    py: Python<'py>,
    (files, family): (&ModelFiles, Family),
    device: &tercet::Device,
    (dtype, products): (DType, Products),
    context: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    match family {
        Family::Decoder => {
            let (files, device) = (files.clone(), device.clone());
            let model = py.detach(|| {
                language::PyLanguageModel::open(files, device, (dtype, products), context)
            });
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        Family::Vision => Err(errors::model(tercet_models::ModelError::Unsupported(
            "models of pictures have no class in Python; `tercet embed` and `tercet classify` run them"
                .to_string(),
        ))),
        Family::Encoder if classifier::PyClassifier::is(files) => {
            let model =
                py.detach(|| classifier::PyClassifier::open(files, device, dtype, context));
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        Family::Encoder => {
            let model = py.detach(|| encoder::PyEncoder::open(files, device, dtype, context));
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        Family::VisionLanguage => Err(errors::model(tercet_models::ModelError::Unsupported(
            "models of pictures and texts have no class in Python; `tercet chat` and `tercet generate` run them"
                .to_string(),
        ))),
        Family::TextToText => {
            let reason = "encoder-decoders are not there in Python; `tercet generate` runs them";
            let unsupported = tercet_models::ModelError::Unsupported(reason.to_string());
            Err(errors::model(unsupported))
        }
        Family::Speech => {
            if context.is_some() || products == Products::Exact {
                return Err(PyValueError::new_err(
                    "a speech recognizer takes no dtype or context: it computes in f32",
                ));
            }
            let model = py.detach(|| speech::PyRecognizer::open(files, device));
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
    }
}

/// Name, operands, attributes with what they take, meaning.
type OperatorRow = (String, Vec<String>, Vec<(String, String)>, String);

/// The operators: each name with its operands, its attributes with what they take, and its meaning.
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
        module.add_class::<scene::PyPicture>()?;
    }
    module.add_class::<onnx::PyOnnxModel>()?;
    errors::register(module)
}
