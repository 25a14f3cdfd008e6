//! Cases of control flow, with small nested graphs.

mod branches;
mod loops;
mod scans;

pub(super) use branches::{branches, rejected_branches};
pub(super) use loops::{loops, rejected_loops};
pub(super) use scans::{rejected_scans, scans};

use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::types::Type;

pub(super) const DTYPES: &[DType] = &[DType::F32, DType::F16, DType::I32];

/// A graph with arguments of these types whose outputs `f` builds.
fn block(
    arguments: &[Type],
    f: impl FnOnce(&mut Graph, &[Value]) -> Result<Vec<Value>, OpError>,
) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let mut values = Vec::with_capacity(arguments.len());
    for (i, ty) in arguments.iter().enumerate() {
        values.push(g.input(&format!("a{i}"), ty.clone())?);
    }
    for (i, value) in f(&mut g, &values)?.into_iter().enumerate() {
        g.output(&format!("r{i}"), value)?;
    }
    Ok(g)
}

/// The types of values, for use as argument types.
fn types(graph: &Graph, values: &[Value]) -> Vec<Type> {
    values.iter().map(|v| graph.ty(*v).clone()).collect()
}

fn i32s() -> Type {
    Type::new(DType::I32, [0usize; 0])
}
