//! Tests of the conformance probes for native operations.

use half::f16;
use tercet_ir::{Element, Tensor};
use tercet_plan::internals::scalar::{FLOATS, HALVES, WgslHelper, text};
use tercet_plan::{DeviceCaps, NativeOps, native_ops_probe};

const ALL: NativeOps = NativeOps {
    f16_conversions: true,
    floats: true,
    shuffles: true,
};
const NO_SHUFFLES: NativeOps = NativeOps {
    shuffles: false,
    ..ALL
};

fn tensor<T: Element>(values: &[T]) -> Tensor {
    Tensor::from_slice(&[values.len()], values).expect("the number of values matches the shape")
}

#[test]
fn the_prelude_has_the_switches() {
    let portable = text(&[WgslHelper::Floats]);
    assert_eq!(NativeOps::default().in_text(&portable, 32), None);
    let text = ALL.in_text(&portable, 32).unwrap();
    for [line, native] in [HALVES, FLOATS] {
        assert!(portable.contains(line) && text.contains(native) && !text.contains(line));
    }
    let converts = |text: &str| {
        let code = |line: &&str| !line.trim_start().starts_with("//");
        text.lines()
            .filter(code)
            .filter(|l| l.contains("pack2x16float"))
            .count()
    };
    assert_eq!((converts(&portable), converts(&text)), (0, 2));
}

#[test]
fn right_results_are_told_from_wrong_ones() {
    let (trial, caps) = native_ops_probe(&DeviceCaps::browser()).unwrap();
    assert_eq!(caps.natives, NO_SHUFFLES);
    let [halves, floats, a, b, short, long] = trial.inputs().map(|(_, tensor)| tensor);
    let sums_of = |x: &Tensor| -> Vec<f32> {
        let rows = x.as_slice::<f32>().unwrap().chunks_exact(x.shape()[1]);
        rows.map(|row| row.iter().sum()).collect()
    };
    let (short, long) = (sums_of(short), sums_of(long));
    let wide: Vec<f32> = halves
        .as_slice::<f16>()
        .unwrap()
        .iter()
        .map(|h| h.to_f32())
        .collect();
    let floats = floats.as_slice::<f32>().unwrap();
    let narrow: Vec<f16> = floats.iter().map(|x| f16::from_f32(*x)).collect();
    let pairs = a
        .as_slice::<f32>()
        .unwrap()
        .iter()
        .zip(b.as_slice::<f32>().unwrap());
    let of = |f: fn(f32, f32) -> f32| pairs.clone().map(|(a, b)| f(*a, *b)).collect::<Vec<f32>>();
    let (sum, difference, product) = (of(|a, b| a + b), of(|a, b| a - b), of(|a, b| a * b));
    let judge = |wide: &[f32], narrow: &[f16], sum: &[f32], product: &[f32], long: &[f32]| {
        let rest = [sum, &difference, product, &short, long].map(tensor);
        let results = [&[tensor(wide), tensor(narrow)], &rest[..]].concat();
        trial.judge(&results)
    };
    let of_floats = |sum: &[f32], product: &[f32]| judge(&wide, &narrow, sum, product, &long);
    assert_eq!(of_floats(&sum, &product), ALL);
    let flushed = |of: &[f32], least: f32| -> Vec<f32> {
        of.iter()
            .map(|x| if x.abs() < least { 0.0 } else { *x })
            .collect()
    };
    let no_halves = NativeOps {
        f16_conversions: false,
        ..ALL
    };
    let no_floats = NativeOps {
        floats: false,
        ..ALL
    };
    let small = flushed(&wide, 6.1e-5);
    assert_eq!(judge(&small, &narrow, &sum, &product, &long), no_halves);
    let least = f32::MIN_POSITIVE;
    assert_eq!(of_floats(&flushed(&sum, least), &product), no_floats);
    assert_eq!(of_floats(&sum, &flushed(&product, least)), no_floats);
    // The conversion rounds towards zero, as that of a nonconforming device may do.
    let cut: Vec<f16> = floats
        .iter()
        .map(|x| match f16::from_f32(*x) {
            h if h.to_f32().abs() > x.abs() => f16::from_bits(h.to_bits() - 1),
            h => h,
        })
        .collect();
    assert_eq!(judge(&wide, &cut, &sum, &product, &long), no_halves);
    let swapped = [long[1], long[0], long[2]];
    assert_eq!(judge(&wide, &narrow, &sum, &product, &swapped), NO_SHUFFLES);
    assert_eq!(trial.judge(&[]), NativeOps::default());
}
