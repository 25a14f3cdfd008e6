//! An idle executor uses no CPU time.
#![cfg(target_os = "linux")]

use std::time::Duration;

use tercet_cpu::CpuBackend;
use tercet_ir::fill::InputFill;
use tercet_ir::{Backend, CompileOptions, DType, Graph, TensorType, Type};

/// CPU time of all threads of this process, in ticks of 10 ms.
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("/proc exists on Linux");
    // The program name in parentheses may contain any characters.
    let (_, rest) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let number = |at: usize| fields[at].parse::<u64>().expect("a number");
    number(11) + number(12)
}

#[test]
fn an_idle_executor_burns_nothing() {
    let mut graph = Graph::new();
    let x = graph.input("x", Type::new(DType::F32, [512, 512])).unwrap();
    let y = graph.matmul(x, x).unwrap();
    graph.output("y", y).unwrap();
    let x = InputFill::Normal.tensor("x", TensorType::new(DType::F32, &[512, 512]));
    let own = CpuBackend::with_threads(4).unwrap();
    for backend in [CpuBackend::new(), own] {
        let mut exe = backend.compile(&graph, &CompileOptions::new()).unwrap();
        for _ in 0..5 {
            exe.run(&[("x", &x)]).unwrap();
        }
        let before = ticks();
        std::thread::sleep(Duration::from_millis(500));
        let after = ticks();
        assert!(after - before <= 2, "{} of 50 ticks used", after - before);
    }
}
