//! The reference executor: states, and refusals of graphs and runs.

use tercet_cpu::ReferenceBackend;
use tercet_ir::{Backend, CompileError, CompileOptions, DType, Graph, RunError, Tensor, Type};

fn accumulator() -> Graph {
    let mut g = Graph::new();
    let ty = Type::new(DType::F32, [2]);
    let s = g.state("s", ty.clone()).unwrap();
    let x = g.input("x", ty).unwrap();
    g.assign(s, x).unwrap();
    g.output("old", s).unwrap();
    g
}

#[test]
fn states_live_between_runs() {
    let mut exe = ReferenceBackend::new()
        .compile(&accumulator(), &CompileOptions::new())
        .unwrap();
    let x = Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap();
    assert_eq!(exe.run(&[("x", &x)]).unwrap()[0].to_f64s(), [0.0, 0.0]);
    assert_eq!(exe.run(&[("x", &x)]).unwrap()[0], x);
    assert_eq!(exe.read_state("s").unwrap(), x);
    exe.reset();
    assert_eq!(exe.read_state("s").unwrap().to_f64s(), [0.0, 0.0]);
}

#[test]
fn a_failed_run_leaves_states() {
    let mut exe = ReferenceBackend::new()
        .compile(&accumulator(), &CompileOptions::new())
        .unwrap();
    let x = Tensor::from_slice(&[2], &[1f32, 2.0]).unwrap();
    exe.write_state("s", &x).unwrap();
    assert!(matches!(exe.run(&[]), Err(RunError::Missing { .. })));
    assert_eq!(exe.read_state("s").unwrap(), x);
}

#[test]
fn unbounded_symbols_are_refused() {
    let mut g = Graph::new();
    let x = g
        .input("x", Type::new(DType::F32, [tercet_ir::Dim::sym("s")]))
        .unwrap();
    g.output("y", x).unwrap();
    let refused = ReferenceBackend::new().compile(&g, &CompileOptions::new());
    assert!(matches!(refused, Err(CompileError::Unbounded { .. })));
    let empty = ReferenceBackend::new().compile(&Graph::new(), &CompileOptions::new());
    assert!(matches!(empty, Err(CompileError::NoOutputs)));
}
