//! A timed backend reports the steps of the last run.

use tercet_cpu::CpuBackend;
use tercet_ir::{Backend, CompileOptions, DType, Graph, Tensor, Type};

#[test]
fn a_timed_run_reports_each_step_in_order() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [64, 64])).unwrap();
    let y = g.matmul(x, x).unwrap();
    let y = g.softmax(y, 1).unwrap();
    g.output("y", y).unwrap();
    let x = Tensor::from_slice(&[64, 64], &[0.1f32; 64 * 64]).unwrap();
    let backend = CpuBackend::new().timed(true);
    let mut exe = backend.compile(&g, &CompileOptions::new()).unwrap();
    assert!(exe.timings().is_empty(), "no run yet");
    for _ in 0..2 {
        exe.run(&[("x", &x)]).unwrap();
        let steps = exe.timings();
        let ops: Vec<&str> = steps.iter().map(|step| step.op).collect();
        assert_eq!(ops, ["mat_mul", "softmax"]);
        assert!(steps.iter().all(|step| step.ns > 0));
        assert!(steps[0].start_ns + steps[0].ns <= steps[1].start_ns);
    }
    let mut clone = exe.try_clone().unwrap();
    clone.run(&[("x", &x)]).unwrap();
    assert_eq!(clone.timings().len(), 2);
    let mut plain = CpuBackend::new()
        .compile(&g, &CompileOptions::new())
        .unwrap();
    plain.run(&[("x", &x)]).unwrap();
    assert!(plain.timings().is_empty());
}
