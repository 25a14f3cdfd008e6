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
mod conversation;
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
mod hub;
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
mod texts;
mod tool_calls;
#[cfg(feature = "train")]
mod train;
mod value;

use std::collections::BTreeMap;
use std::path::PathBuf;

use pyo3::exceptions::{PyFileNotFoundError, PyValueError};
use pyo3::prelude::*;
use tercet::DType;
use tercet_models::{MatmulPrecision, ModelFamily, ModelFiles, PoolingMode};

/// The kinds of objects that [`load`] returns.
const KINDS: [&str; 7] = [
    "graph",
    "scene",
    "onnx",
    "language",
    "encoder",
    "classifier",
    "speech",
];

/// Opens a model, graph or scene and returns an object of the matching class:
///
/// - `.tercet`: a graph in text form.
/// - `.ply`: a 3D Gaussian splatting scene.
/// - `.onnx`: an ONNX model.
/// - `.gguf`, or a Hugging Face folder: a language model, sentence encoder, classifier or speech
///   recognition model.
///
/// A path that does not exist can be the name of a model of the hub, `ORG/NAME[:QUANT]`. It is
/// downloaded into the cache that all tools of the hub share, unless it is there. `HF_TOKEN`,
/// `HF_ENDPOINT`, `HF_HOME` and `HF_HUB_OFFLINE` apply.
///
/// `kind` states the kind of the file, for type checkers and clear errors: `graph`, `scene`, `onnx`,
/// `language`, `encoder`, `classifier` or `speech`. A classifier opens as `encoder` too.
///
/// The default `dtype` is `auto`. Language models then compute in f32, with matmul inputs in f16 or
/// bf16 if the weights and the device make that faster. Encoders compute in f32.
///
/// A graph has no device until `compile`. `bounds` are maximum sizes of an ONNX model's symbols,
/// for which it is compiled once. Without a bound, the model is compiled for the next power of two.
/// `adapters` are paths of adapters by name, which each request of a language model can select.
///
/// `pooling` replaces the pooling of an encoder's files: `mean`, `cls`, `last`, `max`,
/// `weighted-mean` or `mean-sqrt-len`. With it, a language model opens as an encoder too.
#[pyfunction]
#[pyo3(signature = (path, *, kind=None, device=None, dtype=None, context=None, bounds=None, adapters=None, pooling=None))]
#[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
fn load<'py>(
    py: Python<'py>,
    path: PathBuf,
    kind: Option<&str>,
    device: Option<&str>,
    dtype: Option<&Bound<'py, PyAny>>,
    context: Option<usize>,
    bounds: Option<BTreeMap<String, usize>>,
    adapters: Option<BTreeMap<String, PathBuf>>,
    pooling: Option<&str>,
) -> PyResult<Bound<'py, PyAny>> {
    let pooling = pooling.map(pooling_of).transpose()?;
    if let Some(kind) = kind.filter(|kind| !KINDS.contains(kind)) {
        return Err(PyValueError::new_err(format!(
            "kind is `{kind}`; expected one of {}",
            KINDS.join(", ")
        )));
    }
    let path = hub::path_of(py, path, device)?;
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
    let found = match extension {
        "tercet" => Some("graph"),
        "ply" => Some("scene"),
        "onnx" => Some("onnx"),
        _ => None,
    };
    let is_file = |kind: &str| KINDS[..3].contains(&kind);
    if let Some(kind) = kind
        && found != Some(kind)
        && (found.is_some() || is_file(kind))
    {
        return Err(wrong_kind(&path, kind, found.unwrap_or("model")));
    }
    if adapters.is_some() && found.is_some() {
        return Err(PyValueError::new_err("adapters are for language models"));
    }
    let options = LoadOptions {
        kind,
        device,
        dtype,
        context,
        adapters: adapters.unwrap_or_default(),
        pooling,
    };
    if pooling.is_some()
        && ["graph", "scene", "onnx"]
            .iter()
            .any(|kind| found == Some(*kind))
    {
        return Err(not_pooled());
    }
    match found {
        Some("graph") => load_graph(py, &path, &options),
        #[cfg(feature = "splat")]
        Some("scene") => load_scene(py, &path, &options),
        Some("onnx") => load_onnx(py, &path, &options, bounds),
        _ => load_model(py, &path, options),
    }
}

/// The keyword arguments of [`load`].
struct LoadOptions<'a, 'py> {
    kind: Option<&'a str>,
    device: Option<&'a str>,
    dtype: Option<&'a Bound<'py, PyAny>>,
    context: Option<usize>,
    adapters: BTreeMap<String, PathBuf>,
    pooling: Option<PoolingMode>,
}

fn not_pooled() -> PyErr {
    PyValueError::new_err("pooling is for text encoders and language models; leave it out")
}

/// The pooling of a name.
fn pooling_of(name: &str) -> PyResult<PoolingMode> {
    PoolingMode::from_name(name).ok_or_else(|| {
        let names = PoolingMode::ALL.map(PoolingMode::name).join(", ");
        PyValueError::new_err(format!("pooling is `{name}`; expected one of {names}"))
    })
}

fn wrong_kind(path: &std::path::Path, kind: &str, found: &str) -> PyErr {
    errors::model(tercet_models::ModelError::Unsupported(format!(
        "{} is of the kind `{found}`, not `{kind}`; leave out `kind`, or pass another file",
        path.display()
    )))
}

fn load_graph<'py>(
    py: Python<'py>,
    path: &std::path::Path,
    options: &LoadOptions<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    if options.device.is_some() || options.dtype.is_some() || options.context.is_some() {
        return Err(PyValueError::new_err(
            "a graph takes no device, dtype or context in load(); pass the device to compile()",
        ));
    }
    let bytes = std::fs::read(path)?;
    let text = tercet::decode_text(&bytes).map_err(errors::text)?;
    let graph = tercet::parse(text).map_err(errors::text)?;
    Ok(Bound::new(py, graph::PyGraph::from_graph(graph))?.into_any())
}

#[cfg(feature = "splat")]
fn load_scene<'py>(
    py: Python<'py>,
    path: &std::path::Path,
    options: &LoadOptions<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    if options.dtype.is_some() || options.context.is_some() {
        return Err(PyValueError::new_err(
            "a scene takes no dtype or context: it is rendered in f32",
        ));
    }
    let device = options.device.unwrap_or("auto");
    let scene = py.detach(|| {
        let device = device::open(device)?;
        scene::PyScene::open(path, device).map_err(errors::model)
    })?;
    Ok(Bound::new(py, scene)?.into_any())
}

fn load_onnx<'py>(
    py: Python<'py>,
    path: &std::path::Path,
    options: &LoadOptions<'_, 'py>,
    bounds: Option<BTreeMap<String, usize>>,
) -> PyResult<Bound<'py, PyAny>> {
    if options.dtype.is_some() || options.context.is_some() {
        return Err(PyValueError::new_err(
            "an ONNX model takes no dtype or context: it runs in the dtypes of its file",
        ));
    }
    let bounds = bounds.into_iter().flatten().collect();
    let device = options.device.unwrap_or("auto");
    let model = py.detach(|| {
        let device = device::open(device)?;
        onnx::PyOnnxModel::open(path, &device, bounds).map_err(onnx::error)
    })?;
    Ok(Bound::new(py, model)?.into_any())
}

fn load_model<'py>(
    py: Python<'py>,
    path: &std::path::Path,
    options: LoadOptions<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let is_given = |dtype: &&Bound<'_, PyAny>| {
        !dtype.is_none() && dtype.extract::<String>().ok().as_deref() != Some("auto")
    };
    let (dtype, products) = match options.dtype.filter(is_given) {
        None => (DType::F32, MatmulPrecision::Auto),
        Some(dtype) => (array::dtype_of(dtype)?, MatmulPrecision::Full),
    };
    let device = options.device.unwrap_or("auto");
    let (files, family, device) = py.detach(|| {
        let files = ModelFiles::open(path).map_err(errors::model)?;
        let family = files.family().map_err(errors::model)?;
        PyResult::Ok((files, family, device::open(device)?))
    })?;
    let found = match family {
        ModelFamily::Decoder | ModelFamily::VisionLanguage => "language",
        ModelFamily::Encoder if classifier::PyClassifier::is(&files) => "classifier",
        ModelFamily::Encoder => "encoder",
        ModelFamily::Speech => "speech",
        ModelFamily::Vision => "image",
        ModelFamily::TextToText => "text-to-text",
    };
    // With a pooling, a language model embeds texts.
    let embeds =
        options.pooling.is_some() && matches!(family, ModelFamily::Decoder | ModelFamily::Encoder);
    let kind = options
        .kind
        .unwrap_or(if embeds { "encoder" } else { found });
    if options.pooling.is_some() && (!embeds || kind != "encoder") {
        return Err(not_pooled());
    }
    if kind != found && (kind, found) != ("encoder", "classifier") && !embeds {
        return Err(wrong_kind(path, kind, found));
    }
    if !options.adapters.is_empty() && found != "language" {
        return Err(PyValueError::new_err("adapters are for language models"));
    }
    load_family(
        py,
        (&files, family, kind),
        &device,
        (dtype, products),
        options,
    )
}

/// Creates the Python object for a model of this family.
fn load_family<'py>(
    py: Python<'py>,
    (files, family, kind): (&ModelFiles, ModelFamily, &str),
    device: &tercet::Device,
    (dtype, products): (DType, MatmulPrecision),
    options: LoadOptions<'_, 'py>,
) -> PyResult<Bound<'py, PyAny>> {
    let LoadOptions {
        context,
        adapters,
        pooling,
        ..
    } = options;
    let unsupported =
        |reason: &str| errors::model(tercet_models::ModelError::Unsupported(reason.to_string()));
    match family {
        ModelFamily::Decoder if pooling.is_some() => {
            let open = || encoder::PyEncoder::open(files, device, dtype, context, pooling);
            Ok(Bound::new(py, py.detach(open).map_err(errors::model)?)?.into_any())
        }
        ModelFamily::Decoder | ModelFamily::VisionLanguage => {
            let files = (files.clone(), family == ModelFamily::VisionLanguage);
            let device = device.clone();
            let model = py.detach(|| {
                language::PyLanguageModel::open(files, device, (dtype, products), context, adapters)
            });
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        ModelFamily::Vision => Err(unsupported(
            "image models are not supported in Python; use `tercet embed` or `tercet classify`",
        )),
        ModelFamily::Encoder if kind == "classifier" => {
            let model = py.detach(|| classifier::PyClassifier::open(files, device, dtype, context));
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        ModelFamily::Encoder => {
            let model =
                py.detach(|| encoder::PyEncoder::open(files, device, dtype, context, pooling));
            Ok(Bound::new(py, model.map_err(errors::model)?)?.into_any())
        }
        ModelFamily::TextToText => Err(unsupported(
            "encoder-decoders are not supported in Python; use `tercet generate`",
        )),
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
