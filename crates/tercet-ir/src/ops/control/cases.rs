//! The cases of control flow: graphs inside graphs, small ones.

mod branches;
mod loops;
mod scans;

pub(super) use branches::{branches, refused_branches};
pub(super) use loops::{loops, refused_loops};
pub(super) use scans::{refused_scans, scans};

use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::types::Type;

pub(super) const DTYPES: &[DType] = &[DType::F32, DType::F16, DType::I32];

/// A graph of arguments of these types that gives what `f` makes of them.
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

/// The types of values, to take them as arguments.
fn types(graph: &Graph, values: &[Value]) -> Vec<Type> {
    values.iter().map(|v| graph.ty(*v).clone()).collect()
}

fn i32s() -> Type {
    Type::new(DType::I32, [0usize; 0])
}
