//! Tests for every error of differentiation.

use tercet_ir::attr::AttrLiteral;
use tercet_ir::custom::{CustomOp, WgslKernel};
use tercet_ir::grad::{GradError, NoGradient, Vjp, VjpResult};
use tercet_ir::{DType, EvalError, Graph, Tensor, TensorType, Type, TypeError, Value, one_line};

/// An input of this type.
fn input(g: &mut Graph, name: &str, dtype: DType, shape: &[usize]) -> Value {
    g.input(name, Type::new(dtype, shape))
        .expect("a fresh name")
}

/// The error; checks that the graph is unchanged afterwards.
fn grad_error(g: &mut Graph, loss: Value, wanted: &[Value]) -> GradError {
    let before = g.clone();
    let e = g.gradients(loss, wanted).expect_err("it has no gradients");
    assert_eq!(*g, before, "nodes are left over");
    e
}

#[test]
fn a_loss_is_one_float() {
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &[3]);
    let i = input(&mut g, "i", DType::I32, &[]);
    let text = one_line(&grad_error(&mut g, x, &[x]));
    assert!(
        text.contains("the loss %0 is f32[3]; expected a float of rank 0"),
        "{text}"
    );
    assert!(matches!(
        grad_error(&mut g, i, &[x]),
        GradError::Loss { .. }
    ));
}

#[test]
fn values_are_floats_of_the_graph() {
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &[]);
    let i = input(&mut g, "labels", DType::I32, &[3]);
    let text = one_line(&grad_error(&mut g, x, &[x, i]));
    assert_eq!(text, "%1 `labels` is i32[3]; only floats have gradients");
    let other = x.port(1);
    assert_eq!(
        grad_error(&mut g, x, &[other]),
        GradError::NotOfGraph { value: other }
    );
    assert_eq!(
        grad_error(&mut g, other, &[x]),
        GradError::NotOfGraph { value: other }
    );
}

#[test]
fn cotangents_have_the_types_of_their_outputs() {
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &[3]);
    let y = g.exp(x).expect("a float");
    let dy = input(&mut g, "dy", DType::F32, &[2]);
    let before = g.clone();
    let e = g.vjp(&[(y, dy)], &[x]).expect_err("the types differ");
    assert_eq!(
        one_line(&e),
        "the cotangent of %1 is f32[2]; expected f32[3]"
    );
    assert_eq!(g, before);
}

#[test]
fn values_off_the_way_are_named() {
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &[3]);
    let w = g
        .param("w", Type::new(DType::F32, [3]))
        .expect("a fresh name");
    let unused = g
        .param("unused", Type::new(DType::F32, [3]))
        .expect("a fresh name");
    let above = g
        .compare(tercet_ir::scalar::CompareFn::Gt, w, x)
        .expect("they compare");
    let weight = g.cast(above, DType::F32).expect("any dtype");
    let y = g.mul(x, weight).expect("floats");
    let loss = g.reduce_sum(y, &[0], false).expect("floats");
    let e = grad_error(&mut g, loss, &[x, w, unused]);
    let GradError::Unused { values, .. } = &e else {
        panic!("{e:?}")
    };
    assert_eq!(values.len(), 2, "{e}");
    let text = one_line(&e);
    assert!(
        text.contains(
            "%1 `w`, whose gradient path ends at %3 compare: the derivative of a boolean is zero"
        ),
        "{text}"
    );
    assert!(text.contains("%2 `unused`"), "{text}");
    // An operator with zero derivative between value and loss is also an error, because a silent
    // zero gradient would hide it.
    let flat = g.floor(w).expect("a float");
    let loss = g.reduce_sum(flat, &[0], false).expect("floats");
    let text = one_line(&grad_error(&mut g, loss, &[w]));
    assert!(
        text.contains("whose gradient path ends at %7 unary: its derivative is 0"),
        "{text}"
    );
    // A vector-Jacobian product without a path is not an error.
    let dy = g.scalar(DType::F32, 1.0).expect("a float");
    assert_eq!(g.vjp(&[(loss, dy)], &[w]), Ok(vec![None]));
}

/// A custom operator without a gradient.
#[derive(Debug)]
struct OpaqueOp;

impl CustomOp for OpaqueOp {
    fn name(&self) -> &str {
        "test.opaque"
    }
    fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
        Vec::new()
    }
    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        Ok(operands.iter().copied().cloned().collect())
    }
    fn eval(&self, operands: &[&Tensor], _: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        Ok(operands.iter().copied().cloned().collect())
    }
    fn kernels(&self, _: &[&Type], _: &[Type]) -> Option<Vec<WgslKernel>> {
        None
    }
    fn gradient(&self, _: &mut Vjp<'_>) -> VjpResult {
        Err(NoGradient::because("the reason is unknown"))
    }
}

#[test]
fn every_node_that_blocks_the_way_is_named() {
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &[3]);
    let y = g.custom(OpaqueOp, &[x]).expect("any operand");
    let y = g.exp(y).expect("a float");
    let mut body = Graph::new();
    let carried = input(&mut body, "c", DType::F32, &[3]);
    let next = body.tanh(carried).expect("a float");
    body.output("next", next).expect("a fresh name");
    let mut cond = Graph::new();
    let carried = input(&mut cond, "c", DType::F32, &[3]);
    let sum = cond.reduce_sum(carried, &[0], false).expect("floats");
    let one = cond.scalar(DType::F32, 1.0).expect("a float");
    let goes_on = cond
        .compare(tercet_ir::scalar::CompareFn::Gt, sum, one)
        .expect("floats");
    cond.output("goes_on", goes_on).expect("a fresh name");
    let y = g.while_loop(&[y], &[], cond, body, 10).expect("it fits");
    // The nodes of `other` do not depend on the requested value, so the error must not list them.
    let other = input(&mut g, "other", DType::F32, &[3]);
    let other = g.custom(OpaqueOp, &[other]).expect("any operand");
    let y = g.mul(y, other).expect("floats");
    let loss = g.reduce_sum(y, &[0], false).expect("floats");
    let e = grad_error(&mut g, loss, &[x]);
    let GradError::Severed { nodes } = &e else {
        panic!("{e:?}")
    };
    let named: Vec<(u32, &str)> = nodes.iter().map(|n| (n.node.0, n.op)).collect();
    assert_eq!(named, [(3, "while"), (1, "custom")], "{e}");
    let text = one_line(&e);
    assert!(text.contains("%1 custom: the reason is unknown"), "{text}");
    assert!(text.contains("%3 while: the number of states"), "{text}");
    // A value after the non-differentiable nodes has a gradient.
    assert!(g.gradients(loss, &[y]).is_ok());
}

#[test]
fn a_rule_that_gives_another_type_is_an_error() {
    #[derive(Debug)]
    struct WrongGradOp;
    impl CustomOp for WrongGradOp {
        fn name(&self) -> &str {
            "test.wrong"
        }
        fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
            Vec::new()
        }
        fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
            Ok(vec![operands[0].with_shape(tercet_ir::Shape::default())])
        }
        fn eval(&self, _: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
            Ok(vec![Tensor::zeros(results[0].clone())?])
        }
        fn kernels(&self, _: &[&Type], _: &[Type]) -> Option<Vec<WgslKernel>> {
            None
        }
        fn gradient(&self, v: &mut Vjp<'_>) -> VjpResult {
            let dy = v.dy(0)?;
            Ok(v.accumulate(0, dy)?)
        }
    }
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &[3]);
    let loss = g.custom(WrongGradOp, &[x]).expect("any operand");
    let e = grad_error(&mut g, loss, &[x]);
    let text = one_line(&e);
    assert!(text.contains("the gradient of %1 (custom)"), "{text}");
    assert!(
        text.contains("another type than operand 0, f32[3]"),
        "{text}"
    );
}

#[test]
fn packed_weights_do_not_learn() {
    let mut g = Graph::new();
    let x = input(&mut g, "x", DType::F32, &[2, 32]);
    let ty = Type::new(DType::U8, [3, 34]);
    let w = g.param("w", ty).expect("a fresh name");
    let y = g
        .dequant_matmul(x, w, tercet_ir::Scheme::Q8_0)
        .expect("they fit");
    let loss = g.reduce_sum(y, &[0, 1], false).expect("floats");
    assert!(matches!(
        grad_error(&mut g, loss, &[w]),
        GradError::NotFloat { .. }
    ));
    assert!(g.gradients(loss, &[x]).is_ok());
}
