//! Values inside optimized programs: those that normal runs write to memory, and the fused step that
//! first leaves the reference.

use tercet::{
    Backend, CompileError, CompileOptions, DType, Device, Executable, Explanation, Graph, NodeId,
    RetainValues, Scheme, Tensor, devices, node_values, optimized_values, parse, verify,
    verify_optimized,
};

/// Two chains of elementwise functions around a matmul and a softmax.
const GRAPH: &str = "graph {
  %x = input{name=\"x\", ty=f32[8, 8]}()
  %a = unary{f=exp}(%x)
  %b = unary{f=tanh}(%a)
  %c = mat_mul(%b, %x)
  %d = softmax{axis=1}(%c)
  %e = unary{f=sqrt}(%d)
  %f = unary{f=sin}(%e)
  return %f as \"f\"
}
";

/// The node of `sqrt`, which [`WrongBackend`] computes wrong if it is fused.
const WRONG: NodeId = NodeId(5);

fn graph() -> Graph {
    parse(GRAPH).unwrap()
}

fn input() -> Tensor {
    let values: Vec<f32> = (0..64).map(|i| (i % 11) as f32 / 8.0 - 0.5).collect();
    Tensor::from_slice(&[8, 8], &values).unwrap()
}

/// The CPU executor with a wrong `sqrt` in programs with passes.
struct WrongBackend(Device);

impl Backend for WrongBackend {
    fn name(&self) -> &'static str {
        "wrong"
    }

    fn fast_matmul_dtypes(&self) -> Vec<DType> {
        self.0.backend().fast_matmul_dtypes()
    }

    fn max_small_m_rows(&self, scheme: Scheme) -> Option<usize> {
        self.0.backend().max_small_m_rows(scheme)
    }

    fn compile(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, CompileError> {
        let changed = graph.to_string().replace("f=sqrt", "f=exp");
        match options.retain == RetainValues::Outputs {
            true => self.0.compile(&parse(&changed).unwrap(), options),
            false => self.0.compile(graph, options),
        }
    }

    fn explain(
        &self,
        graph: &Graph,
        options: &CompileOptions,
    ) -> Result<Explanation, CompileError> {
        self.0.explain(graph, options)
    }
}

#[test]
fn the_first_wrong_fused_step_is_named() {
    let (graph, x) = (graph(), input());
    let device = Device::from_backend(WrongBackend(Device::cpu()));
    let plain = verify(&graph, &[("x", &x)], &device).unwrap();
    assert_eq!(plain.first_divergence(), None, "{plain}");
    let optimized = verify_optimized(&graph, &[("x", &x)], &device).unwrap();
    let first = optimized.first_divergence().unwrap();
    assert!(
        first.fused.iter().any(|(id, _)| *id == WRONG),
        "{optimized}"
    );
    assert!(first.fused.len() > 1, "{optimized}");
    let earlier = optimized.nodes.iter().take_while(|n| *n != first);
    assert!(earlier.count() >= 1, "{optimized}");
    let text = optimized.to_string();
    assert!(text.contains(", fused from %5 (unary)"), "{text}");
}

#[test]
fn values_of_optimized_programs_agree_and_are_fewer() {
    let (graph, x) = (graph(), input());
    for name in devices().into_iter().filter(|d| d.usable).map(|d| d.name) {
        let device = Device::by_name(&name).unwrap();
        let all = node_values(&graph, &[("x", &x)], &device).unwrap().count();
        let values = optimized_values(&graph, &[("x", &x)], &device).unwrap();
        let values: Vec<_> = values.collect::<Result<_, _>>().unwrap();
        let mut exe = device.compile(&graph, &CompileOptions::new()).unwrap();
        let result = &exe.run(&[("x", &x)]).unwrap()[0];
        // The last value is the output of a normal run, bit for bit.
        assert_eq!(values.last().unwrap().1.bytes(), result.bytes(), "{name}");
        if name != "reference" {
            assert!(
                values.len() > 1 && values.len() < all,
                "{name}: {}",
                values.len()
            );
        }
        let verified = verify_optimized(&graph, &[("x", &x)], &device).unwrap();
        assert_eq!(verified.first_divergence(), None, "{name}: {verified}");
    }
}
