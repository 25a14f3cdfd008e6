//! Leaves: inputs, parameters, constants and states.

use tercet_tensor::accuracy::Accuracy;
use tercet_tensor::{DType, Tensor, TensorType, Type};

use crate::attrs;
use crate::error::{EvalError, OpError, TypeError};
use crate::grad::Gradient;
use crate::graph::{Graph, Value};
use crate::op::{EvalCtx, OpDoc, OpSpec, Tier};
use crate::ops::Op;
use crate::ops::util::exactly;

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
