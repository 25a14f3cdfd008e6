//! Tests of user-defined operators in the text form.

use tercet::attr::{AttrError, AttrLiteral, Attrs, FloatAttr};
use tercet::custom::{CustomOp, CustomOps, WgslKernel};
use tercet::grad::{Vjp, VjpResult};
use tercet::{
    CompileOptions, DType, Device, Dim, EvalError, Graph, Tensor, TensorType, Type, TypeError,
    parse, parse_with,
};

use crate::SuiteTest;

use super::{BoxError, same};

tercet::attrs! {
    /// `scale x`
    pub struct ScaleOp {
        /// The factor that each element is multiplied by.
        pub scale: FloatAttr,
        /// A dimension, which the text form can write as an expression.
        pub size: Dim,
    }
}

impl CustomOp for ScaleOp {
    fn name(&self) -> &str {
        "test.scaled"
    }

    fn attrs(&self) -> Vec<(&'static str, AttrLiteral)> {
        self.to_literals()
    }

    fn infer(&self, operands: &[&Type]) -> Result<Vec<Type>, TypeError> {
        same(operands)
    }

    fn eval(&self, operands: &[&Tensor], results: &[TensorType]) -> Result<Vec<Tensor>, EvalError> {
        let y: Vec<f64> = operands[0]
            .to_f64s()
            .iter()
            .map(|x| x * self.scale.0)
            .collect();
        Ok(vec![Tensor::from_f64s(results[0].clone(), &y)?])
    }

    fn kernels(&self, _: &[&Type], _: &[Type]) -> Option<Vec<WgslKernel>> {
        None
    }

    fn gradient(&self, v: &mut Vjp<'_>) -> VjpResult {
        let dy = v.dy(0)?;
        let dx = v.custom(self.clone(), &[dy])?;
        Ok(v.accumulate(0, dx)?)
    }
}

fn the_text_form_takes_a_registry() -> Result<(), BoxError> {
    let mut ops = CustomOps::new();
    ops.register("test.scaled", ScaleOp::from_literals);
    ops.register("test.misnamed", ScaleOp::from_literals);
    let size = Dim::sym("n").checked_add(&Dim::Known(1)).expect("small");
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [Dim::sym("n")]))?;
    let [a, b] = [0.1, -0.0].map(|scale| ScaleOp {
        scale: FloatAttr(scale),
        size: size.clone(),
    });
    let (a, b) = (g.custom(a.clone(), &[x])?, g.custom(b, &[x])?);
    g.output("a", a)?;
    g.output("b", b)?;
    let text = g.to_string();
    assert!(
        text.contains(r#"custom{name="test.scaled", attrs=[scale(0.1), size(n+1)]}"#),
        "{text}"
    );
    let back = parse_with(&text, &ops)?;
    assert_eq!(back, g);
    assert_ne!(g.node(a.node).op, g.node(b.node).op);
    let told = parse(&text).expect_err("not shipped").to_string();
    assert!(
        told.contains("a registered operator: knn.pairwise, moe."),
        "{told}"
    );
    let told = |from: &str, to: &str| {
        let error = parse_with(&text.replacen(from, to, 1), &ops);
        error.expect_err("it is refused").to_string()
    };
    for (from, to, want) in [
        ("scale(0.1), ", "", "attribute `scale` is missing"),
        (
            "scale(0.1)",
            "scale(0.1), scale(2)",
            "expected a list such as [k(3)]",
        ),
        ("scale(0.1)", "scale(x)", "expected a number"),
        ("scale(0.1)", "scale", "expected a list such as"),
        (
            "test.scaled",
            "test.misnamed",
            "the name of the operator, \"test.scaled\"",
        ),
        (
            ", attrs=[scale(0.1), size(n+1)]",
            "",
            "attribute `attrs` is missing",
        ),
        ("attrs=", "other=", "unknown attribute `other`"),
    ] {
        let told = told(from, to);
        assert!(told.contains(want), "{from} as {to}: {told}");
    }
    // The operator that the registry creates is executable.
    let mut exe = Device::cpu().compile(&back, &CompileOptions::new().bound("n", 4))?;
    let x = Tensor::from_slice(&[2], &[10f32, 20.0])?;
    assert_eq!(exe.run(&[("x", &x)])?[0].as_slice::<f32>()?, [1.0, 2.0]);
    Ok(())
}

/// The names that `attrs!` uses must be reachable from outside the crate.
fn attributes_are_declared_from_outside() {
    let error = ScaleOp::from_literals(&[]).expect_err("an attribute is missing");
    assert_eq!(error, AttrError::Missing { name: "scale" });
}

/// The tests of this file.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::fallible(
            "custom/the_text_form_takes_a_registry",
            the_text_form_takes_a_registry,
        ),
        SuiteTest::asserting(
            "custom/attributes_are_declared_from_outside",
            attributes_are_declared_from_outside,
        ),
    ]
}
