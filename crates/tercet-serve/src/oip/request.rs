//! Parses inference requests.

use serde_json::Value;
use tercet::Tensor;

use super::tensor;
use crate::error::ApiError;
use crate::fields::{JsonFields, wrong};
use crate::graph::GraphModel;
use crate::queue_ticket::take_terms;
use crate::request_log::RequestRecord;

/// A requested output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OutputRequest {
    pub(crate) name: String,
    pub(crate) binary: bool,
}

/// A parsed inference request.
pub(crate) struct InferenceRequest {
    pub(crate) id: Option<String>,
    pub(crate) inputs: Vec<(String, Tensor)>,
    pub(crate) outputs: Vec<OutputRequest>,
}

impl InferenceRequest {
    /// Parses a JSON header and the tensor bytes that follow it.
    ///
    /// # Errors
    /// Returns an error that names the field or tensor that is invalid.
    pub(crate) fn parse(
        (graph, record): (&GraphModel, &RequestRecord),
        head: &[u8],
        mut binary: &[u8],
    ) -> Result<InferenceRequest, ApiError> {
        let mut fields = JsonFields::parse(head)?;
        let id = fields.text("id")?;
        let mut all_binary = false;
        if let Some(parameters) = fields.take("parameters") {
            let mut parameters = JsonFields::from_value(parameters, "field `parameters`")?;
            all_binary = parameters.truth("binary_data_output")?.unwrap_or(false);
            take_terms(&mut parameters, record)?;
            parameters.finish()?;
        }
        let mut inputs: Vec<(String, Tensor)> = Vec::new();
        for value in list("inputs", fields.need("inputs")?)? {
            let (name, tensor) = input(graph, value, &mut binary)?;
            if inputs.iter().any(|(n, _)| *n == name) {
                return Err(ApiError::bad_request(format!(
                    "input `{name}` occurs twice"
                )));
            }
            inputs.push((name, tensor));
        }
        if !binary.is_empty() {
            return Err(ApiError::bad_request(format!(
                "{} trailing bytes after the last tensor",
                binary.len()
            )));
        }
        let outputs = match fields.take("outputs") {
            None => {
                let all = graph.signature.outputs.iter();
                all.map(|o| OutputRequest {
                    name: o.name.clone(),
                    binary: all_binary,
                })
                .collect()
            }
            Some(value) => {
                let wanted = list("outputs", value)?
                    .into_iter()
                    .map(|v| output(graph, v, all_binary));
                wanted.collect::<Result<Vec<OutputRequest>, ApiError>>()?
            }
        };
        fields.finish()?;
        Ok(InferenceRequest {
            id,
            inputs,
            outputs,
        })
    }
}

fn list(name: &str, value: Value) -> Result<Vec<Value>, ApiError> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(wrong(name, &other, "a list")),
    }
}

fn named(fields: &mut JsonFields) -> Result<String, ApiError> {
    fields
        .text("name")?
        .ok_or_else(|| ApiError::bad_request("a tensor has no `name`"))
}

fn input(
    graph: &GraphModel,
    value: Value,
    binary: &mut &[u8],
) -> Result<(String, Tensor), ApiError> {
    let mut fields = JsonFields::from_value(value, "an input")?;
    let name = named(&mut fields)?;
    let port = graph.input(&name)?;
    let of = |what: &str| ApiError::bad_request(format!("input `{name}`: {what}"));
    let datatype = fields
        .text("datatype")?
        .ok_or_else(|| of("field `datatype` is missing"))?;
    if datatype != tensor::datatype(port.ty.dtype) {
        return Err(of(&format!(
            "datatype {datatype}, expected {}",
            tensor::datatype(port.ty.dtype)
        )));
    }
    let shape = list(
        "shape",
        fields
            .take("shape")
            .ok_or_else(|| of("field `shape` is missing"))?,
    )?;
    let size = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok());
    let shape: Option<Vec<usize>> = shape.iter().map(size).collect();
    let shape = shape.ok_or_else(|| of("field `shape` must be a list of sizes"))?;
    let mut size = None;
    if let Some(parameters) = fields.take("parameters") {
        let mut parameters = JsonFields::from_value(parameters, "field `parameters`")?;
        size = parameters.count("binary_data_size")?;
        parameters.finish()?;
    }
    let data = fields.take("data");
    fields.finish()?;
    let tensor = match (size, data) {
        (Some(size), None) => {
            let split = usize::try_from(size)
                .ok()
                .and_then(|n| binary.split_at_checked(n));
            let (own, rest) = split.ok_or_else(|| {
                of(&format!(
                    "`binary_data_size` is {size}, but the body has {} more bytes",
                    binary.len()
                ))
            })?;
            *binary = rest;
            tensor::from_bytes(port.ty.dtype, &shape, own).map_err(|e| of(&e))?
        }
        (None, Some(data)) => {
            tensor::from_json(port.ty.dtype, &shape, &data).map_err(|e| of(&e))?
        }
        (None, None) => return Err(of("`data` or `binary_data_size` is required")),
        (Some(_), Some(_)) => return Err(of("`data` and `binary_data_size` exclude each other")),
    };
    Ok((name, tensor))
}

fn output(graph: &GraphModel, value: Value, all_binary: bool) -> Result<OutputRequest, ApiError> {
    let mut fields = JsonFields::from_value(value, "an output")?;
    let name = named(&mut fields)?;
    graph.output(&name)?;
    let mut binary = all_binary;
    if let Some(parameters) = fields.take("parameters") {
        let mut parameters = JsonFields::from_value(parameters, "field `parameters`")?;
        binary = parameters.truth("binary_data")?.unwrap_or(all_binary);
        parameters.finish()?;
    }
    fields.finish()?;
    Ok(OutputRequest { name, binary })
}
