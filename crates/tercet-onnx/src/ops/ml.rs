//! Operators of `ai.onnx.ml`: classical machine learning models with their pre- and postprocessing,
//! as exported from scikit-learn, XGBoost and LightGBM.
//!
//! Models become gathers from tables and matmuls, so they run on every executor. Class labels are
//! numbers or strings (`strings`), and scores are F32.

mod classes;
mod coupling;
mod encoders;
mod ensemble;
mod features;
mod linear;
mod svm;
mod trees;

use classes::{ClassLabels, PostTransform};

use tercet_ir::{DType, Dim, Tensor, Value};

use super::shape::reshaped;
use super::{NodeImportFn, OpsetEntry, op};
use crate::call::ImportNode;
use crate::error::NodeErrorKind;
use crate::strings::LEARNED;
use crate::val::ImportedValue;

/// An operator of this domain, from version 1 on.
const fn learned(name: &'static str, import: NodeImportFn) -> OpsetEntry {
    op(name, 1, import).in_domain(LEARNED)
}

pub(crate) const TABLE: &[OpsetEntry] = &[
    learned("LinearClassifier", linear::classifier),
    learned("LinearRegressor", linear::regressor),
    learned("SVMClassifier", svm::classifier),
    learned("SVMRegressor", svm::regressor),
    learned("TreeEnsembleClassifier", trees::classifier),
    learned("TreeEnsembleRegressor", trees::regressor),
    op("TreeEnsemble", 5, trees::ensemble).in_domain(LEARNED),
    learned("Scaler", features::scaler),
    learned("Normalizer", features::normalizer),
    learned("Imputer", features::imputer),
    learned("FeatureVectorizer", features::vectorizer),
    learned("OneHotEncoder", encoders::one_hot),
    learned("LabelEncoder", encoders::label),
    learned("CategoryMapper", encoders::category),
    learned("ZipMap", classes::zip_map),
];

/// The features, `[samples, features]`, as floats; other dtypes are converted to F32. A vector is
/// one sample.
fn features(k: &mut ImportNode<'_, '_>) -> Result<Value, NodeErrorKind> {
    let x = k.x(0)?;
    let x = match k.dims(x).as_slice() {
        [n] => reshaped(k.g(), x, &[Dim::Known(1), n.clone()])?,
        [_, _] => x,
        dims => {
            let reason = format!("has {} axes, expected samples by features", dims.len());
            return Err(NodeErrorKind::operand(0, reason));
        }
    };
    match k.dtype(x).is_float() {
        true => Ok(x),
        false => Ok(k.g().cast(x, DType::F32)?),
    }
}

/// The features as F32.
fn features_f32(k: &mut ImportNode<'_, '_>) -> Result<Value, NodeErrorKind> {
    let x = features(k)?;
    crate::emulated_dtypes::cast_to(k.g(), x, DType::F32)
}

/// A table of the model as a graph value; a parameter if it is large.
fn table(k: &mut ImportNode<'_, '_>, what: &str, tensor: Tensor) -> Result<Value, NodeErrorKind> {
    let of = k.node.output.iter().find(|n| !n.is_empty());
    let name = format!("{}.{what}", of.map_or("model", String::as_str));
    k.c.place(&ImportedValue::named(tensor, Some(name)), 0)
}

/// A required attribute with exactly `count` numbers.
fn floats<'m>(
    k: &ImportNode<'_, 'm>,
    name: &str,
    count: usize,
) -> Result<&'m [f32], NodeErrorKind> {
    let list = k.attrs.floats_opt(name)?.unwrap_or_default();
    match list.len() == count {
        true => Ok(list),
        false => Err(NodeErrorKind::attribute(
            name,
            format!("has {} values, expected {count}", list.len()),
        )),
    }
}
