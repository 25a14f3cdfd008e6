//! The source elements of resized axes, and sizes from scales.

use tercet_ir::attr::FloatAttr;
use tercet_ir::internals::{Quotient, cubic, exact, nearest, place, rest, scaled, scaled_dim};
use tercet_ir::ops::{Coordinates, NearestRounding, Resize, ResizeMode, ResizePositions};
use tercet_ir::{Bindings, DType, Dim, Graph, Type};

#[test]
fn scales_are_exact() {
    for s in [1.0, 2.0, 0.5, 1.5, 0.1, 1e-6, 1e6, f64::from(0.6f32), 3.7] {
        let q = exact(s);
        assert_eq!(q.over as f64 / q.under as f64, s, "{s}");
    }
    // As floats, 0.1 is slightly above a tenth, and the f32 0.7 slightly below seven tenths.
    assert_eq!(scaled(10, 0.1), Some(1));
    assert_eq!(scaled(10, f64::from(0.7f32)), Some(6));
    assert_eq!(scaled(3, 2.5), Some(7));
}

#[test]
fn index_shifts_are_those_of_the_table() {
    let mut shifted = 0;
    for (c, r) in
        (Coordinates::ALL.iter()).flat_map(|c| NearestRounding::ALL.iter().map(move |r| (c, r)))
    {
        for (n, k) in (1..6usize).flat_map(|n| (0..8u32).map(move |k| (n, k))) {
            for scaled in [false, true] {
                let m = n << k;
                let mut op = Resize {
                    coordinates: *c,
                    rounding: *r,
                    ..Resize::to_sizes([m], ResizeMode::Nearest)
                };
                if scaled {
                    op.scales = vec![FloatAttr(f64::from(1u32 << k))];
                }
                let Some(shift) = op.index_shift(0, &Dim::Known(n), &Dim::Known(m)) else {
                    continue;
                };
                shifted += 1;
                let expected: Vec<u32> = (0..m).map(|o| (o >> shift) as u32).collect();
                assert_eq!(op.taps(0, n, m).indices, expected, "{c:?} {r:?} {n} {m}");
            }
        }
    }
    assert!(shifted > 400, "{shifted}");
}

#[test]
fn positions_of_any_sizes_are_those_of_the_table() {
    let scales = [
        None,
        Some(2.0),
        Some(0.5),
        Some(0.1),
        Some(f64::from(0.6f32)),
    ];
    let all = Coordinates::ALL.iter();
    for (c, scale) in all.flat_map(|c| scales.map(|s| (*c, s))) {
        let resize = Resize {
            coordinates: c,
            scales: scale.map(FloatAttr).into_iter().collect(),
            ..Resize::to_sizes([1usize], ResizeMode::Linear)
        };
        for (n, m) in [(1i128, 3i128), (5, 2), (7, 7), (20, 13)] {
            for o in 0..m {
                let (over, under) = match resize.positions(0) {
                    ResizePositions::OfSizes { halves: true } => (2 * n * o + n - m, 2 * m),
                    ResizePositions::OfSizes { halves: false } => (o * n, m),
                    ResizePositions::AlignCorners if m == 1 => (0, 1),
                    ResizePositions::AlignCorners => (o * (n - 1), m - 1),
                    ResizePositions::Scaled {
                        step,
                        first,
                        of_n,
                        of_m,
                        under,
                    } => (step * o + first + of_n * n + of_m * m, under),
                };
                if c == Coordinates::PytorchHalfPixel && m == 1 {
                    continue;
                }
                let q = place(c, scale, [o, n, m]);
                // Numbers of both fractions are below 2^80, so compare quotient and rest.
                let found = Quotient { over, under };
                assert_eq!(found.floor(), q.floor(), "{c:?} {scale:?} {n} {m} {o}");
                assert!((rest(found) - rest(q)).abs() < 1e-15, "{c:?} {scale:?}");
            }
        }
    }
}

#[test]
fn sizes_of_symbols_are_those_of_numbers() {
    let s = Dim::sym("s");
    for scale in [1.0, 2.0, 0.5, 1.5, 0.1, f64::from(0.6f32), 3.7] {
        let dim = scaled_dim(&s, scale).unwrap();
        for n in 0..50 {
            let found = dim.eval(&Bindings::new().with("s", n));
            assert_eq!(found.ok(), scaled(n, scale), "{scale} {n} {dim}");
        }
    }
    assert_eq!(scaled_dim(&s, 2.0).unwrap().to_string(), "2*s");
    assert_eq!(scaled_dim(&s, 0.5).unwrap().to_string(), "(s/2)");
    assert_eq!(scaled_dim(&s, 1.1e-6), None);
}

#[test]
fn halves_round_as_asked() {
    let half = Quotient { over: 3, under: 2 };
    let all: Vec<i128> = NearestRounding::ALL
        .iter()
        .map(|&r| nearest(r, half))
        .collect();
    assert_eq!(all, [1, 2, 1, 2]);
    let below = Quotient { over: -1, under: 2 };
    let all: Vec<i128> = NearestRounding::ALL
        .iter()
        .map(|&r| nearest(r, below))
        .collect();
    assert_eq!(all, [-1, 0, -1, 0]);
}

#[test]
fn weights_of_a_cubic_add_up() {
    for f in [0.0, 0.25, 0.5, 0.9] {
        let sum: f64 = cubic(-0.75, f).iter().sum();
        assert!((sum - 1.0).abs() < 1e-12);
    }
    assert_eq!(cubic(-0.5, 0.0), [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn sizes_may_be_rounded_in_f32() {
    let resize = |size: usize| {
        let how = Resize {
            scales: vec![FloatAttr(f64::from(1.4f32))],
            ..Resize::to_sizes([size], ResizeMode::Linear)
        };
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [20])).unwrap();
        g.add(how, &[x]).is_ok()
    };
    // The exact product is less than 28, and that of F32 is 28.
    assert_eq!([26, 27, 28, 29].map(resize), [false, true, true, false]);
}
