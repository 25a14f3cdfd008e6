//! Layers: dropout and batch normalization.

use std::collections::BTreeMap;

use tercet_ir::fill::InputFill;
use tercet_ir::{
    BatchNorm, CompileOptions, DType, Dim, EvalCtx, Graph, OpKind, Tensor, TensorType, Type, Value,
    evaluate, one_line,
};

const N: usize = 20_000;

fn f64s(g: &mut Graph, name: &str, shape: &[usize]) -> Value {
    let ty = TensorType::new(DType::F64, shape);
    g.input(name, Type::from(&ty)).expect("a fresh name")
}

/// The dropout of `x`, and the gradient of the sum of its elements weighted by index.
fn dropped(p: f64, seed: u64) -> [Vec<f64>; 2] {
    let mut g = Graph::new();
    let x = f64s(&mut g, "x", &[N]);
    let weights = f64s(&mut g, "weights", &[N]);
    let y = g.dropout(x, p, seed).expect("a float");
    let dx = g.vjp(&[(y, weights)], &[x]).expect("it has a gradient")[0];
    let dx = dx.expect("a way");
    let ones = Tensor::from_f64s(TensorType::new(DType::F64, &[N]), &[1.0; N])
        .expect("one value per element");
    let places: Vec<f64> = (0..N).map(|i| i as f64 + 1.0).collect();
    let places = Tensor::from_f64s(TensorType::new(DType::F64, &[N]), &places)
        .expect("one value per element");
    let leaves = BTreeMap::from([("x".to_string(), ones), ("weights".to_string(), places)]);
    let done = evaluate(&g, &EvalCtx::default(), &leaves).expect("it runs");
    [y, dx].map(|v| done.get(v).to_f64s())
}

#[test]
fn dropout_keeps_the_mean_and_gradients_are_its_mask() {
    for p in [0.1, 0.5, 0.9] {
        let [y, dx] = dropped(p, 3);
        let scale = 1.0 / (1.0 - p);
        let mean = y.iter().sum::<f64>() / N as f64;
        // The mean may deviate by at most five times its standard deviation.
        let most = 5.0 * (p * scale / N as f64).sqrt();
        assert!((mean - 1.0).abs() < most, "{p}: {mean}");
        for (i, (y, dx)) in y.iter().zip(&dx).enumerate() {
            assert!(*y == 0.0 || *y == scale, "{y}");
            assert_eq!(*dx, y * (i as f64 + 1.0), "{i}");
        }
    }
    assert_eq!(dropped(0.3, 3), dropped(0.3, 3));
    assert_ne!(dropped(0.3, 3)[0], dropped(0.3, 4)[0]);
}

#[test]
fn dropout_of_nothing_is_no_node() {
    let mut g = Graph::new();
    let x = f64s(&mut g, "x", &[4]);
    assert_eq!(g.dropout(x, 0.0, 1), Ok(x));
    assert_eq!(g.len(), 1);
}

/// Gradients draw the dropout mask again; otherwise its random numbers would be saved for the
/// backward pass.
#[test]
fn gradients_draw_again_what_was_dropped() {
    let mut g = Graph::new();
    let x = f64s(&mut g, "x", &[4]);
    let y = g.dropout(x, 0.5, 1).expect("a float");
    let y = g.exp(y).expect("a float");
    let loss = g.reduce_sum(y, &[0], false).expect("a float");
    let dx = g.gradients(loss, &[x]).expect("it has a gradient")[0];
    g.output("loss", loss).expect("a fresh name");
    g.output("dx", dx).expect("a fresh name");
    let g = tercet_ir::passes::optimize(&g, &CompileOptions::new()).expect("passes run");
    let drawn = g.nodes().filter(|(_, n)| n.op.kind() == OpKind::RngUniform);
    assert_eq!(drawn.count(), 2);
}

#[test]
fn dropout_refuses_what_is_no_probability() {
    for p in [-0.1, 1.0, 1.5, f64::NAN, f64::INFINITY] {
        let mut g = Graph::new();
        let x = f64s(&mut g, "x", &[4]);
        let e = g.dropout(x, p, 1).expect_err("no probability below 1");
        assert!(one_line(&e).contains("attribute `p`"), "{}", one_line(&e));
    }
    let mut g = Graph::new();
    let x = g
        .input("x", Type::new(DType::I32, [4]))
        .expect("a fresh name");
    let e = g.dropout(x, 0.5, 1).expect_err("integers");
    assert!(
        one_line(&e).contains("accepted: floats"),
        "{}",
        one_line(&e)
    );
}

/// A batch norm of `[rows, 3, 2]` with running statistics as states.
fn batch_norm(rows: Dim, options: BatchNorm) -> Result<Graph, tercet_ir::OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [rows, 3.into(), 2.into()]))?;
    let weights = [g.param("gamma", f32s(3))?, g.param("beta", f32s(3))?];
    let running = [g.state("mean", f32s(3))?, g.state("variance", f32s(3))?];
    let y = g.batch_norm(x, weights, running, options)?;
    g.output("y", y)?;
    Ok(g)
}

fn f32s(n: usize) -> Type {
    Type::new(DType::F32, [n])
}

#[test]
fn unknown_sizes_have_the_statistics_of_known_ones() {
    let mut wanted = None;
    for rows in [Dim::Known(4), Dim::sym("rows")] {
        let g = batch_norm(rows, BatchNorm::default()).expect("it builds");
        let mut leaves = BTreeMap::new();
        for (name, shape) in [("x", &[4, 3, 2][..]), ("gamma", &[3]), ("beta", &[3])] {
            let tensor = InputFill::Normal.tensor(name, TensorType::new(DType::F32, shape));
            leaves.insert(name.to_string(), tensor);
        }
        for name in ["mean", "variance"] {
            let zeros = Tensor::zeros(TensorType::new(DType::F32, &[3])).expect("small");
            leaves.insert(name.to_string(), zeros);
        }
        let done = evaluate(&g, &EvalCtx::default(), &leaves).expect("it runs");
        let values = g.assigns().iter().map(|a| a.value);
        let values = values.chain([g.outputs()[0].value]);
        let all: Vec<Vec<f64>> = values.map(|v| done.get(v).to_f64s()).collect();
        assert!(all[1].iter().all(|v| *v > 0.0), "{all:?}");
        match &wanted {
            None => wanted = Some(all),
            Some(wanted) => assert_eq!(&all, wanted),
        }
    }
}

#[test]
fn batch_norm_refuses_what_has_no_statistics() {
    let of = |momentum, eps| BatchNorm { eps, momentum };
    let refused = |rows: usize, options, message: &str| {
        let e = batch_norm(rows.into(), options).expect_err("it is refused");
        assert!(one_line(&e).contains(message), "{}", one_line(&e));
    };
    refused(4, of(1.5, 1e-5), "attribute `momentum`");
    refused(4, of(0.1, 0.0), "attribute `eps`");
    let mut g = Graph::new();
    let x = g.input("x", f32s(3)).expect("a fresh name");
    let e = g.batch_statistics_norm(x, x, x, 1e-5);
    assert!(one_line(&e.expect_err("one axis")).contains("rank 2 or more"));
    let x = g
        .input("one", Type::new(DType::F32, [1, 3]))
        .expect("fresh");
    let w = g.param("w", f32s(3)).expect("a fresh name");
    let e = g.batch_statistics_norm(x, w, w, 1e-5).expect_err("one row");
    assert!(one_line(&e).contains("fewer than two"), "{}", one_line(&e));
    let x = g
        .input("two", Type::new(DType::F32, [2, 3]))
        .expect("fresh");
    let state = g.state("wide", f32s(4)).expect("a fresh name");
    let e = g.batch_norm(x, [w, w], [state, state], BatchNorm::default());
    let e = one_line(&e.expect_err("four channels"));
    assert!(e.contains("running statistics"), "{e}");
}
