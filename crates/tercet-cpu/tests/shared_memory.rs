//! Several compiled forms of one model hold its weights and its arena once.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a failed step of a test ends it; helpers are not test functions to clippy"
)]

use tercet_cpu::CpuBackend;
use tercet_ir::{Backend, CompileOptions, DType, Executable, Graph, Tensor, Type};

const WIDE: usize = 1024;
const LAYERS: usize = 6;

/// The weights of all layers, which the graphs share as those of a mapped file.
fn weights() -> Vec<Tensor> {
    let layer = |layer: usize| {
        let weight = |i: usize| ((i * 37 + layer * 11) % 101) as f32 * 1e-3 - 0.05;
        let values: Vec<f32> = (0..WIDE * WIDE).map(weight).collect();
        Tensor::from_slice(&[WIDE, WIDE], &values).unwrap()
    };
    (0..LAYERS).map(layer).collect()
}

/// A model for `rows` rows.
fn model(weights: &[Tensor], rows: usize) -> Graph {
    let mut g = Graph::new();
    let mut x = g.input("x", Type::new(DType::F32, [rows, WIDE])).unwrap();
    for w in weights {
        let w = g.constant(w.clone()).unwrap();
        let y = g.matmul(x, w).unwrap();
        x = g.relu(y).unwrap();
    }
    g.output("y", x).unwrap();
    g
}

/// Resident bytes of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096
}

fn form(weights: &[Tensor], rows: usize) -> Box<dyn Executable> {
    let graph = model(weights, rows);
    let mut exe = CpuBackend::new()
        .compile(&graph, &CompileOptions::new())
        .unwrap();
    let x = Tensor::from_slice(&[rows, WIDE], &vec![0.5f32; rows * WIDE]).unwrap();
    exe.run(&[("x", &x)]).unwrap();
    exe
}

#[test]
fn sixteen_forms_of_a_model_take_little_more_memory_than_one() {
    // The library's own memory and that of the threads.
    let file = weights();
    drop(form(&file, 3));
    let before = resident();
    let first = form(&file, 16);
    let one = resident().saturating_sub(before);
    let weights = LAYERS * WIDE * WIDE * size_of::<f32>();
    assert!(one >= weights, "{one} bytes for weights of {weights}");
    let forms: Vec<_> = (17..32).map(|rows| form(&file, rows)).collect();
    let all = resident().saturating_sub(before);
    assert!(
        2 * all <= 3 * one,
        "{} forms take {all} bytes, one {one}",
        forms.len() + 1
    );
    drop((first, forms));
    let left = resident().saturating_sub(before);
    assert!(left < weights / 2, "{left} bytes stay after the last form");
}
