//! The generator of random graphs.
//!
//! A list of numbers determines the graph; each number is one decision. Nodes that an operator
//! rejects are omitted, so every list gives a graph.

mod codes;
mod movement;
mod rows;

use std::collections::BTreeMap;

use tercet_ir::attr::FloatAttr;
use tercet_ir::fill::InputFill;
use tercet_ir::ops::*;
use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};
use tercet_ir::{Bindings, DType, Dim, Graph, Shape, Tensor, TensorType, Type, Value};

/// Maximum number of elements of a tensor of a random graph.
const MAX_ELEMENTS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Every operator, with NaNs, infinities and extremes in the data.
    Wild,
    /// Only functions without discontinuities and poles, so small differences remain small.
    Smooth,
}

/// A graph with its data.
pub(crate) struct Sample {
    pub(crate) graph: Graph,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

struct Generator<'a> {
    kind: Kind,
    graph: Graph,
    tensors: BTreeMap<String, Tensor>,
    sizes: Bindings,
    values: Vec<Value>,
    decisions: std::slice::Iter<'a, u16>,
}

/// The graph for a list of decisions.
pub(crate) fn sample(kind: Kind, decisions: &[u16]) -> Sample {
    let mut g = Generator {
        kind,
        graph: Graph::new(),
        tensors: BTreeMap::new(),
        sizes: Bindings::new().with("s", 3),
        values: Vec::new(),
        decisions: decisions.iter(),
    };
    g.leaves();
    while !g.decisions.as_slice().is_empty() {
        g.step();
    }
    if kind == Kind::Wild {
        // Rounding is discontinuous, so smooth graphs exclude it.
        g.through_codes();
    }
    g.finish()
}

impl Generator<'_> {
    fn next(&mut self, below: usize) -> usize {
        let decision = self.decisions.next().copied().unwrap_or(0);
        usize::from(decision) % below.max(1)
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.next(list.len())]
    }

    fn fill(&self) -> InputFill {
        match self.kind {
            Kind::Wild => InputFill::Special,
            Kind::Smooth => InputFill::Normal,
        }
    }

    fn leaves(&mut self) {
        let s = Dim::sym("s");
        let inputs: [(&str, DType, Vec<Dim>); 8] = [
            ("x", DType::F32, vec![s.clone(), 4.into()]),
            ("y", DType::F32, vec![s.clone(), 4.into()]),
            ("row", DType::F32, vec![4.into()]),
            ("column", DType::F32, vec![s.clone(), 1.into()]),
            ("cube", DType::F32, vec![2.into(), s.clone(), 4.into()]),
            ("half", DType::F16, vec![4.into(), 4.into()]),
            ("ints", DType::I32, vec![s.clone(), 4.into()]),
            ("bits", DType::Bool, vec![s, 4.into()]),
        ];
        for (name, dtype, shape) in inputs {
            let ty = Type::new(dtype, shape);
            let data = ty.eval(&self.sizes).unwrap();
            let fill = if name == "y" {
                InputFill::Normal
            } else {
                self.fill()
            };
            self.tensors.insert(name.into(), fill.tensor(name, data));
            let v = self.graph.input(name, ty).unwrap();
            self.values.push(v);
        }
        let weights = [
            ("w0", [4, 4]),
            ("w1", [4, 6]),
            ("w2", [4, 4]),
            ("w3", [6, 4]),
        ];
        for (name, shape) in weights {
            self.weight(name, &shape);
        }
        for name in ["b0", "b1", "gamma"] {
            self.weight(name, &[4]);
        }
        let ty = TensorType::new(DType::F32, &[2, 4]);
        let data = InputFill::Normal.tensor("state", ty.clone());
        self.tensors.insert("state".into(), data);
        let state = self.graph.state("state", (&ty).into()).unwrap();
        self.values.push(state);
    }

    fn weight(&mut self, name: &str, shape: &[usize]) {
        let ty = TensorType::new(DType::F32, shape);
        let data = InputFill::Normal.tensor(name, ty.clone());
        self.tensors.insert(name.into(), data);
        let v = self.graph.param(name, (&ty).into()).unwrap();
        self.values.push(v);
    }

    /// A value that `op` accepts after the operands `before`, searched from a random position on.
    fn operand(&mut self, op: &Op, before: &[Value], more: usize) -> Option<Value> {
        let start = self.next(self.values.len());
        // Trying recent values first makes deep graphs.
        let recent = self.values.iter().rev().cycle().skip(start).copied();
        recent.take(self.values.len()).find(|v| {
            let mut all = before.to_vec();
            all.push(*v);
            if more > 0 {
                return true;
            }
            let types: Vec<&Type> = all.iter().map(|v| self.graph.ty(*v)).collect();
            op.infer(&types).is_ok()
        })
    }

    /// Adds an operator with `n` operands found for it.
    fn apply(&mut self, op: impl Into<Op>, n: usize) -> Option<Value> {
        let op = op.into();
        let mut inputs = Vec::new();
        for i in 0..n {
            inputs.push(self.operand(&op, &inputs, n - 1 - i)?);
        }
        self.push(op, &inputs)
    }

    fn push(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Option<Value> {
        let op = op.into();
        let types: Vec<&Type> = inputs.iter().map(|v| self.graph.ty(*v)).collect();
        for ty in op.infer(&types).ok()? {
            if ty.eval(&self.sizes).ok()?.numel() > MAX_ELEMENTS {
                return None;
            }
        }
        let first = self.graph.add(op, inputs).ok()?;
        let ports = self.graph.node(first.node).outputs.len() as u8;
        self.values.extend((0..ports).map(|p| first.port(p)));
        Some(first)
    }

    fn value(&mut self) -> Value {
        let n = self.values.len();
        let at = n - 1 - self.next(n);
        self.values[at]
    }

    fn shape(&self, v: Value) -> Shape {
        self.graph.ty(v).shape.clone()
    }

    fn step(&mut self) {
        match self.next(20) {
            0..=4 => self.elementwise(),
            5..=9 => self.movement(),
            10 | 11 => self.product(),
            12 => self.line(),
            13 => self.norm(),
            14 | 15 => self.constant(),
            16 => self.few_rows(),
            17 => self.patches(),
            18 => self.factor(),
            _ => self.rare(),
        };
    }

    fn elementwise(&mut self) -> Option<Value> {
        let smooth = self.kind == Kind::Smooth;
        match self.next(8) {
            0 | 1 => {
                use UnaryFn::*;
                let f = match smooth {
                    true => self.pick(&[Relu, Sigmoid, Tanh, Neg, Abs, Gelu, Silu, Sin, Softplus]),
                    false => self.pick(UnaryFn::ALL),
                };
                // Decomposes the activation, as exporters do.
                if matches!(f, Sigmoid | Silu) && self.next(4) > 0 {
                    let gate = self.apply(Unary { f: Sigmoid }, 1)?;
                    let x = self.graph.node(gate.node).inputs[0];
                    return self.push(Binary { f: BinaryFn::Mul }, &[x, gate]);
                }
                self.apply(Unary { f }, 1)
            }
            2..=4 => {
                use BinaryFn::*;
                let f = match smooth {
                    true => self.pick(&[Add, Sub, Max, Min, Add]),
                    false => self.pick(BinaryFn::ALL),
                };
                self.apply(Binary { f }, 2)
            }
            5 if smooth => self.apply(
                Clamp {
                    lo: FloatAttr(-2.0),
                    hi: FloatAttr(2.5),
                },
                1,
            ),
            5 => {
                let f = self.pick(CompareFn::ALL);
                self.apply(Compare { f }, 2)
            }
            6 if smooth => None,
            6 => {
                let to = self.pick(DType::ALL);
                self.apply(Cast { to }, 1)
            }
            _ => self.select(),
        }
    }

    fn select(&mut self) -> Option<Value> {
        let bools: Vec<Value> = (self.values.iter().copied())
            .filter(|v| self.graph.ty(*v).dtype == DType::Bool)
            .collect();
        let cond = self.pick(&bools);
        let a = self.value();
        let b = self.operand(&Where {}.into(), &[cond, a], 0)?;
        self.push(Where {}, &[cond, a, b])
    }

    /// Matmuls of a value with weights, in patterns that epilogue fusion and packing match.
    fn product(&mut self) -> Option<Value> {
        let start = self.next(self.values.len());
        let n = self.values.len();
        let x = (0..n)
            .map(|i| self.values[n - 1 - (i + start) % n])
            .find(|v| {
                let ty = self.graph.ty(*v);
                ty.dtype == DType::F32 && ty.rank() >= 2 && ty.shape.last() == Some(&Dim::Known(4))
            })?;
        // Packing needs several matmuls of one value.
        self.projection(x)?;
        match self.next(2) {
            0 => self.projection(x),
            _ => None,
        }
    }

    fn projection(&mut self, x: Value) -> Option<Value> {
        let weight = |g: &Graph, name: &str| Value {
            node: g.leaf(name).unwrap(),
            port: 0,
        };
        let name = self.pick(&["w0", "w1", "w2"]);
        let mut w = weight(&self.graph, name);
        if name != "w1" && self.next(2) == 0 {
            w = self.graph.transpose(w, &[1, 0]).ok()?;
        }
        let y = match self.next(3) {
            0 => {
                let b = weight(&self.graph, "b1");
                let activation = self.pick(&[None, Some(UnaryFn::Tanh)]);
                match name {
                    "w1" => self.push(Linear { activation }, &[x, w])?,
                    _ => self.push(Linear { activation }, &[x, w, b])?,
                }
            }
            _ => self.push(MatMul {}, &[x, w])?,
        };
        if name == "w1" || self.next(3) == 0 {
            return Some(y);
        }
        let b = weight(&self.graph, "b0");
        let f = BinaryFn::Add;
        let y = self.push(Binary { f }, &[y, b])?;
        let f = self.pick(&[UnaryFn::Relu, UnaryFn::Tanh, UnaryFn::Sigmoid]);
        match self.next(2) {
            0 => Some(y),
            _ => self.push(Unary { f }, &[y]),
        }
    }

    fn line(&mut self) -> Option<Value> {
        let x = self.value();
        let axis = self.next(self.graph.ty(x).rank());
        match self.next(4) {
            0 => self.push(Softmax { axis }, &[x]),
            1 => {
                let f = self.pick(&[ReduceFn::Sum, ReduceFn::Mean, ReduceFn::Max]);
                let keep_dim = self.next(2) == 0;
                let axes = vec![axis];
                self.push(Reduce { f, axes, keep_dim }, &[x])
            }
            2 => {
                let f = self.pick(&[ScanFn::Sum, ScanFn::Max]);
                // An exclusive maximum begins with minus infinity, where SiLU is the limit -0 and
                // x * sigmoid(x) is NaN.
                let exclusive = self.next(2) == 0 && f == ScanFn::Sum;
                let reverse = self.next(2) == 0;
                let scan = CumSum {
                    axis,
                    f,
                    exclusive,
                    reverse,
                };
                self.push(scan, &[x])
            }
            _ => self.push(LogSoftmax { axis }, &[x]),
        }
    }

    /// A residual sum and its norm.
    fn norm(&mut self) -> Option<Value> {
        let leaf = |g: &Graph, name: &str| Value {
            node: g.leaf(name).unwrap(),
            port: 0,
        };
        let (gamma, beta) = (leaf(&self.graph, "gamma"), leaf(&self.graph, "b0"));
        let x = self.value();
        let f = BinaryFn::Add;
        let residual = self.operand(&Binary { f }.into(), &[x], 0)?;
        let mut a = x;
        if self.next(2) == 0 {
            a = self.push(Binary { f }, &[x, leaf(&self.graph, "b1")])?;
        }
        let sum = self.push(Binary { f }, &[a, residual])?;
        // A large eps keeps the norm of nearly equal numbers smooth.
        let eps = FloatAttr(0.5);
        let axis = self.graph.ty(sum).rank().checked_sub(1)?;
        match self.next(2) {
            0 => self.push(LayerNorm { axis, eps }, &[sum, gamma, beta]),
            _ => self.push(RmsNorm { eps }, &[sum, gamma]),
        }
    }

    fn constant(&mut self) -> Option<Value> {
        let dtype = self.pick(&[DType::F32, DType::F32, DType::F32, DType::I32, DType::F16]);
        let value = match self.kind {
            Kind::Wild => self.pick(&[0.0, 0.0, -0.0, 1.0, 1.0, f64::INFINITY]),
            Kind::Smooth => self.pick(&[0.0, -0.0, 1.0, 0.5]),
        };
        let shape: &[usize] = self.pick(&[&[], &[4], &[1, 4]]);
        let ty = TensorType::new(dtype, shape);
        let values = vec![value; ty.numel()];
        let tensor = match self.next(3) {
            0 => InputFill::Normal.tensor("constant", ty),
            _ => Tensor::from_f64s(ty, &values).unwrap(),
        };
        let constant = self.push(Const { tensor }, &[])?;
        // Most simplification rules apply to an operation with a constant.
        let f = match self.kind {
            Kind::Wild => {
                use BinaryFn::*;
                self.pick(&[Add, Add, Add, Sub, Sub, Mul, Mul, Div, Pow, And, Or, Shl])
            }
            Kind::Smooth => self.pick(&[BinaryFn::Add, BinaryFn::Sub, BinaryFn::Mul]),
        };
        let op: Op = Binary { f }.into();
        let other = self.operand(&op, &[constant], 0)?;
        match self.next(2) {
            0 => self.push(op, &[constant, other]),
            _ => self.push(op, &[other, constant]),
        }
    }

    fn rare(&mut self) -> Option<Value> {
        match self.next(7) {
            0 => self.apply(Fma {}, 3).filter(|_| self.kind == Kind::Wild),
            1 => {
                let rng = RngUniform {
                    shape: [3, 4].into(),
                    dtype: DType::F32,
                    lo: FloatAttr(-1.0),
                    hi: FloatAttr(1.0),
                    seed: 7,
                    stream: self.next(2) as u32,
                };
                self.push(rng, &[])
            }
            2 if self.kind == Kind::Wild => {
                let x = self.value();
                let axis = self.next(self.graph.ty(x).rank());
                self.push(
                    TopK {
                        k: 2,
                        axis,
                        largest: true,
                    },
                    &[x],
                )
            }
            4 => self.apply(Checkpoint {}, 1),
            5 => self.apply(StopGradient {}, 1),
            3 => {
                let x = self.value();
                let tensor = Tensor::from_slice(&[2], &[0i32, -1]).unwrap();
                let index = self.push(Const { tensor }, &[])?;
                let axis = self.next(self.graph.ty(x).rank());
                self.push(Gather { axis }, &[x, index])
            }
            _ => self.apply(MatMul {}, 2).filter(|_| self.kind == Kind::Wild),
        }
    }

    fn finish(mut self) -> Sample {
        // The outputs are the most recent values and some random ones; the other nodes are dead
        // code.
        let n = self.values.len();
        for i in 0..6 {
            let v = self.values[n - 1 - i * 3 % n];
            self.graph.output(&format!("out{i}"), v).unwrap();
        }
        let state = Value {
            node: self.graph.leaf("state").unwrap(),
            port: 0,
        };
        let ty = self.graph.ty(state).clone();
        let same = |v: &&Value| *self.graph.ty(**v) == ty;
        if let Some(&v) = self.values.iter().rev().find(same) {
            self.graph.assign(state, v).unwrap();
        }
        Sample {
            graph: self.graph,
            tensors: self.tensors,
        }
    }
}
