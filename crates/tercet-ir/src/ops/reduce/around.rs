//! Cases of reductions with elementwise work before, between and after them, which executors may compute together.

use crate::case::{Case, CaseGraph, Fill};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::types::Shape;

/// Rows, and columns, of work around reductions.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = along_rows();
    cases.extend(over_columns());
    cases
}

/// A case of one input of this shape.
fn of_one(
    name: &str,
    shape: &'static [usize],
    build: fn(&mut CaseGraph, Value) -> Result<(), OpError>,
) -> Case {
    Case::new(name, move |c| {
        let x = c.input("x", shape, Fill::Normal)?;
        build(c, x)
    })
    .only(DType::FLOATS)
}

/// `(x - mean) / sqrt(variance + 1/8)` along the last axis.
fn standardized(c: &mut CaseGraph, x: Value) -> Result<(), OpError> {
    let axis = c.graph.ty(x).rank() - 1;
    let g = &mut c.graph;
    let mean = g.reduce_mean(x, &[axis], true)?;
    let centred = g.sub(x, mean)?;
    let squares = g.mul(centred, centred)?;
    let variance = g.reduce_mean(squares, &[axis], true)?;
    let eps = g.scalar(c.dtype, 0.125)?;
    let variance = g.plus(variance, eps)?;
    let scale = g.rsqrt(variance)?;
    let y = g.mul(centred, scale)?;
    c.output(y)
}

/// `ln(sum(exp(x - max))) + max`: numbers of rows only.
fn log_sum_exp(c: &mut CaseGraph, x: Value) -> Result<(), OpError> {
    let g = &mut c.graph;
    let most = g.reduce_max(x, &[1], true)?;
    let most = g.stop_gradient(most)?;
    let shifted = g.sub(x, most)?;
    let parts = g.exp(shifted)?;
    let sum = g.reduce_sum(parts, &[1], true)?;
    let log = g.ln(sum)?;
    let y = g.plus(log, most)?;
    c.output(y)
}

/// `(x - min) / (max - min)`, of which the least is read as well.
fn between_extremes(c: &mut CaseGraph, x: Value) -> Result<(), OpError> {
    let g = &mut c.graph;
    let least = g.reduce_min(x, &[1], true)?;
    let most = g.reduce_max(x, &[1], true)?;
    let width = g.sub(most, least)?;
    let from = g.sub(x, least)?;
    let y = g.div(from, width)?;
    c.output(y)?;
    c.output(least)
}

fn along_rows() -> Vec<Case> {
    vec![
        of_one("rows_standardized", &[6, 40], standardized),
        of_one("rows_standardized_odd", &[5, 33], standardized),
        of_one("rows_standardized_many", &[70, 300], standardized),
        of_one("rows_standardized_3d", &[2, 3, 24], standardized),
        of_one("rows_log_sum_exp", &[5, 36], log_sum_exp),
        of_one("rows_log_sum_exp_odd", &[5, 31], log_sum_exp),
        of_one("rows_between_extremes", &[4, 64], between_extremes),
        // More than invocations keep between two passes.
        Case::new("rows_weighed_long", |c| {
            let x = c.input("x", [2, 8192], Fill::Normal)?;
            let w = c.input("w", [2, 8192], Fill::Uniform(0.5, 1.5))?;
            let g = &mut c.graph;
            let mean = g.reduce_mean(x, &[1], true)?;
            let centred = g.sub(x, mean)?;
            let weighed = g.mul(centred, w)?;
            let mean = g.reduce_mean(weighed, &[1], true)?;
            let y = g.sub(weighed, mean)?;
            c.output(y)
        })
        .only(DType::FLOATS),
        Case::new("rows_standardized_symbolic", |c| {
            let n = c.sym("n", 3, 5);
            let x = c.input("x", Shape::from(vec![n, 48.into()]), Fill::Normal)?;
            standardized(c, x)
        })
        .only(DType::FLOATS),
        // An operand of the group in another order, and one that a group's result is read in.
        of_one("rows_in_another_order", &[12, 12], |c, x| {
            let g = &mut c.graph;
            let turned = g.transpose(x, &[1, 0])?;
            let sum = g.plus(x, turned)?;
            let mean = g.reduce_mean(sum, &[1], true)?;
            let y = g.sub(sum, mean)?;
            let y = g.exp(y)?;
            let back = g.transpose(y, &[1, 0])?;
            let most = g.reduce_sum(y, &[1], true)?;
            let z = g.div(back, most)?;
            c.output(z)
        }),
        // What is not finite stays with its row.
        Case::new("rows_of_not_a_number", |c| {
            const INF: f64 = f64::INFINITY;
            const NAN: f64 = f64::NAN;
            let rows = [
                1.0, 2.0, NAN, 4.0, 1.0, INF, 3.0, 2.0, -INF, 1.0, 0.0, 2.0, -1.0, 3.0, 0.5, 0.0,
            ];
            let x = c.input("x", [4, 4], Fill::Values(rows.to_vec()))?;
            between_extremes(c, x)
        })
        .only(DType::FLOATS),
        // A row that a condition leaves nothing of.
        Case::new("rows_under_a_mask", |c| {
            let x = c.input("x", [6, 32], Fill::Normal)?;
            let ty = crate::types::Type::new(DType::Bool, [6, 32]);
            let keep = c.input_of("keep", ty, Fill::Index(2))?;
            let g = &mut c.graph;
            let zero = g.scalar(c.dtype, 0.0)?;
            let kept = g.where_(keep, x, zero)?;
            let sum = g.reduce_sum(kept, &[1], true)?;
            let y = g.mul(kept, sum)?;
            c.output(y)
        })
        .only(DType::FLOATS),
    ]
}

fn over_columns() -> Vec<Case> {
    vec![
        // Two sums of which one reads what the other does.
        Case::new("columns_of_two_sums", |c| {
            let x = c.input("x", [40, 24], Fill::Normal)?;
            let w = c.input("w", [40, 24], Fill::Normal)?;
            let g = &mut c.graph;
            let product = g.mul(x, w)?;
            let first = g.reduce_sum(product, &[0], false)?;
            let second = g.reduce_sum(x, &[0], false)?;
            let third = g.reduce_mean(product, &[0], true)?;
            c.output(first)?;
            c.output(second)?;
            c.output(third)
        })
        .only(DType::FLOATS),
        // The sum reads numbers of rows that a group makes.
        Case::new("columns_of_standardized_rows", |c| {
            let x = c.input("x", [30, 36], Fill::Normal)?;
            let w = c.input("w", [30, 36], Fill::Normal)?;
            let g = &mut c.graph;
            let mean = g.reduce_mean(x, &[1], true)?;
            let centred = g.sub(x, mean)?;
            let weighed = g.mul(centred, w)?;
            let rows = g.reduce_mean(weighed, &[1], true)?;
            let y = g.sub(weighed, rows)?;
            let sums = g.reduce_sum(weighed, &[0], false)?;
            c.output(y)?;
            c.output(sums)
        })
        .only(DType::FLOATS),
        Case::new("columns_3d_symbolic", |c| {
            let n = c.sym("n", 5, 9);
            let x = c.input("x", Shape::from(vec![n, 3.into(), 7.into()]), Fill::Normal)?;
            let g = &mut c.graph;
            let y = g.exp(x)?;
            let sum = g.reduce_sum(y, &[0, 1], false)?;
            c.output(sum)
        })
        .only(DType::FLOATS),
        of_one("columns_of_many_rows", &[700, 5], |c, x| {
            let g = &mut c.graph;
            let squares = g.mul(x, x)?;
            let mean = g.reduce_mean(squares, &[0], false)?;
            c.output(mean)
        }),
    ]
}
