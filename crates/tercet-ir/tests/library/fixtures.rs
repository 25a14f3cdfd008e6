//! Compares the reference with results of an independent program: `tests/data/sequence/make.py`.

use std::collections::BTreeMap;

use tercet_ir::{EvalCtx, Graph, Op, Tensor, evaluate, parse};

const FIXTURES: &str = include_str!("../../../../tests/data/sequence/fixtures.txt");

/// Splits the text at lines that begin with `mark`: the rest of each such line, and the lines after
/// it.
fn sections<'a>(text: &'a str, mark: &str) -> Vec<(&'a str, &'a str)> {
    let parts = text.split('\n').scan(0, |at, line| {
        let start = *at;
        *at += line.len() + 1;
        Some((start, line))
    });
    let heads: Vec<(usize, &str)> = parts.filter(|(_, line)| line.starts_with(mark)).collect();
    let ends = heads
        .iter()
        .skip(1)
        .map(|(start, _)| *start)
        .chain([text.len()]);
    let bodies = heads.iter().zip(ends);
    let bodies = bodies.map(|((start, line), end)| {
        let body = (start + line.len() + 1).min(end);
        (line[mark.len()..].trim(), &text[body..end])
    });
    bodies.collect()
}

fn numbers(text: &str) -> Vec<f64> {
    let words = text.lines().next().unwrap_or("").split_whitespace();
    words.map(|w| w.parse().expect("a number")).collect()
}

fn check(name: &str, fixture: &str) {
    let (text, _) = fixture.split_once("\n--").expect("inputs follow the graph");
    let graph: Graph = parse(text).unwrap_or_else(|e| panic!("{name}: {e}"));
    let inputs: BTreeMap<&str, &str> = sections(fixture, "-- ").into_iter().collect();
    let leaves = graph.nodes().filter_map(|(_, node)| match &node.op {
        Op::Input(input) => {
            let ty = node.outputs[0]
                .eval(&Default::default())
                .expect("known sizes");
            let values = numbers(inputs[input.name.as_str()]);
            let tensor = Tensor::from_f64s(ty, &values).expect("one number per element");
            Some((input.name.clone(), tensor))
        }
        _ => None,
    });
    let leaves: BTreeMap<String, Tensor> = leaves.collect();
    let done = evaluate(&graph, &EvalCtx::default(), &leaves).expect("it runs");
    let wanted = sections(fixture, "-> ");
    assert_eq!(wanted.len(), graph.outputs().len(), "{name}");
    for ((output, want), port) in wanted.into_iter().zip(graph.outputs()) {
        let (got, want) = (done.get(port.value).to_f64s(), numbers(want));
        assert_eq!(got.len(), want.len(), "{name} {output}");
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            // The result and the expected value are f64 sums of a few dozen terms near 1.
            let near = (got - want).abs() <= 1e-12 * want.abs().max(1.0);
            assert!(near, "{name} {output} {i}: {got} instead of {want}");
        }
    }
}

#[test]
fn the_reference_gives_what_another_program_gives() {
    let fixtures = sections(FIXTURES, "== ");
    assert!(fixtures.len() > 20);
    for (name, fixture) in fixtures {
        check(name, fixture);
    }
}
