//! Names of activation functions in configurations of transformers (`ACT2FN`).

use super::decoder::FfnActivation;
use super::{ConfigError, ConfigFields};

/// Names of `ACT2FN` by function. The other names (`gelu_10`, `hardswish`, `laplace`, `leaky_relu`,
/// `mish`, `prelu`, `sqrtsoftplus`, `xielu`) are refused.
const NAMES: &[(&str, FfnActivation)] = &[
    ("gelu", FfnActivation::Gelu),
    ("gelu_accurate", FfnActivation::GeluTanh),
    ("gelu_fast", FfnActivation::GeluTanh),
    ("gelu_new", FfnActivation::GeluTanh),
    ("gelu_python", FfnActivation::Gelu),
    ("gelu_python_tanh", FfnActivation::GeluTanh),
    ("gelu_pytorch_tanh", FfnActivation::GeluTanh),
    ("linear", FfnActivation::Identity),
    ("quick_gelu", FfnActivation::GeluQuick),
    ("relu", FfnActivation::Relu),
    ("relu2", FfnActivation::ReluSquared),
    ("relu6", FfnActivation::Relu6),
    ("sigmoid", FfnActivation::Sigmoid),
    ("silu", FfnActivation::Silu),
    ("swish", FfnActivation::Silu),
    ("tanh", FfnActivation::Tanh),
];

/// The function of a name.
pub(super) fn by_name(name: &str) -> Option<FfnActivation> {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, function)| *function)
}

/// The supported names, for error messages.
pub(super) fn supported() -> String {
    let names: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
    names.join(", ")
}

/// Checks a field of layers that support only SiLU.
///
/// # Errors
/// [`ConfigError::Unsupported`] if the field names another function.
pub(super) fn only_silu(fields: &ConfigFields<'_>, name: &'static str) -> Result<(), ConfigError> {
    fields.only(name, "silu", |value| {
        value.as_str().and_then(by_name) == Some(FfnActivation::Silu)
    })
}

/// The function that a field names; `None` if it is absent.
///
/// # Errors
/// [`ConfigError::Unsupported`] with the supported names.
pub(crate) fn read(
    fields: &ConfigFields<'_>,
    name: &'static str,
) -> Result<Option<FfnActivation>, ConfigError> {
    let mut found = None;
    fields.only(name, &supported(), |value| {
        found = value.as_str().and_then(by_name);
        found.is_some()
    })?;
    Ok(found)
}
