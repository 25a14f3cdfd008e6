//! The number of windows along an axis.

use tercet_ir::ops::Window;
use tercet_ir::{Bindings, Dim};

#[test]
fn windows_are_counted_as_pooling_counts_them() {
    let count = |n: usize, k, stride, before, after, ceil| {
        let w = Window::new(1)
            .with_stride(&[stride])
            .with_pads(&[before], &[after]);
        w.count(0, &Dim::Known(n), k, ceil)
            .ok()
            .and_then(|d| d.known())
    };
    assert_eq!(count(7, 3, 2, 0, 0, false), Some(3));
    assert_eq!(count(8, 3, 2, 0, 0, false), Some(3));
    assert_eq!(count(8, 3, 2, 0, 0, true), Some(4));
    // A third window would begin in the padding after the operand.
    assert_eq!(count(4, 1, 2, 0, 1, true), Some(2));
    assert_eq!(count(2, 3, 1, 0, 0, false), None);
    assert_eq!(count(2, 3, 1, 1, 0, false), Some(1));
}

#[test]
fn windows_of_symbols_are_counted_as_those_of_numbers() {
    let windows = [1, 2, 3].into_iter().flat_map(|stride| {
        let kernels = [1, 2, 3, 5].into_iter().map(move |k| (stride, k));
        kernels.flat_map(|(stride, k)| {
            let pads = [(0, 0), (1, 1), (0, 1), (2, 3), (1, 6)];
            pads.map(|(before, after)| {
                let w = Window::new(1).with_stride(&[stride]);
                (w.with_pads(&[before], &[after]), k)
            })
        })
    });
    let s = Dim::sym("s");
    for (w, k) in windows {
        for ceil in [false, true] {
            let symbolic = w.count(0, &s, k, ceil).unwrap();
            for n in 0..20 {
                let Ok(known) = w.count(0, &Dim::Known(n), k, ceil) else {
                    continue;
                };
                let values = Bindings::new().with("s", n);
                let found = symbolic.eval(&values).map(Dim::Known);
                assert_eq!(found, Ok(known), "{w:?} k={k} n={n} ceil={ceil} {symbolic}");
            }
        }
    }
}

#[test]
fn symbols_give_quotients() {
    let s = Dim::sym("s");
    let even = s.checked_mul(&Dim::Known(2)).unwrap();
    let w = Window::new(1).with_stride(&[2]).with_pads(&[1], &[1]);
    assert_eq!(w.count(0, &even, 3, false), Ok(s.clone()));
    let half = w.count(0, &s, 3, false).unwrap();
    assert_eq!(half.to_string(), "((s+1)/2)");
    // Two halvings are one quotient.
    let quarter = w.count(0, &half, 3, false).unwrap();
    assert_eq!(quarter.to_string(), "((s+3)/4)");
    let same = Window::new(1).with_pads(&[1], &[1]);
    assert_eq!(same.count(0, &s, 3, false), Ok(s));
}
