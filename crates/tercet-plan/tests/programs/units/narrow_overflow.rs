//! Tests which results the overflow checks mark as outside the I32 range.

use std::collections::BTreeMap;

use tercet_ir::ops::{IndexMap, Map, MapArg, MapStep};
use tercet_ir::scalar::{BinaryFn, ScalarOp, UnaryFn};
use tercet_ir::{
    CompileError, DType, EvalCtx, EvalError, Graph, OpError, RunError, Tensor, Type, Value,
    evaluate,
};
use tercet_plan::internals::scalar::is_overflow_check;
use tercet_plan::narrow_i64;

const NUMBERS: [i64; 17] = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    31,
    -33,
    40,
    46_340,
    46_341,
    65_536,
    -65_537,
    1_000_000_000,
    2_147_483_647,
    -2_147_483_647,
    -2_147_483_648,
];

type BuildFn<'a> = &'a dyn Fn(&mut Graph, &[Value]) -> Result<Value, OpError>;

/// Checks that a run of the narrowed graph is right if the I64 results fit into I32, and fails
/// otherwise.
fn check(name: &str, operands: &[Tensor], build: BuildFn<'_>) {
    let mut g = Graph::new();
    let mut leaves = [BTreeMap::new(), BTreeMap::new()];
    let mut x = Vec::new();
    for (i, operand) in operands.iter().enumerate() {
        let name = format!("x{i}");
        let ty = Type::new(operand.dtype(), operand.shape());
        x.push(g.input(&name, ty).unwrap());
        let narrow = match operand.dtype() {
            DType::I64 => {
                let values = operand.to_i64s().into_iter().map(|v| v as i32);
                Tensor::from_slice(operand.shape(), &values.collect::<Vec<_>>()).unwrap()
            }
            _ => operand.clone(),
        };
        leaves[0].insert(name.clone(), operand.clone());
        leaves[1].insert(name, narrow);
    }
    let y = build(&mut g, &x).unwrap();
    g.output("y", y).unwrap();
    let narrowed = narrow_i64(&g).unwrap();
    let ctx = EvalCtx::default();
    let want = evaluate(&g, &ctx, &leaves[0]).unwrap().get(y).to_i64s();
    let got = evaluate(&narrowed, &ctx, &leaves[1]);
    let context = || format!("{name} of {operands:?}");
    match want.iter().all(|v| i32::try_from(*v).is_ok()) {
        true => {
            let got = got.unwrap_or_else(|e| panic!("{}: {e:?}", context()));
            let y = narrowed.outputs()[0].value;
            assert_eq!(got.get(y).to_i64s(), want, "{}", context());
        }
        false => {
            let source = match got.map(|_| ()) {
                Err(RunError::Node { source, .. }) => Some(source),
                _ => None,
            };
            let is_marked = matches!(source, Some(EvalError::Index { index: 1, len: 1 }));
            assert!(is_marked, "{} is {want:?} without an error", context());
        }
    }
}

#[test]
fn elementwise_results_beyond_i32_are_marked() {
    use BinaryFn::{Add, And, Div, Max, Min, Mul, Or, Pow, Rem, Shl, Shr, Sub, Xor};
    for a in NUMBERS {
        let x = Tensor::from_slice(&[1], &[a]).unwrap();
        for f in [
            UnaryFn::Neg,
            UnaryFn::Abs,
            UnaryFn::Sign,
            UnaryFn::Relu,
            UnaryFn::Not,
        ] {
            check(f.name(), std::slice::from_ref(&x), &|g, x| g.unary(f, x[0]));
        }
        for b in NUMBERS {
            let all = [x.clone(), Tensor::from_slice(&[1], &[b]).unwrap()];
            for f in [Add, Sub, Mul, Div, Rem, Pow, Max, Min, And, Or, Xor, Shl] {
                // Results that wrap in I64 may fit into I32 again. The checks mark such results as
                // overflow too, so the test skips them.
                let wraps = match f {
                    Pow => u32::try_from(b).is_ok_and(|b| a.checked_pow(b).is_none()),
                    Shl => a != 0 && b & 63 >= 32,
                    _ => false,
                };
                if !wraps {
                    check(f.name(), &all, &|g, x| g.binary(f, x[0], x[1]));
                }
            }
            // Results of right shifts by 32 or more fit into I32, but an I32 shift takes its count
            // modulo 32. The checks mark such results as overflow too, so the test skips them.
            if (0..32).contains(&(b & 63)) {
                check("shr", &all, &|g, x| g.binary(Shr, x[0], x[1]));
            }
        }
    }
}

#[test]
fn integers_that_derive_from_floats_are_not_marked() {
    let graph = |from: DType| {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(from, [4])).unwrap();
        let x = g.cast(x, DType::I64).unwrap();
        let y = g.binary(BinaryFn::Mul, x, x).unwrap();
        g.output("y", y).unwrap();
        narrow_i64(&g).unwrap()
    };
    let marks = |g: &Graph| g.nodes().any(|(_, node)| is_overflow_check(g, node));
    assert!(!marks(&graph(DType::F32)));
    assert!(marks(&graph(DType::I32)));
    // The same computation fused into one map: the logarithm of an integer, and a sum.
    let fused = |through: DType| {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::I64, [4])).unwrap();
        let (input, step) = (MapArg::Input(0), MapArg::Step);
        let body = vec![
            MapStep::new(ScalarOp::Cast(through), vec![input]),
            MapStep::new(ScalarOp::Cast(DType::I64), vec![step(0)]),
            MapStep::new(ScalarOp::Binary(BinaryFn::Add), vec![step(1), step(1)]),
        ];
        let shape = g.ty(x).shape.clone();
        let inputs = vec![IndexMap::broadcast(&shape, &shape)];
        let results = vec![2];
        let map = Map {
            shape,
            inputs,
            results,
            body,
        };
        let y = g.add(map, &[x]).unwrap();
        g.output("y", y).unwrap();
        narrow_i64(&g).unwrap()
    };
    assert!(!marks(&fused(DType::F32)));
    assert!(marks(&fused(DType::I32)));
}

#[test]
fn casts_beyond_i32_are_marked() {
    for x in [0, 5, 1 << 31, u32::MAX] {
        let x = Tensor::from_slice(&[1], &[x]).unwrap();
        check("cast", &[x], &|g, x| g.cast(x[0], DType::I64));
    }
}

#[test]
fn sums_and_products_beyond_i32_are_marked() {
    let rows: [&[i64]; 7] = [
        &[1, 2, 3, -4],
        &[2_147_483_647, 0, -2_147_483_648, 1],
        &[2_147_483_647, 1],
        &[-2_147_483_648, -1],
        &[2_000_000_000, 2_000_000_000, -2_000_000_000],
        &[65_536, 32_767],
        &[65_536, -65_537, 5],
    ];
    for row in rows {
        let x = Tensor::from_slice(&[row.len()], row).unwrap();
        // All partial sums of a scan are results, so an overflow of any of them is marked.
        check("cum_sum", std::slice::from_ref(&x), &|g, x| {
            g.cum_sum(x[0], 0)
        });
        check("sum", &[x], &|g, x| g.reduce_sum(x[0], &[0], false));
    }
    // The check of products is approximate: it also marks products just below 2^31.
    for row in [
        &[1, 2, 3, -4][..],
        &[65_536, 32_000],
        &[65_536, -65_537, 5],
        &[i64::from(i32::MIN), -1],
    ] {
        let x = Tensor::from_slice(&[row.len()], row).unwrap();
        check("prod", &[x], &|g, x| g.reduce_prod(x[0], &[0], false));
    }
    let long = vec![100_000i64; 40_000];
    let long = Tensor::from_slice(&[long.len()], &long).unwrap();
    check("sum", &[long], &|g, x| g.reduce_sum(x[0], &[0], false));
}

#[test]
fn small_results_are_not_checked_and_large_constants_are_refused() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::U8, [4])).unwrap();
    let wide = g.cast(x, DType::I64).unwrap();
    let square = g.mul(wide, wide).unwrap();
    let sum = g.reduce_sum(square, &[0], false).unwrap();
    g.output("sum", sum).unwrap();
    assert_eq!(narrow_i64(&g).unwrap().len(), g.len());

    let large = g.scalar(DType::I64, 1e10).unwrap();
    let y = g.plus(wide, large).unwrap();
    g.output("y", y).unwrap();
    let e = narrow_i64(&g).unwrap_err();
    assert!(
        matches!(
            e,
            CompileError::Narrow {
                value: 10_000_000_000,
                ..
            }
        ),
        "{e}"
    );
}
