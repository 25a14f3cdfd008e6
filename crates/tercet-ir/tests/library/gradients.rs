//! Gradients of small graphs, compared with known values.

use std::collections::BTreeMap;

use tercet_ir::fill::InputFill;
use tercet_ir::passes::optimize;
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{
    CompileOptions, DType, EvalCtx, Graph, Op, OpError, OpKind, Scheme, Tensor, TensorType, Type,
    Value, evaluate,
};

const X: [f64; 3] = [-0.7, 0.4, 1.9];

/// The gradients with respect to `x`, an F64 vector of 3 elements, of the built scalar.
fn gradients(build: impl FnOnce(&mut Graph, Value) -> Result<Value, OpError>) -> Vec<f64> {
    let mut g = Graph::new();
    let x = g
        .input("x", Type::new(DType::F64, [3]))
        .expect("a fresh name");
    let y = build(&mut g, x).expect("it is well typed");
    let axes: Vec<usize> = (0..g.ty(y).rank()).collect();
    let loss = g.reduce_sum(y, &axes, false).expect("it is a float");
    let dx = g.gradients(loss, &[x]).expect("it has gradients")[0];
    let x = Tensor::from_slice(&[3], &X).expect("three values");
    let leaves = BTreeMap::from([("x".to_string(), x)]);
    let done = evaluate(&g, &EvalCtx::default(), &leaves).expect("it runs");
    done.get(dx).to_f64s()
}

fn expect(got: &[f64], want: impl Fn(f64) -> f64) {
    for (got, x) in got.iter().zip(X) {
        let want = want(x);
        assert!(
            (got - want).abs() < 1e-12 * (1.0 + want.abs()),
            "{got} {want} at {x}"
        );
    }
}

#[test]
fn uses_add_up() {
    // Two paths that diverge and rejoin, plus `x` itself on a third.
    let dx = gradients(|g, x| {
        let square = g.mul(x, x)?;
        let cube = g.mul(square, x)?;
        let sum = g.plus(square, cube)?;
        g.plus(sum, x)
    });
    expect(&dx, |x| 2.0 * x + 3.0 * x * x + 1.0);
    let dx = gradients(|g, x| g.sub(x, x));
    expect(&dx, |_| 0.0);
    // The same value as three operands of one node.
    let dx = gradients(|g, x| g.fma(x, x, x));
    expect(&dx, |x| 2.0 * x + 1.0);
}

#[test]
fn factors_on_the_way_count() {
    let dx = gradients(|g, x| {
        let y = g.exp(x)?;
        let factor = g.scalar(DType::F64, -2.5)?;
        g.mul(y, factor)
    });
    expect(&dx, |x| -2.5 * x.exp());
}

#[test]
fn values_inside_have_gradients() {
    let mut g = Graph::new();
    let x = g
        .input("x", Type::new(DType::F64, tercet_ir::Shape::default()))
        .expect("a fresh name");
    let y = g.sin(x).expect("a float");
    let loss = g.mul(y, y).expect("floats");
    let all = g
        .gradients(loss, &[y, x, loss])
        .expect("all are on the way");
    let leaves = BTreeMap::from([("x".to_string(), Tensor::scalar(0.3f64))]);
    let done = evaluate(&g, &EvalCtx::default(), &leaves).expect("it runs");
    let got: Vec<f64> = all.iter().map(|v| done.get(*v).to_f64s()[0]).collect();
    let (sin, cos) = 0.3f64.sin_cos();
    let want = [2.0 * sin, 2.0 * sin * cos, 1.0];
    assert!(
        got.iter().zip(want).all(|(a, b)| (a - b).abs() < 1e-14),
        "{got:?} {want:?}"
    );
}

#[test]
fn a_third_derivative() {
    let mut g = Graph::new();
    let x = g
        .input("x", Type::new(DType::F64, tercet_ir::Shape::default()))
        .expect("a fresh name");
    let square = g.mul(x, x).expect("floats");
    let mut y = g.mul(square, square).expect("floats");
    for _ in 0..3 {
        y = g.gradients(y, &[x]).expect("a polynomial")[0];
    }
    let leaves = BTreeMap::from([("x".to_string(), Tensor::scalar(0.5f64))]);
    let done = evaluate(&g, &EvalCtx::default(), &leaves).expect("it runs");
    assert_eq!(done.get(y).to_f64s(), [12.0]);
}

#[test]
fn symbolic_sizes_are_summed_over() {
    let mut g = Graph::new();
    let rows = tercet_ir::Dim::sym("s");
    let x = g
        .input("x", Type::new(DType::F64, [rows, 3.into()]))
        .expect("a fresh name");
    let bias = g
        .param("bias", Type::new(DType::F64, [3]))
        .expect("a fresh name");
    let y = g.plus(x, bias).expect("they broadcast");
    let loss = g.reduce_mean(y, &[0, 1], false).expect("floats");
    let db = g.gradients(loss, &[bias]).expect("it is used")[0];
    let x = InputFill::Normal.tensor("x", TensorType::new(DType::F64, &[4, 3]));
    let bias = InputFill::Normal.tensor("bias", TensorType::new(DType::F64, &[3]));
    let leaves = BTreeMap::from([("x".to_string(), x), ("bias".to_string(), bias)]);
    let done = evaluate(&g, &EvalCtx::default(), &leaves).expect("it runs");
    for got in done.get(db).to_f64s() {
        assert!((got - 1.0 / 3.0).abs() < 1e-15, "{got}");
    }
}

/// Difference steps are smaller than the spacing of F16 and BF16 numbers, so the oracle cannot test
/// these dtypes.
#[test]
fn weights_stored_as_narrow_floats_have_gradients() {
    for (scheme, dtype) in [(Scheme::F16, DType::F16), (Scheme::BF16, DType::BF16)] {
        let mut g = Graph::new();
        let x = g
            .input("x", Type::new(DType::F32, [2, 3]))
            .expect("a fresh name");
        let w = g
            .param("w", Type::new(dtype, [4, 3]))
            .expect("a fresh name");
        let y = g.dequant_matmul(x, w, scheme).expect("they fit");
        let dy = g
            .input("dy", Type::new(DType::F32, [2, 4]))
            .expect("a fresh name");
        let dw = g.vjp(&[(y, dy)], &[w]).expect("weights are floats")[0];
        let dw = dw.expect("it is used");
        assert_eq!(g.ty(dw), g.ty(w));
        let of = |name: &str, dtype, shape: &[usize]| {
            (
                name.to_string(),
                InputFill::Normal.tensor(name, TensorType::new(dtype, shape)),
            )
        };
        let leaves = BTreeMap::from([
            of("x", DType::F32, &[2, 3]),
            of("w", dtype, &[4, 3]),
            of("dy", DType::F32, &[2, 4]),
        ]);
        let done = evaluate(&g, &EvalCtx::default(), &leaves).expect("it runs");
        let (x, dy) = (leaves["x"].to_f64s(), leaves["dy"].to_f64s());
        for (at, got) in done.get(dw).to_f64s().iter().enumerate() {
            let (n, k) = (at / 3, at % 3);
            let want: f64 = (0..2).map(|m| dy[m * 4 + n] * x[m * 3 + k]).sum();
            assert!(
                (got - want).abs() <= 0.01 * want.abs() + 1e-3,
                "{got} {want}"
            );
        }
    }
}

#[test]
fn what_is_stopped_is_a_constant() {
    let dx = gradients(|g, x| {
        let y = g.exp(x)?;
        let constant = g.stop_gradient(y)?;
        let product = g.mul(constant, x)?;
        g.plus(product, x)
    });
    expect(&dx, |x| x.exp() + 1.0);
}

/// Three layers, each followed by a checkpoint; the loss, and the gradients of `x` and `w`.
fn layers(with_checkpoints: bool) -> (Graph, [Value; 2]) {
    let mut g = Graph::new();
    let ty = Type::new(DType::F64, [3]);
    let x = g.input("x", ty.clone()).expect("a fresh name");
    let w = g.param("w", ty).expect("a fresh name");
    let mut h = x;
    for _ in 0..3 {
        let scaled = g.mul(h, w).expect("floats");
        let bent = g.sin(scaled).expect("a float");
        h = g.tanh(bent).expect("a float");
        if with_checkpoints {
            h = g.checkpoint(h).expect("any type");
        }
    }
    let loss = g.reduce_sum(h, &[0], false).expect("floats");
    let [dx, dw] = g.gradients(loss, &[x, w]).expect("it has gradients")[..] else {
        panic!("there are two");
    };
    g.output("loss", loss).expect("a fresh name");
    g.output("dx", dx).expect("a fresh name");
    g.output("dw", dw).expect("a fresh name");
    (g, [dx, dw])
}

#[test]
fn checkpoints_are_computed_from_again() {
    let leaf = |name: &str| InputFill::Normal.tensor(name, TensorType::new(DType::F64, &[3]));
    let leaves = BTreeMap::from(["x", "w"].map(|name| (name.to_string(), leaf(name))));
    let [plain, kept] = [false, true].map(|with| {
        let (g, values) = layers(with);
        let done = evaluate(&g, &EvalCtx::default(), &leaves).expect("it runs");
        values.map(|v| done.get(v).to_f64s())
    });
    assert_eq!(plain, kept);
    // Passes preserve the recomputed nodes and remove the checkpoints.
    let sines = |with| {
        let (g, _) = layers(with);
        let g = optimize(&g, &CompileOptions::new().without_pass("fuse_elementwise"));
        let g = g.expect("passes keep graphs valid");
        let is = |f: UnaryFn| {
            let is = move |op: &Op| matches!(op, Op::Unary(o) if o.f == f);
            g.nodes().filter(|(_, n)| is(&n.op)).count()
        };
        let marks = g.nodes().filter(|(_, n)| n.op.kind() == OpKind::Checkpoint);
        assert_eq!(marks.count(), 0);
        is(UnaryFn::Sin)
    };
    // The first layer does not depend on a checkpoint.
    assert_eq!((sines(false), sines(true)), (3, 5));
    // Second derivatives through checkpoints.
    let (mut g, [dx, _]) = layers(true);
    let x = Value {
        node: g.leaf("x").expect("it is there"),
        port: 0,
    };
    let sum = g.reduce_sum(dx, &[0], false).expect("floats");
    assert!(g.gradients(sum, &[x]).is_ok());
}
