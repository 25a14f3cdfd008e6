//! Errors name the node of the original graph, independent of passes and rewrite rules. Both
//! executors return the same error.

use tercet_cpu::{CpuBackend, ReferenceBackend};
use tercet_ir::{
    Backend, CompileOptions, DType, EvalError, Graph, NodeId, OpError, RunError, Tensor, Type,
    Value, one_line, passes,
};

type Failure = Box<dyn std::error::Error>;

fn indices(values: &[i32]) -> Tensor {
    Tensor::from_slice(&[values.len()], values).expect("the length matches the shape")
}

fn table(g: &mut Graph) -> Result<Value, OpError> {
    let rows: Vec<f32> = (0..8u8).map(f32::from).collect();
    g.constant(Tensor::from_slice(&[4, 2], &rows).expect("eight"))
}

fn index(g: &mut Graph, name: &str) -> Result<Value, OpError> {
    g.input(name, Type::new(DType::I32, [2]))
}

/// Error of a run on both executors, the fast one with and without passes; all must be equal.
fn fault(graph: &Graph, inputs: &[(&str, &Tensor)]) -> Result<RunError, Failure> {
    let options = CompileOptions::new();
    let mut exe = ReferenceBackend::new().compile(graph, &options)?;
    let want = exe.run(inputs).expect_err("an index is out of range");
    let mut plain = options.clone();
    for pass in passes::PIPELINE {
        plain = plain.without_pass(pass.name);
    }
    for options in [&options, &plain] {
        let mut exe = CpuBackend::new().compile(graph, options)?;
        let got = exe.run(inputs).expect_err("an index is out of range");
        assert_eq!(
            got,
            want,
            "{}, expected {}",
            one_line(&got),
            one_line(&want)
        );
    }
    Ok(want)
}

fn node_of(e: &RunError) -> (NodeId, &'static str) {
    match e {
        RunError::Node { node, op, .. } => (*node, op),
        other => panic!("{other}"),
    }
}

#[test]
fn a_dead_node_of_the_same_kind_before_it() -> Result<(), Failure> {
    let mut g = Graph::new();
    let table = table(&mut g)?;
    let (a, b) = (index(&mut g, "a")?, index(&mut g, "b")?);
    // The first node has no reader and is removed, so the second becomes the first of its kind.
    g.gather(table, a, 0)?;
    let first = g.gather(table, b, 0)?;
    let second = g.gather(table, a, 0)?;
    g.output("y", first)?;
    g.output("z", second)?;
    let (good, bad) = (indices(&[0, 3]), indices(&[0, 9]));
    let e = fault(&g, &[("a", &good), ("b", &bad)])?;
    assert_eq!(node_of(&e), (first.node, "gather"));
    Ok(())
}

#[test]
fn the_second_of_equal_kinds_where_the_first_is_folded() -> Result<(), Failure> {
    let mut g = Graph::new();
    let table = table(&mut g)?;
    let at = g.constant(indices(&[1, 2]))?;
    let b = index(&mut g, "b")?;
    let folded = g.gather(table, at, 0)?;
    let kept = g.gather(table, b, 0)?;
    // A further node of the same kind, which only a rewrite rule generates.
    let hot = g.one_hot(b, 4, DType::F32)?;
    let sum = g.plus(folded, kept)?;
    g.output("y", sum)?;
    g.output("hot", hot)?;
    let e = fault(&g, &[("b", &indices(&[4, 0]))])?;
    assert_eq!(node_of(&e), (kept.node, "gather"));
    Ok(())
}

#[test]
fn equal_nodes_that_are_merged_name_the_first() -> Result<(), Failure> {
    let mut g = Graph::new();
    let table = table(&mut g)?;
    let (a, b) = (index(&mut g, "a")?, index(&mut g, "b")?);
    let other = g.gather(table, a, 0)?;
    let first = g.gather(table, b, 0)?;
    let again = g.gather(table, b, 0)?;
    let sum = g.plus(first, again)?;
    let sum = g.plus(sum, other)?;
    g.output("y", sum)?;
    let (good, bad) = (indices(&[0, 3]), indices(&[-5, 0]));
    let e = fault(&g, &[("a", &good), ("b", &bad)])?;
    assert_eq!(node_of(&e), (first.node, "gather"));
    Ok(())
}

/// A graph that gathers at twice the indices, after a node of the same kind without readers.
fn block() -> Result<(Graph, NodeId), OpError> {
    let mut inner = Graph::new();
    let at = inner.input("at", Type::new(DType::I32, [2]))?;
    let x = inner.input("x", Type::new(DType::F32, [4, 2]))?;
    inner.gather(x, at, 0)?;
    let twice = inner.plus(at, at)?;
    let y = inner.gather(x, twice, 0)?;
    inner.output("y", y)?;
    Ok((inner, y.node))
}

fn inner_of(e: &RunError) -> (&'static str, NodeId, &'static str) {
    match e {
        RunError::Node {
            source: EvalError::Within {
                graph, node, op, ..
            },
            ..
        } => (graph, *node, op),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_branch_that_takes_the_place_of_its_node() -> Result<(), Failure> {
    let mut g = Graph::new();
    let rows = table(&mut g)?;
    let b = index(&mut g, "b")?;
    g.gather(rows, b, 0)?;
    let predicate = g.constant(Tensor::from_bools(&[], &[false])?)?;
    let ((then, _), (otherwise, inner)) = (block()?, block()?);
    let y = g.if_else(predicate, &[b, rows], then, otherwise)?;
    g.output("y", y)?;
    let e = fault(&g, &[("b", &indices(&[1, 2]))])?;
    assert_eq!(node_of(&e), (y.node, "if"));
    assert_eq!(inner_of(&e), ("else", inner, "gather"));
    Ok(())
}

#[test]
fn a_node_of_a_graph_inside_a_node() -> Result<(), Failure> {
    let mut g = Graph::new();
    let rows = table(&mut g)?;
    let steps = g.input("steps", Type::new(DType::I32, [3, 2]))?;
    let calm = g.input("calm", Type::new(DType::I32, [3, 2]))?;
    let (body, inner) = block()?;
    // A loop whose results nothing reads, with the same operators as the loop that fails.
    g.scan_over(&[], &[calm], &[rows], block()?.0)?;
    let y = g.scan_over(&[], &[steps], &[rows], body)?;
    g.output("y", y)?;
    let steps = Tensor::from_slice(&[3, 2], &[0i32, 1, 1, 0, 1, 2])?;
    let calm = Tensor::from_slice(&[3, 2], &[0i32, 1, 1, 0, 1, 1])?;
    let e = fault(&g, &[("steps", &steps), ("calm", &calm)])?;
    assert_eq!(node_of(&e), (y.node, "scan"));
    assert_eq!(inner_of(&e), ("body", inner, "gather"));
    Ok(())
}

#[test]
fn what_was_rewritten_before_is_compiled_under_its_own_numbers() -> Result<(), Failure> {
    let mut g = Graph::new();
    let table = table(&mut g)?;
    let b = index(&mut g, "b")?;
    g.gather(table, b, 1)?;
    let y = g.gather(table, b, 0)?;
    g.output("y", y)?;
    // The dead node was removed, so the node numbers differ.
    let optimized = passes::optimize(&g, &CompileOptions::new())?;
    let origin = optimized
        .nodes()
        .find(|(_, n)| n.op.kind().doc().name == "gather");
    let (id, _) = origin.expect("passes preserve the node");
    assert_eq!(optimized.origin(id).node, y.node);
    assert_ne!(id, y.node);
    let e = fault(&optimized, &[("b", &indices(&[1, 4]))])?;
    assert_eq!(node_of(&e), (id, "gather"));
    Ok(())
}
