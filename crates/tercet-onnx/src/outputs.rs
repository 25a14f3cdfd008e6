//! The outputs of a model: names and properties beyond their types.

use tercet_ir::Value;

use crate::ctx::ImportCtx;
use crate::elem;
use crate::error::NodeErrorKind;
use crate::padded_value::DynamicSizeOutput;
use crate::proto::{GraphProto, TypeProto, TypeValue};
use crate::val::ImportedValue;

/// An output that is a map from keys to numbers in the file.
///
/// ```
/// use tercet_onnx::MapOutput;
/// let keys = vec!["elm".to_string(), "oak".to_string()];
/// let output = MapOutput { output: "probabilities".to_string(), keys };
/// // The column of a key in the output matrix.
/// assert_eq!(output.keys.iter().position(|key| key == "oak"), Some(1));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapOutput {
    /// The name of the output.
    pub output: String,
    /// The key of each column.
    pub keys: Vec<String>,
}

/// Properties of outputs beyond their types.
#[derive(Default)]
pub(crate) struct OutputAnnotations {
    pub(crate) counted: Vec<DynamicSizeOutput>,
    pub(crate) columns: Vec<MapOutput>,
    /// The names of string outputs.
    pub(crate) strings: Vec<String>,
    /// The outputs that are sequences, or absent, with their lengths.
    pub(crate) sequences: Vec<(String, usize)>,
}

/// Names the outputs, followed by the counts of padded outputs.
pub(crate) fn name(ctx: &mut ImportCtx<'_>, graph: &GraphProto) -> OutputAnnotations {
    let mut naming = OutputNaming::default();
    for info in &graph.output {
        let name = info.name.as_deref().unwrap_or("");
        let made = match ctx.lookup(name) {
            None => Err(NodeErrorKind::unsupported("no node defines it")),
            Some(val) => naming.add(ctx, name, info.r#type.as_ref(), val),
        };
        if let Err(reason) = made {
            ctx.fail(name.to_string(), "output", reason);
        }
    }
    let OutputNaming {
        counts, mut named, ..
    } = naming;
    for (own, value) in counts {
        if let Err(reason) = ctx.g().output(&own.count, value) {
            ctx.fail(own.count.clone(), "output", reason.into());
        }
        named.counted.push(own);
    }
    named
}

/// The outputs named so far.
#[derive(Default)]
struct OutputNaming {
    /// The number of graph outputs.
    len: usize,
    counts: Vec<(DynamicSizeOutput, Value)>,
    named: OutputAnnotations,
}

impl OutputNaming {
    fn add(
        &mut self,
        ctx: &mut ImportCtx<'_>,
        name: &str,
        declared: Option<&TypeProto>,
        val: ImportedValue,
    ) -> Result<(), NodeErrorKind> {
        let (declared, is_optional) = match declared.and_then(|t| t.value.as_ref()) {
            Some(TypeValue::Optional(of)) => (of.elem_type.as_deref(), true),
            _ => (declared, false),
        };
        match val {
            ImportedValue::Failed => return Ok(()),
            ImportedValue::Absent if is_optional => {
                self.named.sequences.push((name.to_string(), 0));
                return Ok(());
            }
            ImportedValue::Seq(list) => {
                let of = match declared.and_then(|t| t.value.as_ref()) {
                    Some(TypeValue::Sequence(of)) => of.elem_type.as_deref(),
                    _ => None,
                };
                self.named.sequences.push((name.to_string(), list.len()));
                for (i, part) in list.iter().enumerate() {
                    self.add(ctx, &format!("{name}[{i}]"), of, part.clone())?;
                }
                return Ok(());
            }
            ImportedValue::Bounded(own) => {
                let count = format!("{name}#count");
                let counted = DynamicSizeOutput {
                    output: self.len,
                    axis: own.axis,
                    count,
                };
                self.counts.push((counted, own.count));
                name_output(ctx, name, declared, &own.value.into())?;
            }
            ImportedValue::Maps(maps) => {
                self.named.columns.push(MapOutput {
                    output: name.to_string(),
                    keys: maps.keys.clone(),
                });
                ctx.g().output(name, maps.value)?;
            }
            val => {
                if matches!(val, ImportedValue::Narrow(elem::Narrow::Text, _)) {
                    self.named.strings.push(name.to_string());
                }
                name_output(ctx, name, declared, &val)?;
            }
        }
        self.len += 1;
        Ok(())
    }
}

/// Names a graph output, after checking its dtype against the declared one.
fn name_output(
    ctx: &mut ImportCtx<'_>,
    name: &str,
    declared: Option<&TypeProto>,
    val: &ImportedValue,
) -> Result<(), NodeErrorKind> {
    let (val, narrow) = match val {
        ImportedValue::Narrow(narrow, inner) => (&**inner, Some(*narrow)),
        other => (other, None),
    };
    let value = ctx.place(val, 0)?;
    let declared = match declared.and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => t.elem_type.unwrap_or(0),
        Some(_) => {
            return Err(NodeErrorKind::unsupported(
                "outputs other than tensors are not supported",
            ));
        }
        None => 0,
    };
    if declared != 0 {
        let declared = elem::elem(declared.into()).map_err(NodeErrorKind::unsupported)?;
        let found = match narrow {
            Some(narrow) => elem::OnnxDType::EmulatedDType(narrow),
            None => elem::OnnxDType::Plain(ctx.graph().ty(value).dtype),
        };
        if declared != found {
            return Err(NodeErrorKind::unsupported(format!(
                "it is declared as {declared}, but its node returns {found}"
            )));
        }
    }
    Ok(ctx.g().output(name, value)?)
}
