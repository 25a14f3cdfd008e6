//! Results of a model: their names, and what is to be said of them besides their types.

use crate::bounded::Counted;
use crate::ctx::Ctx;
use crate::elem;
use crate::error::Reason;
use crate::proto::{GraphProto, TypeValue, ValueInfoProto};
use crate::val::Val;

/// An output that stands for maps from keys to numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Columns {
    /// Its name.
    pub output: String,
    /// The keys of its columns.
    pub keys: Vec<String>,
}

/// What is to be said of outputs besides their types.
#[derive(Default)]
pub(crate) struct Named {
    pub(crate) counted: Vec<Counted>,
    pub(crate) columns: Vec<Columns>,
    /// Those that are strings.
    pub(crate) strings: Vec<String>,
}

/// Names the outputs, and behind them how much is used of those whose size depends on data.
pub(crate) fn name(ctx: &mut Ctx<'_>, graph: &GraphProto) -> Named {
    let mut counts = Vec::new();
    let mut named = Named::default();
    for (output, info) in graph.output.iter().enumerate() {
        let name = info.name.as_deref().unwrap_or("");
        let made = match ctx.lookup(name) {
            None => Err(Reason::unsupported("no node gives it")),
            Some(Val::Failed) => continue,
            Some(Val::Bounded(own)) => {
                let count = format!("{name}#count");
                let axis = own.axis;
                let counted = Counted {
                    output,
                    axis,
                    count,
                };
                counts.push((counted, own.count));
                name_output(ctx, name, info, &own.value.into())
            }
            Some(Val::Maps(maps)) => {
                named.columns.push(Columns {
                    output: name.to_string(),
                    keys: maps.keys.clone(),
                });
                ctx.g().output(name, maps.value).map_err(Reason::from)
            }
            Some(val) => {
                if matches!(val, Val::Narrow(elem::Narrow::Text, _)) {
                    named.strings.push(name.to_string());
                }
                name_output(ctx, name, info, &val)
            }
        };
        if let Err(reason) = made {
            ctx.fail(name.to_string(), "output", reason);
        }
    }
    for (own, value) in counts {
        if let Err(reason) = ctx.g().output(&own.count, value) {
            ctx.fail(own.count.clone(), "output", reason.into());
        }
        named.counted.push(own);
    }
    named
}

/// Names a result of the graph, after checking that its dtype is as declared.
fn name_output(
    ctx: &mut Ctx<'_>,
    name: &str,
    info: &ValueInfoProto,
    val: &Val,
) -> Result<(), Reason> {
    let (val, narrow) = match val {
        Val::Narrow(narrow, inner) => (&**inner, Some(*narrow)),
        other => (other, None),
    };
    let value = ctx.place(val, 0)?;
    let declared = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
        Some(TypeValue::Tensor(t)) => t.elem_type.unwrap_or(0),
        Some(_) => {
            return Err(Reason::unsupported(
                "results that are no tensors are not supported",
            ));
        }
        None => 0,
    };
    if declared != 0 {
        let declared = elem::elem(declared.into()).map_err(Reason::unsupported)?;
        let found = match narrow {
            Some(narrow) => elem::Elem::Narrow(narrow),
            None => elem::Elem::Plain(ctx.graph().ty(value).dtype),
        };
        if declared != found {
            return Err(Reason::unsupported(format!(
                "it is declared {declared}, its node gives {found}"
            )));
        }
    }
    Ok(ctx.g().output(name, value)?)
}
