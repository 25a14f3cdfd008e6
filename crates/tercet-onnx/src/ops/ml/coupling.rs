//! Class probabilities from those of pairs (Wu, Lin and Weng 2004, the second method), with the
//! iterations and the tolerance of libsvm and ONNX Runtime.

use tercet_ir::ops::{ReduceFn, Scan};
use tercet_ir::scalar::CompareFn;
use tercet_ir::{DType, Dim, Graph, SubGraph, Tensor, Type, Value};

use super::super::shape::reshaped;
use super::floats;
use crate::call::ImportNode;
use crate::error::NodeErrorKind;

/// Maximum number of classes; each iteration updates one class after the other.
const MAX_CLASSES: usize = 64;
/// The iterations of libsvm.
const ITERATIONS: usize = 100;
/// The bound of pair probabilities, away from 0 and 1.
const LEAST: f64 = 1e-7;

/// The probabilities `[samples, classes]` from the scores of pairs `[samples, pairs]`.
pub(super) fn probabilities(
    k: &mut ImportNode<'_, '_>,
    scores: Value,
    classes: usize,
) -> Result<Value, NodeErrorKind> {
    if classes > MAX_CLASSES {
        let reason = format!("{classes} classes, at most {MAX_CLASSES} are supported");
        return Err(NodeErrorKind::attribute("prob_a", reason));
    }
    let pairs = classes * (classes - 1) / 2;
    let list = |k: &mut ImportNode<'_, '_>, name: &str| -> Result<Value, NodeErrorKind> {
        let list = floats(k, name, pairs)?;
        Ok(k.g().constant(Tensor::from_slice(&[pairs], list)?)?)
    };
    let (a, b) = (list(k, "prob_a")?, list(k, "prob_b")?);
    let g = k.g();
    let scaled = g.mul(scores, a)?;
    let exponent = g.plus(scaled, b)?;
    let exponent = g.neg(exponent)?;
    let first = g.sigmoid(exponent)?;
    let first = g.clamp(first, LEAST, 1.0 - LEAST)?;
    let one = g.scalar(DType::F32, 1.0)?;
    let second = g.sub(one, first)?;
    let nothing = g.sub(first, first)?;
    let nothing = g.narrow(nothing, 1, 0, 1)?;
    let all = g.concat(&[first, second, nothing], 1)?;
    // The column of each entry of the matrix of pairs; the diagonal is 0.
    let mut columns = vec![2 * pairs as i64; classes * classes];
    let each = (0..classes).flat_map(|i| (i + 1..classes).map(move |j| (i, j)));
    for (pair, (i, j)) in each.enumerate() {
        columns[i * classes + j] = pair as i64;
        columns[j * classes + i] = (pairs + pair) as i64;
    }
    let columns = g.constant(Tensor::from_slice(&[columns.len()], &columns)?)?;
    let matrix = g.gather(all, columns, 1)?;
    let samples = k.dims(scores)[0].clone();
    let n = Dim::Known(classes);
    let r = reshaped(k.g(), matrix, &[samples.clone(), n.clone(), n.clone()])?;
    let q = quadratic(k, r, classes)?;
    let start = k.c.scalar(DType::F32, 1.0 / classes as f64)?;
    let start = k.g().expand(start, [samples, n])?;
    let beats = k.c.scalar(DType::F32, 0.0)?;
    let beats = k.g().expand(beats, [ITERATIONS])?;
    let body = iteration(&k.ty(start), &k.ty(q), classes)?;
    let op = Scan {
        body: SubGraph::new(body),
        carried: 1,
        scanned: 1,
        reverse: vec![false],
        reverse_results: Vec::new(),
    };
    Ok(k.g().add(op, &[start, beats, q])?)
}

/// The quadratic form `Q` of the pair probabilities `r`: `Q_ii` is the sum of `r_ji^2` over the
/// other classes, and `Q_ij` is `-r_ji r_ij`.
fn quadratic(k: &mut ImportNode<'_, '_>, r: Value, classes: usize) -> Result<Value, NodeErrorKind> {
    let eye = (0..classes * classes).map(|i| f32::from(i / classes == i % classes));
    let eye: Vec<f32> = eye.collect();
    let g = k.g();
    let eye = g.constant(Tensor::from_slice(&[classes, classes], &eye)?)?;
    let turned = g.transpose(r, &[0, 2, 1])?;
    let product = g.mul(r, turned)?;
    let squares = g.mul(turned, turned)?;
    let sums = g.reduce(ReduceFn::Sum, squares, &[2], true)?;
    let diagonal = g.mul(sums, eye)?;
    Ok(g.sub(diagonal, product)?)
}

/// One iteration: samples that have converged keep their probabilities.
fn iteration(p: &Type, q: &Type, classes: usize) -> Result<Graph, NodeErrorKind> {
    let mut g = Graph::new();
    let before = g.input("p", p.clone())?;
    g.input("beat", Type::new(DType::F32, [0usize; 0]))?;
    let q = g.input("q", q.clone())?;
    let one = g.scalar(DType::F32, 1.0)?;
    let two = g.scalar(DType::F32, 2.0)?;
    let column = g.unsqueeze(before, 2)?;
    let product = g.matmul(q, column)?;
    let mut q_p = g.squeeze(product, 2)?;
    let each = g.mul(before, q_p)?;
    let mut p_q_p = g.reduce(ReduceFn::Sum, each, &[1], true)?;
    let error = g.sub(q_p, p_q_p)?;
    let error = g.abs(error)?;
    let error = g.reduce(ReduceFn::Max, error, &[1], true)?;
    let tolerance = g.scalar(DType::F32, 0.005 / classes as f64)?;
    let done = g.compare(CompareFn::Lt, error, tolerance)?;
    let mut p = before;
    for class in 0..classes {
        let row = g.narrow(q, 1, class, 1)?;
        let row = g.squeeze(row, 1)?;
        let own = g.narrow(row, 1, class, 1)?;
        let of_class = g.narrow(q_p, 1, class, 1)?;
        let gap = g.sub(p_q_p, of_class)?;
        let step = g.div(gap, own)?;
        let grown = g.plus(one, step)?;
        // Adds the step to the probability of this class, before all probabilities are normalized.
        let mut hot = vec![0f32; classes];
        hot[class] = 1.0;
        let hot = g.constant(Tensor::from_slice(&[classes], &hot)?)?;
        let added = g.mul(hot, step)?;
        let moved = g.plus(p, added)?;
        p = g.div(moved, grown)?;
        let square = g.mul(step, own)?;
        let double = g.mul(two, of_class)?;
        let sum = g.plus(square, double)?;
        let change = g.mul(step, sum)?;
        let total = g.plus(p_q_p, change)?;
        let total = g.div(total, grown)?;
        p_q_p = g.div(total, grown)?;
        let part = g.mul(step, row)?;
        let sum = g.plus(q_p, part)?;
        q_p = g.div(sum, grown)?;
    }
    let p = g.where_(done, before, p)?;
    g.output("p", p)?;
    Ok(g)
}
