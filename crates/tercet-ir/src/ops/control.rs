//! Control flow: operators with nested graphs.
//!
//! Only the taken branches and iterations run, and only they can fail. An error inside a nested
//! graph names the operator, the attribute that holds the graph, and the node in the graph. Random
//! numbers depend on seed, stream, element and run, as elsewhere. Every iteration of a loop
//! therefore draws the same numbers.

mod branch;
mod repeat;
mod scan;

pub use branch::If;
pub use repeat::While;
pub use scan::Scan;

use tercet_tensor::{DType, Tensor, Type};

use super::Op;
use crate::error::TypeError;
use crate::subgraph::SubGraph;

/// The dtypes of the cases, which differ in their carried values only.
const DTYPES: &[DType] = &[DType::F32, DType::F16, DType::I32];

impl Op {
    /// The nested graphs with the names of their attributes; empty for most operators.
    pub fn subgraphs(&self) -> Vec<(&'static str, &SubGraph)> {
        match self {
            Op::If(o) => vec![("then", &o.then), ("else", &o.otherwise)],
            Op::While(o) => vec![("cond", &o.cond), ("body", &o.body)],
            Op::Scan(o) => vec![("body", &o.body)],
            _ => Vec::new(),
        }
    }

    /// The operator with other nested graphs, in the order of [`Op::subgraphs`].
    pub fn with_subgraphs(&self, blocks: Vec<SubGraph>) -> Op {
        let mut blocks = blocks.into_iter();
        let mut next = |old: &SubGraph| blocks.next().unwrap_or_else(|| old.clone());
        match self {
            Op::If(o) => Op::If(If {
                then: next(&o.then),
                otherwise: next(&o.otherwise),
            }),
            Op::While(o) => Op::While(While {
                cond: next(&o.cond),
                body: next(&o.body),
                max_iter: o.max_iter,
            }),
            Op::Scan(o) => Op::Scan(Scan {
                body: next(&o.body),
                ..o.clone()
            }),
            op => op.clone(),
        }
    }
}

/// Checks that an operand is a boolean scalar.
fn expect_predicate(what: &'static str, ty: &Type) -> Result<(), TypeError> {
    if ty.dtype != DType::Bool {
        return Err(TypeError::DType {
            operand: what,
            found: ty.dtype,
            accepted: DType::Bool.name().to_string(),
        });
    }
    super::util::expect_rank(what, ty, 0)
}

/// The value of a predicate.
fn is_true(predicate: &Tensor) -> bool {
    predicate.bytes().first().is_some_and(|b| *b != 0)
}

/// Checks that there is at least one result and that the number of results fits a port.
fn expect_results(name: &'static str, count: usize) -> Result<(), TypeError> {
    let reason = match count {
        0 => "the operator has no results".to_string(),
        1..=255 => return Ok(()),
        _ => format!("{count} results; expected at most 255"),
    };
    Err(TypeError::Attr { name, reason })
}

/// Checks that the results have the types of the carried values.
fn expect_carried(
    name: &'static str,
    results: &[Type],
    carried: &[&Type],
) -> Result<(), TypeError> {
    for (i, (result, carried)) in results.iter().zip(carried).enumerate() {
        if result != *carried {
            let reason = format!(
                "result {i} is {result}; expected {carried}, the type of the carried value"
            );
            return Err(TypeError::Attr { name, reason });
        }
    }
    Ok(())
}
