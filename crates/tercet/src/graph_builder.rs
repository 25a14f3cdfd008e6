//! Graphs written with arithmetic operators.

use std::cell::RefCell;
use std::ops::{Add, Div, Mul, Neg, Sub};

use tercet_ir::{Graph, OpError, Tensor, Type, TypeError, Value};

/// A graph under construction whose values have `+ - * /`, with each other and with numbers.
///
/// Operands broadcast as in [`Graph`]. A number takes the dtype of the other operand. The methods
/// return no errors: [`Self::finish`] returns the first one. [`Self::apply`] and
/// [`GraphExpr::map`] reach every operator of [`Graph`].
///
/// ```
/// use tercet::{CompileOptions, DType, Device, GraphBuilder, Tensor, Type};
/// let b = GraphBuilder::new();
/// let celsius = b.input("celsius", Type::new(DType::F32, [2]));
/// b.output("fahrenheit", celsius * 1.8 + 32.0);
/// let mut exe = Device::cpu().compile(&b.finish()?, &CompileOptions::new())?;
/// let celsius = Tensor::from_slice(&[2], &[0f32, 100.0])?;
/// let outputs = exe.run_named(&[("celsius", &celsius)])?;
/// assert_eq!(outputs.get("fahrenheit")?.as_slice::<f32>()?, [32.0, 212.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct GraphBuilder {
    graph: RefCell<Graph>,
    /// The first error.
    error: RefCell<Option<OpError>>,
}

/// A value of a [`GraphBuilder`].
///
/// ```
/// use tercet::{DType, GraphBuilder, Type};
/// let b = GraphBuilder::new();
/// let x = b.input("x", Type::new(DType::F32, [4, 3]));
/// let w = b.param("w", Type::new(DType::F32, [3, 2]));
/// let y = x.matmul(w).map(|g, y| g.softmax(y, 1));
/// b.output("y", 1.0 - y);
/// assert_eq!(b.finish()?.outputs()[0].name, "y");
/// # Ok::<(), tercet::OpError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GraphExpr<'b> {
    builder: &'b GraphBuilder,
    /// `None` after an error.
    value: Option<Value>,
}

impl GraphBuilder {
    /// An empty graph.
    pub fn new() -> GraphBuilder {
        GraphBuilder::default()
    }

    /// Adds an input ([`Graph::input`]).
    pub fn input(&self, name: &str, ty: Type) -> GraphExpr<'_> {
        self.apply(|g| g.input(name, ty))
    }

    /// Adds a parameter ([`Graph::param`]).
    pub fn param(&self, name: &str, ty: Type) -> GraphExpr<'_> {
        self.apply(|g| g.param(name, ty))
    }

    /// Adds a state ([`Graph::state`]).
    pub fn state(&self, name: &str, ty: Type) -> GraphExpr<'_> {
        self.apply(|g| g.state(name, ty))
    }

    /// Adds a tensor that is stored in the graph ([`Graph::constant`]).
    pub fn constant(&self, tensor: Tensor) -> GraphExpr<'_> {
        self.apply(|g| g.constant(tensor))
    }

    /// Adds the value that `add` returns, with any methods of [`Graph`]. Operators on other
    /// expressions are errors inside of `add`; [`GraphExpr::value`] gives their values before.
    pub fn apply(&self, add: impl FnOnce(&mut Graph) -> Result<Value, OpError>) -> GraphExpr<'_> {
        let value = match self.graph.try_borrow_mut() {
            Ok(mut graph) => add(&mut graph).and_then(|value| match graph.get_type(value) {
                Some(_) => Ok(value),
                None => Err(refused("the value of the closure is not in this graph")),
            }),
            Err(_) => Err(refused(
                "an operator inside of `apply` or `map`; use the graph that the closure receives",
            )),
        };
        self.expr(value)
    }

    /// Adds a named output.
    pub fn output(&self, name: &str, value: GraphExpr<'_>) {
        let Some(value) = self.own(value) else {
            return;
        };
        self.apply(|g| g.output(name, value).map(|()| value));
    }

    /// Assigns `value` to a state at the end of a run ([`Graph::assign`]).
    pub fn assign(&self, state: GraphExpr<'_>, value: GraphExpr<'_>) {
        if let (Some(state), Some(value)) = (self.own(state), self.own(value)) {
            self.apply(|g| g.assign(state, value).map(|()| value));
        }
    }

    /// The finished graph.
    ///
    /// # Errors
    /// The first [`OpError`] of all methods and operators.
    pub fn finish(self) -> Result<Graph, OpError> {
        match self.error.into_inner() {
            Some(error) => Err(error),
            None => Ok(self.graph.into_inner()),
        }
    }

    /// Records the first error.
    fn fail(&self, error: OpError) {
        self.error.borrow_mut().get_or_insert(error);
    }

    fn expr(&self, value: Result<Value, OpError>) -> GraphExpr<'_> {
        let value = value.map_err(|e| self.fail(e)).ok();
        GraphExpr {
            builder: self,
            value,
        }
    }

    /// The value of an expression of this builder.
    fn own(&self, expr: GraphExpr<'_>) -> Option<Value> {
        if std::ptr::eq(self, expr.builder) {
            return expr.value;
        }
        self.fail(refused("an operand belongs to another builder"));
        None
    }

    /// The operator `add` on two operands.
    fn binary(
        &self,
        operands: [GraphOperand<'_>; 2],
        add: impl FnOnce(&mut Graph, Value, Value) -> Result<Value, OpError>,
    ) -> GraphExpr<'_> {
        let mut dtype = None;
        for operand in &operands {
            let GraphOperand::Expr(expr) = operand else {
                continue;
            };
            let Some(value) = self.own(*expr) else {
                return self.failed();
            };
            let graph = self.graph.try_borrow().ok();
            dtype = graph.and_then(|graph| Some(graph.get_type(value)?.dtype));
        }
        self.apply(|g| {
            let mut values = [None; 2];
            for (value, operand) in values.iter_mut().zip(operands) {
                *value = match (operand, dtype) {
                    (GraphOperand::Expr(expr), _) => expr.value,
                    (GraphOperand::Number(number), Some(dtype)) => {
                        if let Some(reason) = misfit(number, dtype) {
                            return Err(refused(&reason));
                        }
                        Some(g.scalar(dtype, number)?)
                    }
                    (GraphOperand::Number(_), None) => None,
                };
            }
            match values {
                [Some(a), Some(b)] => add(g, a, b),
                _ => Err(refused("an operand is not in this graph")),
            }
        })
    }

    fn failed(&self) -> GraphExpr<'_> {
        GraphExpr {
            builder: self,
            value: None,
        }
    }
}

impl<'b> GraphExpr<'b> {
    /// The value in the graph.
    ///
    /// # Errors
    /// The first [`OpError`] of the builder, if this expression could not be added.
    pub fn value(self) -> Result<Value, OpError> {
        let error = || self.builder.error.borrow().clone();
        self.value
            .ok_or_else(|| error().unwrap_or_else(|| refused("an operand has no value")))
    }

    /// The type, if the expression could be added.
    pub fn ty(self) -> Option<Type> {
        let graph = self.builder.graph.try_borrow().ok()?;
        graph.get_type(self.value?).cloned()
    }

    /// The result of `add` for this value, with any methods of [`Graph`].
    pub fn map(
        self,
        add: impl FnOnce(&mut Graph, Value) -> Result<Value, OpError>,
    ) -> GraphExpr<'b> {
        match self.value {
            Some(value) => self.builder.apply(|g| add(g, value)),
            None => self,
        }
    }

    /// The square of each element.
    #[must_use]
    pub fn square(self) -> GraphExpr<'b> {
        self.map(|g, x| g.mul(x, x))
    }

    /// The mean of all elements, without axes ([`Graph::reduce_mean`]).
    #[must_use]
    pub fn mean(self) -> GraphExpr<'b> {
        self.map(|g, x| {
            let axes: Vec<usize> = (0..g.ty(x).rank()).collect();
            g.reduce_mean(x, &axes, false)
        })
    }

    /// The matrix product ([`Graph::matmul`]).
    #[must_use]
    pub fn matmul(self, other: GraphExpr<'_>) -> GraphExpr<'b> {
        let operands = [GraphOperand::Expr(self), GraphOperand::Expr(other)];
        self.builder.binary(operands, |g, a, b| g.matmul(a, b))
    }
}

/// An operand of an arithmetic operator.
#[derive(Clone, Copy)]
enum GraphOperand<'b> {
    Expr(GraphExpr<'b>),
    Number(f64),
}

/// Why a number is not a value of a dtype.
fn misfit(number: f64, dtype: tercet_ir::DType) -> Option<String> {
    let (least, most) = dtype.int_range()?;
    let fits = number.fract() == 0.0 && (least as f64..=most as f64).contains(&number);
    (!fits)
        .then(|| format!("{number} is not a value of {dtype}; cast the other operand to a float"))
}

fn refused(reason: &str) -> OpError {
    OpError {
        op: "expression",
        operands: Vec::new(),
        source: TypeError::Other(reason.to_string()),
    }
}

/// An operator on two expressions, and on an expression and a number on either side.
macro_rules! operators {
    ($($operator:ident :: $method:ident => $op:ident),* $(,)?) => { $(
        impl<'b> $operator<GraphExpr<'_>> for GraphExpr<'b> {
            type Output = GraphExpr<'b>;

            fn $method(self, other: GraphExpr<'_>) -> GraphExpr<'b> {
                let operands = [GraphOperand::Expr(self), GraphOperand::Expr(other)];
                self.builder.binary(operands, |g, a, b| g.$op(a, b))
            }
        }
        operators!($operator::$method => $op, f64);
        operators!($operator::$method => $op, i32);
    )* };
    ($operator:ident :: $method:ident => $op:ident, $number:ty) => {
        impl<'b> $operator<$number> for GraphExpr<'b> {
            type Output = GraphExpr<'b>;

            fn $method(self, number: $number) -> GraphExpr<'b> {
                let operands = [GraphOperand::Expr(self), GraphOperand::Number(number.into())];
                self.builder.binary(operands, |g, a, b| g.$op(a, b))
            }
        }

        impl<'b> $operator<GraphExpr<'b>> for $number {
            type Output = GraphExpr<'b>;

            fn $method(self, expr: GraphExpr<'b>) -> GraphExpr<'b> {
                let operands = [GraphOperand::Number(self.into()), GraphOperand::Expr(expr)];
                expr.builder.binary(operands, |g, a, b| g.$op(a, b))
            }
        }
    };
}
operators! { Add::add => plus, Sub::sub => sub, Mul::mul => mul, Div::div => div }

impl<'b> Neg for GraphExpr<'b> {
    type Output = GraphExpr<'b>;

    fn neg(self) -> GraphExpr<'b> {
        self.map(|g, x| g.neg(x))
    }
}
