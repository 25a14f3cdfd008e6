//! Tests of emulated arithmetic against the arithmetic of the dtypes themselves.

use std::collections::BTreeMap;

use tercet_ir::{DType, EvalCtx, Graph, Tensor, TensorType, Value, evaluate};
use tercet_onnx::NodeErrorKind;
use tercet_onnx::internals::{
    Minifloat, MinifloatSpecials, Narrow, float, unsigned, wrap, wrapped,
};

const FLOATS: [Narrow; 5] = [
    Narrow::E4M3FN,
    Narrow::E4M3FNUZ,
    Narrow::E5M2,
    Narrow::E5M2FNUZ,
    Narrow::E2M1,
];

/// Builds the result of an operation on graph values.
type EmulationTestFn<'a> = &'a dyn Fn(&mut Graph, &[Value]) -> Result<Value, NodeErrorKind>;

/// Runs an operation on tensors.
fn run(
    tensors: &[Tensor],
    build: impl Fn(&mut Graph, &[Value]) -> Result<Value, NodeErrorKind>,
) -> Tensor {
    let mut g = Graph::new();
    let values: Vec<Value> = tensors
        .iter()
        .map(|t| g.constant(t.clone()).expect("a constant"))
        .collect();
    let y = build(&mut g, &values).expect("the graph is built");
    let done = evaluate(&g, &EvalCtx::after(0), &BTreeMap::new()).expect("it runs");
    done.get(y).clone()
}

/// The nonnegative finite values of a format, in the order of their bit patterns.
fn numbers(narrow: Narrow, format: Minifloat) -> Vec<f64> {
    let codes = 1u64 << (format.exponent_bits + format.mantissa_bits);
    let all = (0..codes).map(|c| narrow.value(c));
    all.filter(|v| v.is_finite()).collect()
}

/// The nearest value, ties to the even bit pattern; `beyond` is the value after the maximum.
fn nearest(list: &[f64], x: f64, beyond: f64) -> f64 {
    let size = x.abs();
    let last = list.len() - 1;
    let step = list[last] - list[last - 1];
    let mut all = list.to_vec();
    all.push(list[last] + step);
    let at = all.partition_point(|v| *v <= size);
    if at == all.len() {
        return beyond.copysign(x);
    }
    let (low, high) = (all[at - 1], all[at]);
    let upper = match (size - low).partial_cmp(&(high - size)) {
        Some(std::cmp::Ordering::Less) => at - 1,
        Some(std::cmp::Ordering::Greater) => at,
        _ => (at - 1) + (at - 1) % 2,
    };
    let size = if upper > last { beyond } else { all[upper] };
    size.copysign(x)
}

#[test]
fn every_half_rounds_to_the_nearest_number_of_each_format() {
    let halves: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let halves = Tensor::from_bytes(TensorType::new(DType::F16, &[1 << 16]), &halves);
    let halves = halves.expect("halves");
    for narrow in FLOATS {
        let format = narrow.float().expect("a float");
        let list = numbers(narrow, format);
        assert_eq!(list.last(), Some(&format.greatest), "{narrow:?}");
        for saturate in [true, false] {
            let found = run(std::slice::from_ref(&halves), |g, v| {
                let x = g.cast(v[0], DType::F32)?;
                float::round(g, format, x, saturate)
            });
            let beyond = match format.special {
                _ if saturate => format.greatest,
                MinifloatSpecials::Ieee => f64::INFINITY,
                MinifloatSpecials::OnesAreNan | MinifloatSpecials::MinusZeroIsNan => f64::NAN,
                MinifloatSpecials::None => format.greatest,
            };
            for (x, y) in halves.to_f64s().into_iter().zip(found.to_f64s()) {
                let expected = match (x.is_nan(), format.special) {
                    (true, MinifloatSpecials::None) => 0.0,
                    (true, _) => f64::NAN,
                    (false, _) => nearest(&list, x, beyond),
                };
                let same = y == expected || (y.is_nan() && expected.is_nan());
                assert!(
                    same,
                    "{narrow:?} {saturate}: {x} is {y}, expected {expected}"
                );
            }
        }
    }
}

#[test]
fn zeros_keep_their_sign_where_the_format_has_two() {
    let x = Tensor::from_slice(&[2], &[-0.0f32, -1e-9]).expect("a tensor");
    for narrow in FLOATS {
        let format = narrow.float().expect("a float");
        let y = run(std::slice::from_ref(&x), |g, v| {
            float::round(g, format, v[0], true)
        });
        let two = format.special != MinifloatSpecials::MinusZeroIsNan;
        for y in y.to_f64s() {
            assert_eq!((y, y.is_sign_negative()), (0.0, two), "{narrow:?}");
        }
    }
}

#[test]
fn integers_wrap_as_their_width_says() {
    let wide: Vec<i64> = (-70_000..70_000).step_by(7).collect();
    let short: Vec<i64> = (-128..128).collect();
    for (narrow, own) in [
        (Narrow::U16, (|x| i64::from(x as u16)) as fn(i64) -> i64),
        (Narrow::U4, |x| x & 15),
        (Narrow::I4, |x| (x << 60) >> 60),
        (Narrow::U2, |x| x & 3),
        (Narrow::I2, |x| (x << 62) >> 62),
    ] {
        let carrier = narrow.carrier();
        let values = if carrier == DType::I32 { &wide } else { &short };
        let values: Vec<i64> = values.iter().map(|x| carrier.wrap_i64(*x)).collect();
        let ty = TensorType::new(carrier, &[values.len()]);
        let x = Tensor::from_i64s(ty, &values).expect("integers");
        let expected: Vec<i64> = values.iter().map(|x| own(*x)).collect();
        let y = run(std::slice::from_ref(&x), |g, v| wrap(g, narrow, v[0]));
        assert_eq!(y.to_i64s(), expected, "{narrow:?}");
        let known = wrapped(narrow, &x).expect("it wraps");
        assert_eq!(known.to_i64s(), expected, "{narrow:?}, known");
    }
}

/// All pairs of U64 values near the ends and the middle of the range.
fn pairs() -> Vec<(u64, u64)> {
    let (half, most) = (1u64 << 63, u64::MAX);
    let list = [
        1,
        2,
        3,
        7,
        63,
        64,
        1 << 32,
        (1 << 53) + 1,
        half - 1,
        half,
        half + 1,
        half + 1025,
        most - 1,
        most,
        0,
    ];
    let pair = |a: u64| list.iter().map(move |b| (a, *b));
    list.iter().flat_map(|a| pair(*a)).collect()
}

fn held(values: impl Iterator<Item = u64>) -> Tensor {
    let values: Vec<i64> = values.map(|x| x as i64).collect();
    Tensor::from_slice(&[values.len()], &values).expect("integers")
}

#[test]
fn unsigned_arithmetic_is_that_of_u64() {
    let all: Vec<(u64, u64)> = pairs().into_iter().filter(|(_, b)| *b != 0).collect();
    let tensors = [held(all.iter().map(|p| p.0)), held(all.iter().map(|p| p.1))];
    let check = |what: &str, build: EmulationTestFn<'_>, own: &dyn Fn(u64, u64) -> i64| {
        let found = run(&tensors, build).to_i64s();
        for ((a, b), found) in all.iter().zip(found) {
            assert_eq!(found, own(*a, *b), "{what} of {a} and {b}");
        }
    };
    check("less", &|g, v| unsigned::below(g, v[0], v[1]), &|a, b| {
        i64::from(a < b)
    });
    check(
        "quotient",
        &|g, v| Ok(unsigned::divide(g, v[0], v[1])?.0),
        &|a, b| (a / b) as i64,
    );
    check(
        "remainder",
        &|g, v| Ok(unsigned::divide(g, v[0], v[1])?.1),
        &|a, b| (a % b) as i64,
    );
    check(
        "shift",
        &|g, v| unsigned::shift_right(g, v[0], v[1]),
        &|a, b| match u32::try_from(b) {
            Ok(b) => a.checked_shr(b).unwrap_or(0) as i64,
            Err(_) => 0,
        },
    );
}

#[test]
fn unsigned_numbers_become_floats_and_back() {
    let all: Vec<u64> = pairs().into_iter().map(|p| p.0).collect();
    let x = held(all.iter().copied());
    for dtype in [DType::F32, DType::F64] {
        let y = run(std::slice::from_ref(&x), |g, v| {
            unsigned::to_float(g, v[0], dtype)
        });
        for (x, y) in all.iter().zip(y.to_f64s()) {
            let own = if dtype == DType::F32 {
                f64::from(*x as f32)
            } else {
                *x as f64
            };
            assert_eq!(y, own, "{x} as {dtype}");
        }
        let exact = y_below_the_limit(&y);
        let back = run(std::slice::from_ref(&exact), |g, v| {
            unsigned::from_float(g, v[0])
        });
        for (y, back) in exact.to_f64s().into_iter().zip(back.to_i64s()) {
            assert_eq!(back as u64, y as u64, "{y} of {dtype}");
        }
    }
}

/// Floats below 2^64, because larger values have no U64 representation.
fn y_below_the_limit(y: &Tensor) -> Tensor {
    let values: Vec<f64> = y.to_f64s();
    let values: Vec<f64> = values.into_iter().filter(|v| *v < 2f64.powi(64)).collect();
    let ty = TensorType::new(y.dtype(), &[values.len()]);
    Tensor::from_f64s(ty, &values).expect("floats")
}
