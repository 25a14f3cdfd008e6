//! Every float case of every operator: the vector-Jacobian product along a random direction against a central
//! difference of the reference in F64. Cotangents are random, so that a rule that ignores them, or a factor on the way,
//! is found; a direction touches every element, so that a wrong one is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::case::{CaseGraph, Fill};
use crate::grad::{GradError, GradientKind};
use crate::scalar::{BinaryFn, UnaryFn};
use crate::verify::verify;
use crate::{
    DType, EvalCtx, Graph, NodeId, Op, OpKind, Tensor, TensorType, Type, Value, evaluate, one_line,
    parse,
};

/// Cases that central differences do not decide, with the reason.
const EXCLUDED: &[(&str, &str)] = &[];

/// Operators some of whose cases have no gradient, with a part of the reason.
const REFUSED: &[(&str, &str)] = &[
    ("while", "known only when it has run"),
    ("gaussian_splat_prepare", "kernels of its own"),
    ("gaussian_splat_rasterize", "kernels of its own"),
    ("gaussian_splat_render", "kernels of its own"),
];

/// More elements than this in all values of a case are left to smaller cases of the same operator.
const MOST_ELEMENTS: usize = 1 << 16;

/// The step of a difference, and the error that is allowed of it, relative to the sum of its parts.
#[derive(Clone, Copy)]
struct Step {
    size: f64,
    allowed: f64,
}

const F64_STEP: Step = Step {
    size: 1.0 / 1048576.0,
    allowed: 1e-5,
};
/// For graphs that have no F64: the difference has the roundings of F32.
const F32_STEP: Step = Step {
    size: 1.0 / 128.0,
    allowed: 5e-3,
};

/// Functions that are differentiated within a part of their domain only.
fn domain(op: &Op, operand: usize) -> Option<Fill> {
    let (lo, hi) = match op {
        Op::Unary(o) => match o.f {
            UnaryFn::Ln | UnaryFn::Log2 | UnaryFn::Sqrt | UnaryFn::Rsqrt | UnaryFn::Recip => {
                (0.3, 3.0)
            }
            UnaryFn::Log1p => (-0.7, 3.0),
            UnaryFn::Asin | UnaryFn::Acos => (-0.9, 0.9),
            UnaryFn::Tan => (-1.2, 1.2),
            _ => return None,
        },
        Op::Binary(o) => match (o.f, operand) {
            (BinaryFn::Pow, 0) | (BinaryFn::Div | BinaryFn::Rem, 1) => (0.4, 2.0),
            (BinaryFn::Atan2, _) => (0.4, 2.0),
            _ => return None,
        },
        _ => return None,
    };
    Some(Fill::Uniform(lo, hi))
}

/// A graph in which every float is an F64, or the graph as it is where an operator takes none.
fn widened(graph: &Graph) -> (Graph, Step) {
    let text = graph.to_string();
    let text = ["bf16", "f16", "f32"]
        .iter()
        .fold(text, |t, d| t.replace(d, "f64"));
    match parse(&text) {
        Ok(graph) => (graph, F64_STEP),
        Err(_) => (graph.clone(), F32_STEP),
    }
}

/// The float leaves of a graph by name.
fn float_leaves(graph: &Graph) -> Vec<(String, Value, DType)> {
    let named = graph.nodes().filter_map(|(id, node)| {
        let name = match &node.op {
            Op::Input(o) => &o.name,
            Op::Param(o) => &o.name,
            Op::State(o) => &o.name,
            _ => return None,
        };
        let dtype = node.outputs[0].dtype;
        let value = Value { node: id, port: 0 };
        dtype.is_float().then(|| (name.clone(), value, dtype))
    });
    named.collect()
}

fn random(name: &str, shape: &[usize], fill: &Fill) -> Vec<f64> {
    fill.tensor(name, TensorType::new(DType::F64, shape))
        .to_f64s()
}

/// Data of a leaf away from ties and from what is no number; `-inf` stays, as masks have it.
fn data(graph: &Graph, leaf: Value, name: &str, given: &Tensor, dtype: DType) -> Tensor {
    let reads = graph.nodes().flat_map(|(_, node)| {
        let operands = node.inputs.iter().enumerate();
        operands
            .filter(move |(_, v)| **v == leaf)
            .map(move |(i, _)| domain(&node.op, i))
    });
    let shape = given.shape();
    let values = given.to_f64s();
    let is_plain = |x: &f64| x.abs() < 1e4 || *x == f64::NEG_INFINITY;
    let values = match reads.flatten().next() {
        Some(fill) => random(name, shape, &fill),
        None if values.iter().all(is_plain) => {
            let noise = random(&format!("{name} noise"), shape, &Fill::Uniform(-0.02, 0.02));
            values.iter().zip(noise).map(|(x, n)| x + n).collect()
        }
        None => random(name, shape, &Fill::Normal),
    };
    Tensor::from_f64s(TensorType::new(dtype, shape), &values).expect("as many values")
}

/// What a case checked, or why it checked nothing.
#[derive(Debug)]
enum Outcome {
    Same,
    Skipped,
    Refused(String),
    Wrong(String),
}

struct Subject {
    graph: Graph,
    step: Step,
    leaves: BTreeMap<String, Tensor>,
    wanted: Vec<(String, Value, DType)>,
    outputs: Vec<Value>,
}

impl Subject {
    fn of(c: &CaseGraph) -> Option<Subject> {
        let (graph, step) = widened(&c.graph);
        let wanted = float_leaves(&graph);
        let mut leaves = c.tensors.clone();
        for (name, leaf, dtype) in &wanted {
            let given = match leaves.get(name) {
                Some(given) => given.clone(),
                None => Tensor::zeros(graph.ty(*leaf).eval(&c.sizes).ok()?).ok()?,
            };
            leaves.insert(name.clone(), data(&graph, *leaf, name, &given, *dtype));
        }
        let mut outputs: Vec<Value> = graph.results().collect();
        outputs.retain(|v| graph.ty(*v).dtype.is_float());
        Some(Subject {
            graph,
            step,
            leaves,
            wanted,
            outputs,
        })
    }

    /// The sum over outputs of their products with the cotangents, at the leaves moved by so much along the direction.
    fn along(
        &self,
        cotangents: &[Vec<f64>],
        direction: &BTreeMap<String, Vec<f64>>,
        by: f64,
    ) -> Result<f64, String> {
        let mut leaves = self.leaves.clone();
        for (name, v) in direction {
            let at = &self.leaves[name];
            let moved: Vec<f64> = at
                .to_f64s()
                .iter()
                .zip(v)
                .map(|(x, v)| x + by * v)
                .collect();
            leaves.insert(
                name.clone(),
                Tensor::from_f64s(at.ty().clone(), &moved).expect("as many values"),
            );
        }
        let done = evaluate(&self.graph, &EvalCtx::default(), &leaves).map_err(|e| one_line(&e))?;
        let sums = self.outputs.iter().zip(cotangents).map(|(y, u)| {
            let y = done.get(*y).to_f64s();
            let both = y.iter().zip(u).filter(|(y, _)| y.is_finite());
            both.map(|(y, u)| y * u).sum::<f64>()
        });
        Ok(sums.sum())
    }
}

/// The graph with cotangents as inputs and gradients as outputs, and the data of the former.
fn differentiated(
    subject: &Subject,
    c: &CaseGraph,
) -> Result<(Graph, Vec<Option<Value>>, Vec<Vec<f64>>), GradError> {
    let mut graph = subject.graph.clone();
    let mut pairs = Vec::new();
    let mut data = Vec::new();
    for (i, y) in subject.outputs.iter().enumerate() {
        let ty = graph.ty(*y).clone();
        let shape = ty.shape.eval(&c.sizes).expect("cases size their symbols");
        data.push(random(&format!("cotangent {i}"), &shape, &Fill::Normal));
        let dy = graph
            .input(&format!("cotangent {i}"), ty)
            .expect("fresh names");
        pairs.push((*y, dy));
    }
    let wanted: Vec<Value> = subject.wanted.iter().map(|(_, v, _)| *v).collect();
    let gradients = graph.vjp(&pairs, &wanted)?;
    Ok((graph, gradients, data))
}

fn check(c: &CaseGraph) -> Outcome {
    let Some(subject) = Subject::of(c) else {
        return Outcome::Skipped;
    };
    let sizes = subject.graph.nodes().flat_map(|(_, n)| &n.outputs);
    let elements: Option<usize> = sizes.map(|ty| Some(ty.eval(&c.sizes).ok()?.numel())).sum();
    if subject.wanted.is_empty()
        || subject.outputs.is_empty()
        || c.expected_fault.is_some()
        || elements.is_none_or(|n| n > MOST_ELEMENTS)
    {
        return Outcome::Skipped;
    }
    let (graph, gradients, cotangents) = match differentiated(&subject, c) {
        Ok(done) => done,
        Err(e @ GradError::Severed { .. }) => return Outcome::Refused(one_line(&e)),
        Err(e) => return Outcome::Wrong(one_line(&e)),
    };
    if let Err(e) = verify(&graph) {
        return Outcome::Wrong(one_line(&e));
    }
    compare(&subject, &graph, &gradients, &cotangents).unwrap_or_else(Outcome::Wrong)
}

fn compare(
    subject: &Subject,
    graph: &Graph,
    gradients: &[Option<Value>],
    cotangents: &[Vec<f64>],
) -> Result<Outcome, String> {
    let mut leaves = subject.leaves.clone();
    for (i, (y, u)) in subject.outputs.iter().zip(cotangents).enumerate() {
        let node = graph.leaf(&format!("cotangent {i}")).expect("added above");
        let dtype = subject.graph.ty(*y).dtype;
        let shape = evaluated_shape(subject, *y)?;
        let _: NodeId = node;
        let tensor = Tensor::from_f64s(TensorType::new(dtype, &shape), u);
        leaves.insert(format!("cotangent {i}"), tensor.expect("as many values"));
    }
    let done = evaluate(graph, &EvalCtx::default(), &leaves).map_err(|e| one_line(&e))?;
    let mut direction = BTreeMap::new();
    let (mut product, mut scale) = (0.0, 0.0);
    for ((name, _, _), gradient) in subject.wanted.iter().zip(gradients) {
        let at = &subject.leaves[name];
        let mut v = random(
            &format!("{name} direction"),
            at.shape(),
            &Fill::Uniform(-1.0, 1.0),
        );
        for (v, x) in v.iter_mut().zip(at.to_f64s()) {
            *v = if x.is_finite() { *v } else { 0.0 };
        }
        if let Some(gradient) = gradient {
            for (g, v) in done.get(*gradient).to_f64s().iter().zip(&v) {
                product += if *v == 0.0 { 0.0 } else { g * v };
                scale += (g * v).abs();
            }
        }
        direction.insert(name.clone(), v);
    }
    let Step { size, allowed } = subject.step;
    let ahead = subject.along(cotangents, &direction, size)?;
    let behind = subject.along(cotangents, &direction, -size)?;
    let difference = (ahead - behind) / (2.0 * size);
    let level = (ahead.abs() + behind.abs()) * 1e-8;
    if (difference - product).abs() <= allowed * (scale + difference.abs()) + level {
        return Ok(Outcome::Same);
    }
    Ok(Outcome::Wrong(format!(
        "{product:e} by the rule, {difference:e} by differences"
    )))
}

fn evaluated_shape(subject: &Subject, v: Value) -> Result<Vec<usize>, String> {
    let done = evaluate(&subject.graph, &EvalCtx::default(), &subject.leaves);
    Ok(done.map_err(|e| one_line(&e))?.get(v).shape().to_vec())
}

/// The first of these dtypes that the case runs with.
fn widest(kind: OpKind, runs: impl Fn(DType) -> bool) -> Option<DType> {
    let order = [DType::F64, DType::F32, DType::F16, DType::BF16];
    let dtypes = kind.doc().dtypes;
    order.into_iter().find(|d| dtypes.contains(d) && runs(*d))
}

#[test]
fn products_agree_with_central_differences() {
    let mut wrong = String::new();
    let (mut same, mut skipped) = (0, 0);
    for &kind in OpKind::ALL {
        let op = kind.doc().name;
        for case in kind.cases() {
            let Some(dtype) = widest(kind, |d| case.runs_with(d)) else {
                continue;
            };
            let name = format!("{op}/{}", case.name);
            if EXCLUDED.iter().any(|(excluded, _)| *excluded == name) {
                continue;
            }
            let built = case.build(dtype).expect("cases build");
            let t = std::time::Instant::now();
            let o = check(&built);
            if t.elapsed().as_millis() > 200 {
                eprintln!("SLOW {name} {:?}", t.elapsed());
            }
            match o {
                Outcome::Same => same += 1,
                Outcome::Skipped => skipped += 1,
                Outcome::Wrong(what) => writeln!(wrong, "{name}/{dtype}: {what}").expect("text"),
                Outcome::Refused(why) => {
                    let known = REFUSED.iter();
                    if !known.clone().any(|(o, r)| *o == op && why.contains(r)) {
                        writeln!(wrong, "{name}/{dtype}: {why}").expect("text");
                    }
                }
            }
        }
    }
    eprintln!("{same} same, {skipped} skipped");
    assert!(wrong.is_empty(), "{} same\n{wrong}", same);
}
