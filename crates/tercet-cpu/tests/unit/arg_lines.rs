//! Indices of extreme elements.

use tercet_cpu::internals::arg_lines;
use tercet_cpu::kernels::SimdLevel;

#[test]
fn the_first_extreme_element_of_each_line_is_found() {
    let values = [
        3.0,
        -0.0,
        0.0,
        3.0,
        f32::NAN,
        -7.5,
        f32::INFINITY,
        f32::NEG_INFINITY,
        1e-40,
        -1e-40,
    ];
    for (rows, inner) in [(1, 1), (2, 3), (7, 129), (5, 300)] {
        let pick = |i: usize| values[(i * 7 + i / inner * 3) % values.len()];
        let x: Vec<f32> = (0..rows * inner).map(pick).collect();
        for level in SimdLevel::available() {
            for largest in [true, false] {
                let mut out = vec![-1; inner];
                arg_lines(*level, largest, inner, 0, &x, &mut out);
                for (line, at) in out.iter().enumerate() {
                    let own: Vec<f32> = (0..rows).map(|r| x[r * inner + line]).collect();
                    let is_better = |a: f32, b: f32| match (a.is_nan(), b.is_nan(), largest) {
                        (true, is_nan, _) => !is_nan,
                        (false, true, _) => false,
                        (false, false, true) => a > b,
                        (false, false, false) => a < b,
                    };
                    let want = (1..rows).fold(0, |best, r| match is_better(own[r], own[best]) {
                        true => r,
                        false => best,
                    });
                    assert_eq!(*at, want as i32, "{own:?} {largest} {}", level.name());
                }
                let mut part = vec![-1; inner - inner / 2];
                arg_lines(*level, largest, inner, inner / 2, &x, &mut part);
                assert_eq!(part, out[inner / 2..]);
            }
        }
    }
}
