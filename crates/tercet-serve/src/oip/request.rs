//! Reading an inference request.

use serde_json::Value;
use tercet::Tensor;

use super::tensor;
use crate::error::Refusal;
use crate::fields::{Fields, wrong};
use crate::graph::Served;

/// An output that is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) name: String,
    pub(crate) binary: bool,
}

/// What is to be run.
pub(crate) struct Request {
    pub(crate) id: Option<String>,
    pub(crate) inputs: Vec<(String, Tensor)>,
    pub(crate) outputs: Vec<Wanted>,
}

impl Request {
    /// The request of a JSON header and the bytes of tensors behind it.
    ///
    /// # Errors
    /// A refusal that names the field or the tensor.
    pub(crate) fn parse(
        graph: &Served,
        head: &[u8],
        mut binary: &[u8],
    ) -> Result<Request, Refusal> {
        let mut fields = Fields::parse(head)?;
        let id = fields.text("id")?;
        let mut all_binary = false;
        if let Some(parameters) = fields.take("parameters") {
            let mut parameters = Fields::of(parameters, "field `parameters`")?;
            all_binary = parameters.truth("binary_data_output")?.unwrap_or(false);
            parameters.finish()?;
        }
        let mut inputs: Vec<(String, Tensor)> = Vec::new();
        for value in list("inputs", fields.need("inputs")?)? {
            let (name, tensor) = input(graph, value, &mut binary)?;
            if inputs.iter().any(|(n, _)| *n == name) {
                return Err(Refusal::bad(format!("input `{name}` is given twice")));
            }
            inputs.push((name, tensor));
        }
        if !binary.is_empty() {
            return Err(Refusal::bad(format!(
                "{} bytes behind the last tensor belong to no input",
                binary.len()
            )));
        }
        let outputs = match fields.take("outputs") {
            None => {
                let all = graph.signature.outputs.iter();
                all.map(|o| Wanted {
                    name: o.name.clone(),
                    binary: all_binary,
                })
                .collect()
            }
            Some(value) => {
                let wanted = list("outputs", value)?
                    .into_iter()
                    .map(|v| output(graph, v, all_binary));
                wanted.collect::<Result<Vec<Wanted>, Refusal>>()?
            }
        };
        fields.finish()?;
        Ok(Request {
            id,
            inputs,
            outputs,
        })
    }
}

fn list(name: &str, value: Value) -> Result<Vec<Value>, Refusal> {
    match value {
        Value::Array(items) => Ok(items),
        other => Err(wrong(name, &other, "a list")),
    }
}

fn named(fields: &mut Fields) -> Result<String, Refusal> {
    fields
        .text("name")?
        .ok_or_else(|| Refusal::bad("a tensor has no `name`"))
}

fn input(graph: &Served, value: Value, binary: &mut &[u8]) -> Result<(String, Tensor), Refusal> {
    let mut fields = Fields::of(value, "an input")?;
    let name = named(&mut fields)?;
    let port = graph.input(&name)?;
    let of = |what: &str| Refusal::bad(format!("input `{name}`: {what}"));
    let datatype = fields
        .text("datatype")?
        .ok_or_else(|| of("field `datatype` is missing"))?;
    if datatype != tensor::datatype(port.ty.dtype) {
        return Err(of(&format!(
            "datatype {datatype}; the graph takes {}",
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
    let shape = shape.ok_or_else(|| of("field `shape` has to be a list of sizes"))?;
    let mut size = None;
    if let Some(parameters) = fields.take("parameters") {
        let mut parameters = Fields::of(parameters, "field `parameters`")?;
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
                    "{size} bytes are said to follow, and {} do",
                    binary.len()
                ))
            })?;
            *binary = rest;
            tensor::from_bytes(port.ty.dtype, &shape, own).map_err(|e| of(&e))?
        }
        (None, Some(data)) => {
            tensor::from_json(port.ty.dtype, &shape, &data).map_err(|e| of(&e))?
        }
        (None, None) => return Err(of("neither `data` nor `binary_data_size` is given")),
        (Some(_), Some(_)) => return Err(of("both `data` and `binary_data_size` are given")),
    };
    Ok((name, tensor))
}

fn output(graph: &Served, value: Value, all_binary: bool) -> Result<Wanted, Refusal> {
    let mut fields = Fields::of(value, "an output")?;
    let name = named(&mut fields)?;
    graph.output(&name)?;
    let mut binary = all_binary;
    if let Some(parameters) = fields.take("parameters") {
        let mut parameters = Fields::of(parameters, "field `parameters`")?;
        binary = parameters.truth("binary_data")?.unwrap_or(all_binary);
        parameters.finish()?;
    }
    fields.finish()?;
    Ok(Wanted { name, binary })
}
