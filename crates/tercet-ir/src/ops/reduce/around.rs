//! Cases of reductions with elementwise operators before, between and after them, which executors
//! may fuse.

use crate::case::{CaseGraph, InputFill, OpCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::Value;
use crate::types::Shape;

/// Fused reductions along rows and along columns.
pub(super) fn cases() -> Vec<OpCase> {
    let mut cases = along_rows();
    cases.extend(over_columns());
    cases
}

/// A case with one input of this shape.
fn single_input_case(
    name: &str,
    shape: &'static [usize],
    build: fn(&mut CaseGraph, Value) -> Result<(), OpError>,
) -> OpCase {
    OpCase::new(name, move |c| {
        let x = c.input("x", shape, InputFill::Normal)?;
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

/// `ln(sum(exp(x - max))) + max`: reductions along rows only.
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

/// `(x - min) / (max - min)`; the minimum is also an output.
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

fn along_rows() -> Vec<OpCase> {
    vec![
        single_input_case("rows_standardized", &[6, 40], standardized),
        single_input_case("rows_standardized_odd", &[5, 33], standardized),
        single_input_case("rows_standardized_many", &[70, 300], standardized),
        single_input_case("rows_standardized_3d", &[2, 3, 24], standardized),
        single_input_case("rows_log_sum_exp", &[5, 36], log_sum_exp),
        single_input_case("rows_log_sum_exp_odd", &[5, 31], log_sum_exp),
        single_input_case("rows_between_extremes", &[4, 64], between_extremes),
        // Rows longer than the data that threads keep between two passes.
        OpCase::new("rows_weighed_long", |c| {
            let x = c.input("x", [2, 8192], InputFill::Normal)?;
            let w = c.input("w", [2, 8192], InputFill::Uniform(0.5, 1.5))?;
            let g = &mut c.graph;
            let mean = g.reduce_mean(x, &[1], true)?;
            let centred = g.sub(x, mean)?;
            let weighed = g.mul(centred, w)?;
            let mean = g.reduce_mean(weighed, &[1], true)?;
            let y = g.sub(weighed, mean)?;
            c.output(y)
        })
        .only(DType::FLOATS),
        OpCase::new("rows_standardized_symbolic", |c| {
            let n = c.sym("n", 3, 5);
            let x = c.input("x", Shape::from(vec![n, 48.into()]), InputFill::Normal)?;
            standardized(c, x)
        })
        .only(DType::FLOATS),
        // An operand of the fusion group is transposed, and another operand reads a result of the
        // group.
        single_input_case("rows_in_another_order", &[12, 12], |c, x| {
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
        // Non-finite elements must affect only their row.
        OpCase::new("rows_of_not_a_number", |c| {
            const INF: f64 = f64::INFINITY;
            const NAN: f64 = f64::NAN;
            let rows = [
                1.0, 2.0, NAN, 4.0, 1.0, INF, 3.0, 2.0, -INF, 1.0, 0.0, 2.0, -1.0, 3.0, 0.5, 0.0,
            ];
            let x = c.input("x", [4, 4], InputFill::Values(rows.to_vec()))?;
            between_extremes(c, x)
        })
        .only(DType::FLOATS),
        // A row for which the condition is false everywhere.
        OpCase::new("rows_under_a_mask", |c| {
            let x = c.input("x", [6, 32], InputFill::Normal)?;
            let ty = crate::types::Type::new(DType::Bool, [6, 32]);
            let keep = c.input_of("keep", ty, InputFill::Index(2))?;
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

fn over_columns() -> Vec<OpCase> {
    vec![
        // Two sums; one reads an operand of the other.
        OpCase::new("columns_of_two_sums", |c| {
            let x = c.input("x", [40, 24], InputFill::Normal)?;
            let w = c.input("w", [40, 24], InputFill::Normal)?;
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
        // The sum reads row statistics computed by another fusion group.
        OpCase::new("columns_of_standardized_rows", |c| {
            let x = c.input("x", [30, 36], InputFill::Normal)?;
            let w = c.input("w", [30, 36], InputFill::Normal)?;
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
        OpCase::new("columns_3d_symbolic", |c| {
            let n = c.sym("n", 5, 9);
            let x = c.input(
                "x",
                Shape::from(vec![n, 3.into(), 7.into()]),
                InputFill::Normal,
            )?;
            let g = &mut c.graph;
            let y = g.exp(x)?;
            let sum = g.reduce_sum(y, &[0, 1], false)?;
            c.output(sum)
        })
        .only(DType::FLOATS),
        single_input_case("columns_of_many_rows", &[700, 5], |c, x| {
            let g = &mut c.graph;
            let squares = g.mul(x, x)?;
            let mean = g.reduce_mean(squares, &[0], false)?;
            c.output(mean)
        }),
    ]
}
