//! Leaves: inputs, parameters, constants and states.

use crate::accuracy::Accuracy;
use crate::attrs;
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::Op;
use crate::ops::util::exactly;
use crate::tensor::Tensor;
use crate::types::{TensorType, Type};

attrs! {
    /// A tensor provided at each run.
    ///
    /// ```
    /// use tercet_ir::{DType, Dim, Graph, Op, Type, ops::Input};
    /// let mut g = Graph::new();
    /// let ty = Type::new(DType::F32, [Dim::sym("rows"), Dim::Known(3)]);
    /// let x = g.input("x", ty.clone())?;
    /// assert_eq!(g.node(x.node).op, Op::from(Input { name: "x".to_string(), ty }));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Input {
        /// Name of the input, unique among the leaves.
        pub name: String,
        /// Type of the input; symbols get their sizes from it.
        pub ty: Type,
    }
}

attrs! {
    /// A weight, set once before the first run. Its sizes are known.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Op, Type, ops::Param};
    /// let mut g = Graph::new();
    /// let ty = Type::new(DType::F32, [64, 32]);
    /// let w = g.param("w", ty.clone())?;
    /// assert_eq!(g.node(w.node).op, Op::from(Param { name: "w".to_string(), ty }));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct Param {
        /// Name of the parameter, unique among the leaves.
        pub name: String,
        /// Type of the parameter.
        pub ty: Type,
    }
}

attrs! {
    /// A tensor stored in the graph.
    ///
    /// ```
    /// use tercet_ir::{Graph, Op, Tensor, ops::Const};
    /// let mut g = Graph::new();
    /// let x = g.constant(Tensor::from_slice(&[2], &[1f32, 2.0])?)?;
    /// let Op::Const(Const { tensor }) = &g.node(x.node).op else { panic!("`x` is a constant") };
    /// assert_eq!(tensor.as_slice::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub struct Const {
        /// The constant tensor.
        pub tensor: Tensor,
    }
}

attrs! {
    /// A buffer that persists between runs and starts as zeros. Its sizes are known.
    ///
    /// ```
    /// use tercet_ir::{DType, Graph, Op, Type, ops::State};
    /// let mut g = Graph::new();
    /// let ty = Type::new(DType::F32, [4]);
    /// let total = g.state("total", ty.clone())?;
    /// assert_eq!(g.node(total.node).op, Op::from(State { name: "total".to_string(), ty }));
    /// # Ok::<(), tercet_ir::OpError>(())
    /// ```
    pub struct State {
        /// Name of the state, unique among the leaves.
        pub name: String,
        /// Type of the state.
        pub ty: Type,
    }
}

impl Op {
    /// True for inputs, parameters, constants and states.
    pub fn is_leaf(&self) -> bool {
        matches!(
            self,
            Op::Input(_) | Op::Param(_) | Op::Const(_) | Op::State(_)
        )
    }
}

const fn leaf_doc(name: &'static str, text: &'static str) -> OpDoc {
    OpDoc {
        name,
        text,
        operands: &[],
        dtypes: DType::ALL,
        accuracy: Accuracy::Exact,
        tier: Tier::Core,
    }
}

fn known_sizes(ty: &Type, what: &str) -> Result<Vec<Type>, TypeError> {
    if ty.shape.as_known().is_none() {
        let reason = format!("the sizes of a {what} must be known, got {ty}");
        return Err(TypeError::Attr { name: "ty", reason });
    }
    Ok(vec![ty.clone()])
}

fn bound_by_the_executor(what: &str) -> Result<Vec<Tensor>, EvalError> {
    Err(EvalError::Data(format!(
        "the executor must provide the value of a {what}"
    )))
}

impl OpSpec for Input {
    const DOC: OpDoc = leaf_doc("input", "A tensor provided at each run.");

    const GRADIENT: Gradient<Self> = Gradient::Zero("a leaf has no operands");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [] = exactly(operands)?;
        Ok(vec![self.ty.clone()])
    }

    fn eval(&self, _: &EvalCtx, _: &[&Tensor], _: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        bound_by_the_executor("input")
    }

    fn cases() -> Vec<OpCase> {
        vec![
            OpCase::new("identity", |c| {
                let x = c.input("x", [3, 5], InputFill::Normal)?;
                c.output(x)
            }),
            OpCase::new("symbolic_and_empty", |c| {
                let (s, e) = (c.sym("s", 4, 9), c.sym("e", 0, 3));
                let twice = s.checked_mul(&2.into()).unwrap_or(0.into());
                let x = c.input("x", [s, 3.into(), twice], InputFill::Normal)?;
                let y = c.input("y", [e], InputFill::Normal)?;
                c.output(x)?;
                c.output(y)
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            RejectCase {
                name: "name_taken",
                message: "`x` is already in use",
                build: |g| {
                    g.input("x", Type::new(DType::F32, [1]))?;
                    g.input("x", Type::new(DType::F32, [1]))
                },
            },
            RejectCase {
                name: "nine_axes",
                message: "9 axes; expected at most 8",
                build: |g| g.input("x", Type::new(DType::F32, [1; 9])),
            },
            RejectCase {
                name: "larger_than_memory",
                message: "is too large: expected at most",
                build: |g| g.input("x", Type::new(DType::F32, [usize::MAX / 2, 3])),
            },
        ]
    }
}

impl OpSpec for Param {
    const DOC: OpDoc = leaf_doc("param", "A weight, set once before the first run.");

    const GRADIENT: Gradient<Self> = Gradient::Zero("a leaf has no operands");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [] = exactly(operands)?;
        known_sizes(&self.ty, "parameter")
    }

    fn eval(&self, _: &EvalCtx, _: &[&Tensor], _: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        bound_by_the_executor("parameter")
    }

    fn cases() -> Vec<OpCase> {
        vec![OpCase::new("identity", |c| {
            let w = c.param_of("w", Type::new(c.dtype, [3, 5]), InputFill::Normal)?;
            c.output(w)
        })]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![RejectCase {
            name: "symbolic",
            message: "must be known",
            build: |g| g.param("w", Type::new(DType::F32, [crate::Dim::sym("s")])),
        }]
    }
}

impl OpSpec for Const {
    const DOC: OpDoc = leaf_doc("const", "A tensor stored in the graph.");

    const GRADIENT: Gradient<Self> = Gradient::Zero("a leaf has no operands");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [] = exactly(operands)?;
        Ok(vec![self.tensor.ty().into()])
    }

    fn eval(&self, _: &EvalCtx, _: &[&Tensor], _: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        Ok(vec![self.tensor.clone()])
    }

    fn cases() -> Vec<OpCase> {
        vec![
            OpCase::new("values", |c| {
                let ty = TensorType::new(c.dtype, &[2, 2]);
                let k = c.graph.constant(InputFill::Normal.tensor("k", ty))?;
                c.output(k)
            }),
            OpCase::new("empty", |c| {
                let k = c
                    .graph
                    .constant(InputFill::Normal.tensor("k", TensorType::new(c.dtype, &[0])))?;
                c.output_expect(k, &[])
            }),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![RejectCase {
            name: "operand",
            message: "expected 0 operands",
            build: |g| {
                let k = Tensor::scalar(1f32);
                let x = g.constant(k.clone())?;
                g.add(Const { tensor: k }, &[x])
            },
        }]
    }
}

/// Dtypes with an order, for which the updates are exact.
const NUMBERS: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I32, DType::U8];

/// Two states that one elementwise step updates, as an optimizer updates a weight and its moment.
/// With a late reader, the old value of the first state is read after the update.
fn updates(c: &mut CaseGraph, n: usize, late_reader: bool) -> Result<(), OpError> {
    let ty = Type::new(c.dtype, [n]);
    let w = c.state_of("w", ty.clone(), InputFill::Normal)?;
    let m = c.state_of("m", ty, InputFill::Normal)?;
    let x = c.input("x", [n], InputFill::Normal)?;
    let scalar = c.input("scalar", [1], InputFill::Values(vec![1.0]))?;
    let pred = c.input_of("pred", Type::new(DType::Bool, [n]), InputFill::Normal)?;
    let other = c.input_of("other", Type::new(DType::Bool, [n]), InputFill::Normal)?;
    let moved = c.graph.where_(pred, x, m)?;
    let chosen = c.graph.where_(other, moved, w)?;
    let both = c.graph.and(pred, other)?;
    let chosen = c.graph.where_(both, scalar, chosen)?;
    c.graph.assign(m, moved)?;
    c.graph.assign(w, chosen)?;
    c.runs = 3;
    if late_reader {
        let old = c.graph.concat(&[chosen, w], 0)?;
        return c.output(old);
    }
    c.output(moved)
}

impl OpSpec for State {
    const DOC: OpDoc = leaf_doc(
        "state",
        "A buffer that persists between runs and starts as zeros.",
    );

    const GRADIENT: Gradient<Self> = Gradient::Zero("a leaf has no operands");

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        let [] = exactly(operands)?;
        known_sizes(&self.ty, "state")
    }

    fn eval(&self, _: &EvalCtx, _: &[&Tensor], _: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        bound_by_the_executor("state")
    }

    fn cases() -> Vec<OpCase> {
        vec![
            OpCase::new("keeps_the_old_value_while_running", |c| {
                let ty = Type::new(c.dtype, [4]);
                let s = c.state_of("s", ty.clone(), InputFill::Normal)?;
                let x = c.input_of("x", ty, InputFill::Normal)?;
                c.graph.assign(s, x)?;
                c.runs = 3;
                c.output(s)
            }),
            OpCase::new("swap", |c| {
                let ty = Type::new(c.dtype, [4]);
                let a = c.state_of("a", ty.clone(), InputFill::Normal)?;
                let b = c.state_of("b", ty, InputFill::Normal)?;
                c.graph.assign(a, b)?;
                c.graph.assign(b, a)?;
                c.runs = 4;
                c.output(a)?;
                c.output(b)
            }),
            OpCase::new("elementwise_updates", |c| updates(c, 1037, false)),
            OpCase::new("elementwise_updates_of_words", |c| updates(c, 4096, false)),
            OpCase::new("elementwise_updates_of_vectors", |c| {
                updates(c, 3 << 19, false)
            })
            .only(&[DType::F32, DType::F16, DType::I32]),
            OpCase::new("elementwise_updates_with_a_late_reader", |c| {
                updates(c, 1037, true)
            }),
            OpCase::new("elementwise_updates_of_each_other", |c| {
                let ty = Type::new(c.dtype, [33]);
                let a = c.state_of("a", ty.clone(), InputFill::Uniform(0.0, 1.0))?;
                let b = c.state_of("b", ty, InputFill::Uniform(1.0, 2.0))?;
                let more = c.graph.max(a, b)?;
                let less = c.graph.min(a, b)?;
                let sum = c.graph.max(more, less)?;
                c.graph.assign(a, sum)?;
                c.graph.assign(b, less)?;
                c.runs = 3;
                c.output(more)
            })
            .only(NUMBERS),
            OpCase::new("update_along_another_axis", |c| {
                let s = c.state_of("s", Type::new(c.dtype, [7, 7]), InputFill::Normal)?;
                let x = c.input("x", [7, 7], InputFill::Normal)?;
                let turned = c.graph.transpose(s, &[1, 0])?;
                let y = c.graph.max(turned, x)?;
                c.graph.assign(s, y)?;
                c.runs = 3;
                c.output(y)
            })
            .only(NUMBERS),
            OpCase::new("update_that_a_fault_follows", |c| {
                let s = c.state_of("s", Type::new(c.dtype, [5]), InputFill::Normal)?;
                let x = c.input("x", [5], InputFill::Normal)?;
                let idx = Type::new(DType::I32, [2]);
                let idx = c.input_of("idx", idx, InputFill::Values(vec![0.0, 9.0]))?;
                let y = c.graph.max(s, x)?;
                c.graph.assign(s, y)?;
                let taken = c.graph.gather(y, idx, 0)?;
                c.expected_fault = Some("out of range");
                c.runs = 2;
                c.output(taken)
            })
            .only(NUMBERS),
        ]
    }

    fn rejects() -> Vec<RejectCase> {
        vec![
            RejectCase {
                name: "symbolic",
                message: "must be known",
                build: |g| g.state("s", Type::new(DType::F32, [crate::Dim::sym("s")])),
            },
            RejectCase {
                name: "assign_to_an_input",
                message: "is not a state",
                build: |g| {
                    let x = g.input("x", Type::new(DType::F32, [1]))?;
                    g.assign(x, x).map(|()| x)
                },
            },
            RejectCase {
                name: "assign_another_type",
                message: "the same type",
                build: |g| {
                    let s = g.state("s", Type::new(DType::F32, [1]))?;
                    let x = g.input("x", Type::new(DType::F32, [2]))?;
                    g.assign(s, x).map(|()| x)
                },
            },
        ]
    }
}

impl Graph {
    /// A tensor provided at each run.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use or the type is too large.
    pub fn input(&mut self, name: &str, ty: Type) -> Result<Value, OpError> {
        self.add(
            Input {
                name: name.to_string(),
                ty,
            },
            &[],
        )
    }

    /// A weight, set once before the first run. The sizes of a parameter must be known.
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use or a size is symbolic.
    pub fn param(&mut self, name: &str, ty: Type) -> Result<Value, OpError> {
        self.add(
            Param {
                name: name.to_string(),
                ty,
            },
            &[],
        )
    }

    /// A tensor stored in the graph.
    ///
    /// # Errors
    /// [`OpError`] when the tensor has too many axes.
    pub fn constant(&mut self, tensor: Tensor) -> Result<Value, OpError> {
        self.add(Const { tensor }, &[])
    }

    /// A rank 0 constant of a float or integer dtype.
    ///
    /// # Errors
    /// [`OpError`] never in practice.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Result<Value, OpError> {
        let tensor = Tensor::from_f64s(TensorType::new(dtype, &[]), &[value])
            .expect("invariant: one value fits a scalar");
        self.constant(tensor)
    }

    /// A buffer that persists between runs; see [`Graph::assign`].
    ///
    /// # Errors
    /// [`OpError`] when the name is already in use or a size is symbolic.
    pub fn state(&mut self, name: &str, ty: Type) -> Result<Value, OpError> {
        self.add(
            State {
                name: name.to_string(),
                ty,
            },
            &[],
        )
    }
}
