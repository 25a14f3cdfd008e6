//! Tests that passes and legalization preserve the meaning of graphs.
//!
//! `random` generates graphs and compares the reference results before and after. `directed`
//! contains examples of each pass as text. `rules` runs every operator's cases decomposed, and
//! `gradients` their gradients.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod directed;
mod generate;
mod gradients;
mod random;
mod rules;

use std::collections::BTreeMap;

use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::{EvalCtx, Graph, Op, RunError, Tensor, evaluate};

/// The outputs and then the assigned values of one run. Stores the new states in `leaves`.
fn run(
    graph: &Graph,
    step: u64,
    leaves: &mut BTreeMap<String, Tensor>,
) -> Result<Vec<Tensor>, RunError> {
    let done = evaluate(graph, &EvalCtx::after(step), leaves)?;
    for a in graph.assigns() {
        let Op::State(s) = &graph.node(a.state.node).op else {
            panic!("assignments are to states");
        };
        leaves.insert(s.name.clone(), done.get(a.value).clone());
    }
    Ok(graph.results().map(|v| done.get(v).clone()).collect())
}

/// A description of the difference between `got` and `want` beyond the tolerance table, if any.
fn difference(class: Accuracy, got: &Tensor, want: &Tensor) -> Option<String> {
    if got.ty() != want.ty() {
        return Some(format!("{} instead of {}", got.ty(), want.ty()));
    }
    let (g, w) = (got.to_f64s(), want.to_f64s());
    if class == Accuracy::Exact {
        // Compares bits, because 0.0 and -0.0 are equal in the tolerance table.
        if !want.dtype().is_float() {
            let (got, want) = (got.to_i64s(), want.to_i64s());
            return (got != want).then(|| format!("{got:?} instead of {want:?}"));
        }
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
        let at = g.iter().zip(&w).position(|pair| !same(pair))?;
        let ty = want.ty();
        return Some(format!(
            "element {at} of {ty}: {:?} instead of {:?}",
            g[at], w[at]
        ));
    }
    let furthest = furthest(class, got, want).filter(|f| f.units > 1.0);
    furthest.map(|f| format!("{}: {f}", want.ty()))
}
