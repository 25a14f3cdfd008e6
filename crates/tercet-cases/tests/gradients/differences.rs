//! Compares a vector-Jacobian product with a central difference along one direction.

use std::collections::BTreeMap;

use tercet_cases::CaseGraph;
use tercet_ir::fill::InputFill;
use tercet_ir::scalar::{BinaryFn, UnaryFn};
use tercet_ir::verify::verify;
use tercet_ir::{
    Bindings, DType, EvalCtx, GradError, Graph, Op, OpKind, Tensor, TensorType, Value, evaluate,
    one_line, parse,
};

/// The step of a difference, and its permitted error relative to the sum of its terms.
#[derive(Clone, Copy)]
struct FiniteDifferenceStep {
    size: f64,
    allowed: f64,
}

const F64_STEP: FiniteDifferenceStep = FiniteDifferenceStep {
    size: 1.0 / 1048576.0,
    allowed: 1e-5,
};
/// The step for graphs that do not support F64, whose results have the rounding errors of F32.
const F32_STEP: FiniteDifferenceStep = FiniteDifferenceStep {
    size: 1.0 / 1024.0,
    allowed: 5e-3,
};

/// The outcome of a check.
#[derive(Debug)]
pub(crate) enum GradCheckOutcome {
    Same,
    /// There is nothing to differentiate, or the graph is too large.
    Skipped,
    /// The graph has no gradient, for this reason.
    NoGradient(String),
    Wrong(String),
}

/// Functions that are differentiated only within a part of their domain.
fn domain(op: &Op, operand: usize) -> Option<InputFill> {
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
    Some(InputFill::Uniform(lo, hi))
}

/// True for operators that use `-inf` as a mask.
fn masks(op: &Op) -> bool {
    matches!(
        op.kind(),
        OpKind::Softmax
            | OpKind::LogSoftmax
            | OpKind::Attention
            | OpKind::AttentionBlock
            | OpKind::TransformerLayer
    )
}

/// The graph with every float as F64, or the unchanged graph if an operator does not support F64.
fn widened(graph: &Graph) -> (Graph, FiniteDifferenceStep) {
    let text = graph.to_string();
    let narrow = ["bf16", "f16", "f32"];
    let text = narrow.iter().fold(text, |t, d| t.replace(d, "f64"));
    match parse(&text) {
        Ok(graph) => (graph, F64_STEP),
        Err(_) => (graph.clone(), F32_STEP),
    }
}

/// The float leaves of a graph by name.
pub(crate) fn float_leaves(graph: &Graph) -> Vec<(String, Value, DType)> {
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

/// False for integers, and for floats too narrow for a difference step.
fn is_wide(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F64)
}

fn random(name: &str, shape: &[usize], fill: &InputFill) -> Vec<f64> {
    let ty = TensorType::new(DType::F64, shape);
    fill.tensor(name, ty).to_f64s()
}

/// Finite data of a leaf, away from ties; `-inf` remains if it is a mask.
fn data(graph: &Graph, leaf: Value, name: &str, given: &Tensor, dtype: DType) -> Tensor {
    let reads = graph.nodes().flat_map(|(_, node)| {
        let operands = node.inputs.iter().enumerate();
        let own = operands.filter(move |(_, v)| **v == leaf);
        own.map(move |(i, _)| (&node.op, i))
    });
    let reads: Vec<(&Op, usize)> = reads.collect();
    let is_mask = reads.iter().any(|(op, _)| masks(op));
    let is_plain = |x: &f64| x.abs() < 1e4 || is_mask && *x == f64::NEG_INFINITY;
    let (shape, values) = (given.shape(), given.to_f64s());
    let values = match reads.iter().find_map(|(op, i)| domain(op, *i)) {
        Some(fill) => random(name, shape, &fill),
        None if values.iter().all(is_plain) => {
            let noise = InputFill::Uniform(-0.02, 0.02);
            let noise = random(&format!("{name} noise"), shape, &noise);
            values.iter().zip(noise).map(|(x, n)| x + n).collect()
        }
        None => random(name, shape, &InputFill::Normal),
    };
    Tensor::from_f64s(TensorType::new(dtype, shape), &values).expect("one value per element")
}

/// A graph with data; its float results are differentiated with respect to its float leaves.
pub(crate) struct GradCheckGraph {
    graph: Graph,
    step: FiniteDifferenceStep,
    leaves: BTreeMap<String, Tensor>,
    sizes: Bindings,
    targets: Vec<(String, Value, DType)>,
    outputs: Vec<Value>,
}

/// A subject's graph with gradients, and the cotangents that were used.
struct DifferentiatedGraph {
    graph: Graph,
    gradients: Vec<Option<Value>>,
    cotangents: Vec<Vec<f64>>,
    leaves: BTreeMap<String, Tensor>,
}

impl GradCheckGraph {
    pub(crate) fn for_case(c: &CaseGraph) -> GradCheckGraph {
        let (graph, step) = widened(&c.graph);
        let mut leaves = c.tensors.clone();
        let wanted = match &c.expected_fault {
            Some(_) => Vec::new(),
            None => float_leaves(&graph),
        };
        for (name, leaf, dtype) in &wanted {
            let zeros = || {
                let ty = graph
                    .ty(*leaf)
                    .eval(&c.sizes)
                    .expect("cases size their symbols");
                Tensor::zeros(ty).expect("cases are small")
            };
            let given = leaves.get(name).cloned().unwrap_or_else(zeros);
            leaves.insert(name.clone(), data(&graph, *leaf, name, &given, *dtype));
        }
        GradCheckGraph::new(graph, step, leaves, c.sizes.clone(), wanted)
    }

    fn new(
        graph: Graph,
        step: FiniteDifferenceStep,
        leaves: BTreeMap<String, Tensor>,
        sizes: Bindings,
        wanted: Vec<(String, Value, DType)>,
    ) -> GradCheckGraph {
        let outputs = graph
            .results()
            .filter(|v| is_wide(graph.ty(*v).dtype))
            .collect();
        GradCheckGraph {
            graph,
            step,
            leaves,
            sizes,
            targets: wanted,
            outputs,
        }
    }

    /// The total number of elements of all values.
    pub(crate) fn elements(&self) -> Option<usize> {
        let types = self.graph.nodes().flat_map(|(_, n)| &n.outputs);
        let counts = types.map(|ty| Some(ty.eval(&self.sizes).ok()?.numel()));
        counts.sum()
    }

    pub(crate) fn check(&self, most: usize) -> GradCheckOutcome {
        let is_empty = self.targets.is_empty() || self.outputs.is_empty();
        if is_empty || self.elements().is_none_or(|n| n > most) {
            return GradCheckOutcome::Skipped;
        }
        match self.differentiated() {
            Ok(done) => self.compared(&done).unwrap_or_else(GradCheckOutcome::Wrong),
            Err(outcome) => outcome,
        }
    }

    /// The gradients of this subject as a new subject, for second derivatives.
    pub(crate) fn gradient(&self) -> Result<GradCheckGraph, GradCheckOutcome> {
        if self.targets.is_empty() || self.outputs.is_empty() {
            return Err(GradCheckOutcome::Skipped);
        }
        let DifferentiatedGraph {
            mut graph,
            gradients,
            leaves,
            ..
        } = self.differentiated()?;
        for (i, value) in gradients.iter().flatten().enumerate() {
            let name = format!("gradient {i}");
            graph.output(&name, *value).expect("a fresh name");
        }
        let first = graph.outputs().len() - gradients.iter().flatten().count();
        let wanted = self.targets.clone();
        let mut subject = GradCheckGraph::new(graph, self.step, leaves, self.sizes.clone(), wanted);
        let gradients = subject.graph.outputs()[first..].iter().map(|o| o.value);
        let gradients = gradients.filter(|v| is_wide(subject.graph.ty(*v).dtype));
        subject.outputs = gradients.collect();
        Ok(subject)
    }

    /// Cotangents are inputs; they are 0 for results that are not finite.
    fn differentiated(&self) -> Result<DifferentiatedGraph, GradCheckOutcome> {
        let failed = |e: &dyn std::error::Error| GradCheckOutcome::Wrong(one_line(e));
        let done = evaluate(&self.graph, &EvalCtx::default(), &self.leaves);
        let done = done.map_err(|e| failed(&e))?;
        let (mut graph, mut leaves) = (self.graph.clone(), self.leaves.clone());
        let (mut pairs, mut cotangents) = (Vec::new(), Vec::new());
        for y in &self.outputs {
            let name = format!("cotangent {}", graph.len());
            let ty = graph.ty(*y).clone();
            let dy = graph.input(&name, ty).expect("a fresh name");
            pairs.push((*y, dy));
            let y = done.get(*y);
            let mut u = random(&name, y.shape(), &InputFill::Normal);
            for (u, y) in u.iter_mut().zip(y.to_f64s()) {
                *u = if y.is_finite() { *u } else { 0.0 };
            }
            let tensor = Tensor::from_f64s(y.ty().clone(), &u).expect("one value per element");
            leaves.insert(name, tensor);
            cotangents.push(u);
        }
        let wanted: Vec<Value> = self.targets.iter().map(|(_, v, _)| *v).collect();
        let gradients = graph.vjp(&pairs, &wanted).map_err(|e| match e {
            GradError::Severed { .. } => GradCheckOutcome::NoGradient(one_line(&e)),
            e => failed(&e),
        })?;
        verify(&graph).map_err(|e| failed(&e))?;
        Ok(DifferentiatedGraph {
            graph,
            gradients,
            cotangents,
            leaves,
        })
    }

    fn compared(&self, with: &DifferentiatedGraph) -> Result<GradCheckOutcome, String> {
        let done = evaluate(&with.graph, &EvalCtx::default(), &with.leaves);
        let done = done.map_err(|e| one_line(&e))?;
        let mut direction = BTreeMap::new();
        let (mut product, mut scale) = (0.0, 0.0);
        for ((name, _, dtype), gradient) in self.targets.iter().zip(&with.gradients) {
            let at = &self.leaves[name];
            let name_of_v = format!("{name} direction");
            let mut v = random(&name_of_v, at.shape(), &InputFill::Uniform(-1.0, 1.0));
            for (v, x) in v.iter_mut().zip(at.to_f64s()) {
                // A difference step is smaller than the spacing of narrow floats.
                let moves = x.is_finite() && is_wide(*dtype);
                *v = if moves { *v } else { 0.0 };
            }
            if let Some(gradient) = gradient {
                for (g, v) in done.get(*gradient).to_f64s().iter().zip(&v) {
                    let part = if *v == 0.0 { 0.0 } else { g * v };
                    product += part;
                    scale += part.abs();
                }
            }
            direction.insert(name.clone(), v);
        }
        let FiniteDifferenceStep { size, allowed } = self.step;
        let ahead = self.along(&with.cotangents, &direction, size)?;
        let behind = self.along(&with.cotangents, &direction, -size)?;
        let difference = (ahead - behind) / (2.0 * size);
        let level = (ahead.abs() + behind.abs()) * 1e-8;
        if (difference - product).abs() <= allowed * (scale + difference.abs()) + level {
            return Ok(GradCheckOutcome::Same);
        }
        let what = format!("{product:e} by the rule, {difference:e} by differences");
        Ok(GradCheckOutcome::Wrong(what))
    }

    /// The sum over outputs of their products with the cotangents, with the leaves moved along the
    /// direction by `by`.
    fn along(
        &self,
        cotangents: &[Vec<f64>],
        direction: &BTreeMap<String, Vec<f64>>,
        by: f64,
    ) -> Result<f64, String> {
        let mut leaves = self.leaves.clone();
        for (name, v) in direction {
            let at = &self.leaves[name];
            let moved = at.to_f64s().into_iter().zip(v).map(|(x, v)| x + by * v);
            let moved: Vec<f64> = moved.collect();
            let moved = Tensor::from_f64s(at.ty().clone(), &moved).expect("one value per element");
            leaves.insert(name.clone(), moved);
        }
        let done = evaluate(&self.graph, &EvalCtx::default(), &leaves).map_err(|e| one_line(&e))?;
        let sums = self.outputs.iter().zip(cotangents).map(|(y, u)| {
            let y = done.get(*y).to_f64s();
            let both = y.iter().zip(u).filter(|(_, u)| **u != 0.0);
            both.map(|(y, u)| y * u).sum::<f64>()
        });
        Ok(sums.sum())
    }
}
