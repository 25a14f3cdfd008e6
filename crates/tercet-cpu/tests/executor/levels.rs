//! Cases of every operator at every SIMD level of the machine, forced by a switch, beside the reference.

use tercet_cases::{CaseGraph, cases};
use tercet_cpu::kernels::SimdLevel;
use tercet_cpu::{CpuBackend, ReferenceBackend};
use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::{
    Backend, CompileOptions, DType, DeviceSwitches, Executable, Graph, OpKind, Signature, Tensor,
};

/// The most cases of an operator with one dtype, spread over all of them.
const CASES: usize = 6;

/// The dtypes that have separate kernels at each level.
const DTYPES: [DType; 6] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I32,
    DType::I16,
    DType::I8,
];

/// The least accurate class of the operators of a graph and its subgraphs.
fn class_of(graph: &Graph) -> Accuracy {
    let own = graph.nodes().flat_map(|(_, node)| {
        let blocks = node.op.subgraphs().into_iter();
        let blocks = blocks.map(|(_, block)| class_of(block.graph()));
        blocks.chain([node.op.kind().doc().accuracy])
    });
    own.max().unwrap_or(Accuracy::Exact)
}

/// Results of the first run: outputs, then states. `None` if the run fails, as some cases must.
fn results(backend: &dyn Backend, case: &CaseGraph) -> Option<Vec<Tensor>> {
    let options = CompileOptions {
        bounds: case.bounds.clone(),
        ..CompileOptions::new()
    };
    let mut program: Box<dyn Executable> = backend.compile(&case.graph, &options).unwrap();
    let ports = Signature::of(&case.graph);
    for port in &ports.params {
        let value = case.tensors[&port.name].clone();
        program.set_param(&port.name, value).unwrap();
    }
    for port in &ports.states {
        program
            .write_state(&port.name, &case.tensors[&port.name])
            .unwrap();
    }
    let inputs = ports.inputs.iter().map(|port| port.name.as_str());
    let inputs: Vec<(&str, &Tensor)> = inputs.map(|n| (n, &case.tensors[n])).collect();
    let mut all = program.run(&inputs).ok()?;
    all.extend(
        ports
            .states
            .iter()
            .map(|port| program.read_state(&port.name).unwrap()),
    );
    Some(all)
}

#[test]
fn every_level_agrees_with_the_reference() {
    let levels = SimdLevel::available().iter().map(|level| {
        let force = DeviceSwitches::parse("", &format!("simd={}", level.name())).unwrap();
        (level.name(), CpuBackend::new().switched(&force).unwrap())
    });
    let levels: Vec<(&str, CpuBackend)> = levels.collect();
    let mut compared = 0;
    for &kind in OpKind::ALL {
        for dtype in DTYPES {
            let takes = kind.doc().dtypes.contains(&dtype);
            let all: Vec<_> = cases(kind)
                .iter()
                .filter(|c| takes && c.runs_with(dtype))
                .collect();
            for case in all.iter().step_by(all.len().div_ceil(CASES).max(1)) {
                let name = format!("{}/{}/{dtype}", kind.doc().name, case.name);
                let case = case.build(dtype).unwrap();
                let want = results(&ReferenceBackend::new(), &case);
                for (level, backend) in &levels {
                    let got = results(backend, &case);
                    assert_eq!(got.is_some(), want.is_some(), "{name} at {level}");
                    let pairs = got.iter().flatten().zip(want.iter().flatten());
                    for (got, want) in pairs {
                        let worst = furthest(class_of(&case.graph), got, want);
                        let units = worst.as_ref().map_or(0.0, |w| w.units);
                        assert!(units <= 1.0, "{name} at {level}: {}", worst.unwrap());
                        compared += 1;
                    }
                }
            }
        }
    }
    assert!(compared > 100 * levels.len(), "only {compared} results");
}
