//! Tests of sizes in place of symbols, and of quotients in shapes.

use std::collections::BTreeMap;

use tercet_ir::ops::{FftNorm, PoolFn, ResizeMode, ScatterReduce, Window};
use tercet_ir::{
    Bindings, DType, Dim, EvalCtx, Graph, OpError, SizesError, Tensor, Type, evaluate, one_line,
    parse,
};

/// A graph whose attributes hold symbols: shapes, dimensions, and those of nested graphs.
const TEXT: &str = "graph {
  %x = input{name=\"x\", ty=f32[b, s, 4]}()
  %flag = input{name=\"flag\", ty=bool[]}()
  %flat = reshape{shape=[b*s, 4]}(%x)
  %zero = const{tensor=dense(f32[], [0.5])}()
  %more = expand{shape=[b*s, 4]}(%zero)
  %sum = binary{f=add}(%flat, %more)
  %half = slice{starts=[0, 0], ends=[9223372036854775807, 4], steps=[2, 1]}(%sum)
  %taken = if{then=graph {
    %y = input{name=\"y\", ty=f32[b*s, 4]}()
    %x = input{name=\"x\", ty=f32[b, s, 4]}()
    %z = unary{f=neg}(%y)
    return %z as \"z\"
  }, else=graph {
    %y = input{name=\"y\", ty=f32[b*s, 4]}()
    %x = input{name=\"x\", ty=f32[b, s, 4]}()
    %z = reshape{shape=[b*s, 4]}(%x)
    return %z as \"z\"
  }}(%flag, %sum, %x)
  return %half as \"half\", %taken as \"taken\"
}";

fn inputs(flag: bool) -> BTreeMap<String, Tensor> {
    let x: Vec<f32> = (0..60).map(|i| i as f32).collect();
    BTreeMap::from([
        (
            "x".to_string(),
            Tensor::from_slice(&[3, 5, 4], &x).expect("60 values"),
        ),
        (
            "flag".to_string(),
            Tensor::from_bools(&[], &[flag]).expect("one value"),
        ),
    ])
}

#[test]
fn fixed_graphs_give_the_results_of_symbolic_ones() {
    let graph = parse(TEXT).unwrap_or_else(|e| panic!("{}", one_line(&e)));
    let sizes = Bindings::new().with("b", 3).with("s", 5);
    let all = graph.with_sizes(&sizes).expect("the sizes are valid");
    assert!(all.symbols().is_empty());
    let one = graph
        .with_sizes(&Bindings::new().with("s", 5))
        .expect("the size is valid");
    let half = one.outputs()[0].value;
    assert_eq!(one.ty(half).to_string(), "f32[2*b+((b+1)/2), 4]");
    for flag in [false, true] {
        let of = |g: &Graph| {
            let done = evaluate(g, &EvalCtx::default(), &inputs(flag)).expect("valid inputs");
            let outputs = g.outputs().iter().map(|o| done.get(o.value).clone());
            outputs.collect::<Vec<_>>()
        };
        assert_eq!(of(&all), of(&graph));
        assert_eq!(of(&one), of(&graph));
        assert_eq!(of(&all)[0].shape(), [8, 4]);
    }
    // The text of a graph with quotients parses to the same graph.
    assert_eq!(parse(&one.to_string()).as_ref(), Ok(&one));
}

#[test]
fn invalid_sizes_name_the_symbol_or_the_node() -> Result<(), OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [Dim::sym("s")]))?;
    let y = g.slice(x, &[3], &[i64::MAX], &[1])?;
    let shape = Dim::sym("s")
        .checked_sub(&Dim::Known(3))
        .expect("a difference");
    let z = g.reshape(y, [shape])?;
    g.output("z", z)?;
    let unknown = g
        .with_sizes(&Bindings::new().with("t", 4))
        .expect_err("t does not occur");
    assert_eq!(
        one_line(&unknown),
        "the graph has no symbol `t`; its symbols: s"
    );
    let negative = g
        .with_sizes(&Bindings::new().with("s", 2))
        .expect_err("a negative size");
    let SizesError::Node { node, .. } = &negative else {
        panic!("{negative:?}");
    };
    assert_eq!(*node, z.node);
    assert!(
        one_line(&negative).contains("is negative (-1)"),
        "{}",
        one_line(&negative)
    );
    assert!(g.with_sizes(&Bindings::new().with("s", 3)).is_ok());
    Ok(())
}

/// Each operator that takes symbols infers the sizes that it infers for numbers.
#[test]
fn symbols_infer_the_sizes_of_numbers() -> Result<(), OpError> {
    let mut g = Graph::new();
    let (s, three) = (Dim::sym("s"), Dim::Known(3));
    let shape = [Dim::Known(1), three.clone(), s.clone(), s.clone()];
    let x = g.input("x", Type::new(DType::F32, shape.clone()))?;
    let w = g.input("w", Type::new(DType::F32, [4, 3, 3, 3]))?;
    let halving = Window::new(2)
        .with_stride(&[2, 2])
        .with_pads(&[1, 1], &[1, 1]);
    let y = g.conv(x, w, None, halving.clone(), 1)?;
    let y = g.pool(y, PoolFn::Prod, &[3, 3], halving.with_stride(&[2, 3]))?;
    g.output("windows", y)?;
    let half = s.div_floor(2).expect("2 is not 0");
    let y = g.resize(
        x,
        [1usize.into(), three, half, s.clone()],
        ResizeMode::Linear,
    )?;
    g.output("resized", y)?;
    let y = g.rfft(x, FftNorm::Ortho)?;
    g.output("spectrum", y)?;
    let y = g.scatter_elements(x, x, x, 0, ScatterReduce::Add);
    assert!(y.is_err(), "float indices");
    for n in [4usize, 7, 12, 33] {
        let fixed = g
            .with_sizes(&Bindings::new().with("s", n))
            .expect("the size is valid");
        for output in g.outputs() {
            let ty = g.ty(output.value).eval(&Bindings::new().with("s", n));
            let ty = ty.expect("the size is valid");
            assert_eq!(
                fixed.ty(output.value),
                &Type::from(&ty),
                "{} at {n}",
                output.name
            );
        }
    }
    Ok(())
}
