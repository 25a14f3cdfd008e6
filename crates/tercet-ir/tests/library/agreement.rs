//! Tests that operators with equivalent forms give bitwise equal results.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tercet_ir::fill::InputFill;
use tercet_ir::ops::{CumSum, DotGeneral, ReduceFn, ScanFn};
use tercet_ir::{
    DType, EvalCtx, Graph, OpError, Scheme, Tensor, TensorType, Type, Value, evaluate,
};

/// A graph under construction with the data of its leaves.
#[derive(Default)]
struct Bench {
    graph: Graph,
    leaves: BTreeMap<String, Tensor>,
}

impl Bench {
    fn input(&mut self, name: &str, dtype: DType, shape: &[usize], fill: InputFill) -> Value {
        let data = fill.tensor(name, TensorType::new(dtype, shape));
        self.leaves.insert(name.to_string(), data);
        self.graph
            .input(name, Type::new(dtype, shape))
            .expect("names are fresh")
    }

    /// The tensors of the values that the closure builds.
    fn run<const N: usize>(
        mut self,
        build: impl FnOnce(&mut Graph) -> Result<[Value; N], OpError>,
    ) -> [Tensor; N] {
        let values = build(&mut self.graph).expect("the graph is well typed");
        let done = evaluate(&self.graph, &EvalCtx::default(), &self.leaves).expect("it runs");
        values.map(|v| done.get(v).clone())
    }
}

fn contract(lhs_axis: usize, rhs_axis: usize) -> DotGeneral {
    DotGeneral {
        lhs_contract: vec![lhs_axis],
        rhs_contract: vec![rhs_axis],
        lhs_batch: vec![],
        rhs_batch: vec![],
    }
}

fn bits(t: &Tensor) -> (&[usize], &[u8]) {
    (t.shape(), t.bytes())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_of_matrices(m in 0..6usize, k in 0..9usize, n in 0..6usize, d in 0..DType::NUMBERS.len()) {
        let dtype = DType::NUMBERS[d];
        let mut bench = Bench::default();
        let x = bench.input("x", dtype, &[m, k], InputFill::Normal);
        let w = bench.input("w", dtype, &[k, n], InputFill::Normal);
        let [product, linear, dot] = bench.run(|g| {
            Ok([g.matmul(x, w)?, g.linear(x, w, None, None)?, g.dot_general(x, w, contract(1, 0))?])
        });
        prop_assert_eq!(bits(&product), bits(&linear));
        prop_assert_eq!(bits(&product), bits(&dot));
    }

    #[test]
    fn products_with_packed_weights(m in 0..4usize, blocks in 0..3usize, n in 0..5usize, s in 0..Scheme::ALL.len()) {
        let scheme = Scheme::ALL[s];
        let k = blocks * scheme.block_len();
        let stored = scheme.stored_len(k).expect("whole blocks");
        let mut bench = Bench::default();
        let x = bench.input("x", DType::F32, &[m, k], InputFill::Normal);
        let w = bench.input("w", scheme.storage(), &[n, stored], InputFill::Blocks(scheme));
        let [packed, unpacked] = bench.run(|g| {
            let values = g.dequantize(w, scheme)?;
            Ok([g.dequant_matmul(x, w, scheme)?, g.dot_general(x, values, contract(1, 1))?])
        });
        prop_assert_eq!(bits(&packed), bits(&unpacked));
    }

    #[test]
    fn axes_reduced_at_once_or_one_by_one(a in 0..4usize, b in 0..4usize, c in 0..4usize, f in 0..ReduceFn::ALL.len()) {
        let f = ReduceFn::ALL[f];
        prop_assume!(f != ReduceFn::Mean);
        let mut bench = Bench::default();
        let x = bench.input("x", DType::I32, &[a, b, c], InputFill::Special);
        let [once, stepwise] = bench.run(|g| {
            let last = g.reduce(f, x, &[2], false)?;
            Ok([g.reduce(f, x, &[2, 0], false)?, g.reduce(f, last, &[0], false)?])
        });
        prop_assert_eq!(bits(&once), bits(&stepwise));
    }

    #[test]
    fn a_scan_ends_with_the_reduction(rows in 0..4usize, len in 1..20usize, f in 0..ScanFn::ALL.len()) {
        let f = ScanFn::ALL[f];
        let mut bench = Bench::default();
        let x = bench.input("x", DType::F32, &[rows, len], InputFill::Normal);
        let [scan, reduced] = bench.run(|g| {
            let scan = CumSum { axis: 1, f, exclusive: false, reverse: false };
            Ok([g.scan(x, scan)?, g.reduce(f.reduction(), x, &[1], false)?])
        });
        let scan = scan.to_f64s();
        let last: Vec<f64> = scan.chunks(len).map(|line| line[len - 1]).collect();
        prop_assert_eq!(last, reduced.to_f64s());
    }
}
