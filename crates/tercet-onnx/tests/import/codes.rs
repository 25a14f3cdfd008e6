//! Graphs of codes of 8 bits: what dequantises, computes and quantises again runs on the codes.

use tercet::{CompileOptions, Device, Tensor};
use tercet_onnx::ImportOptions;

use super::made::{Model, attr_int, attr_ints, node};
use super::run;

/// Numbers of `TensorProto.DataType`.
const FLOAT: i32 = 1;
const UINT8: i32 = 2;
const INT8: i32 = 3;
const INT32: i32 = 6;

fn floats(list: &[f32]) -> Vec<u8> {
    list.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The kernels of the CPU, one line each.
fn kernels(model: &Model) -> String {
    let imported = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect("imports");
    let explained = Device::cpu().explain(&imported.graph, &CompileOptions::default());
    let text = explained.expect("explains").to_string();
    let at = text.find("kernels").expect("a list of kernels");
    text[at..].to_string()
}

/// Adds `to = dequantise(quantise(from))` with U8 codes.
fn through_codes(model: Model, from: &str, to: &str, scale: f32, zero: u8) -> Model {
    let [s, z, q] = ["scale", "zero", "codes"].map(|part| format!("{to}.{part}"));
    model
        .raw(&s, FLOAT, &[], &scale.to_le_bytes())
        .raw(&z, UINT8, &[], &[zero])
        .node(node("QuantizeLinear", &[from, &s, &z], &[&q]))
        .node(node("DequantizeLinear", &[&q, &s, &z], &[to]))
}

const SCALES: [f32; 3] = [0.25, 0.03125, 0.5];
const BIAS: [i32; 3] = [-90, 4000, 7];
/// Channels, rows and columns of x.
const SIZES: [usize; 3] = [2, 4, 5];

fn weight(i: usize) -> i8 {
    [-128, 127, 3, -7, 0, 90, -55][i * 5 % 7]
}

/// A convolution of 3 x 3 with padding, scales by channel, a bias and a bound, between codes.
fn convolution() -> Model {
    let weights: Vec<u8> = (0..54).map(|i| weight(i) as u8).collect();
    let bias: Vec<u8> = BIAS.iter().flat_map(|b| b.to_le_bytes()).collect();
    let steps: Vec<f32> = SCALES.iter().map(|s| s * 0.5).collect();
    let axis = || attr_int("axis", 0);
    let model = Model::new(&["1", "2", "4", "5"])
        .opset(13)
        .raw("w", INT8, &[3, 2, 3, 3], &weights)
        .raw("w.scale", FLOAT, &[3], &floats(&SCALES))
        .raw("w.zero", INT8, &[3], &[0; 3])
        .raw("b", INT32, &[3], &bias)
        .raw("b.scale", FLOAT, &[3], &floats(&steps))
        .raw("b.zero", INT32, &[3], &[0; 12]);
    let model = through_codes(model, "x", "x.float", 0.5, 200)
        .node(
            node(
                "DequantizeLinear",
                &["w", "w.scale", "w.zero"],
                &["w.float"],
            )
            .with(axis()),
        )
        .node(
            node(
                "DequantizeLinear",
                &["b", "b.scale", "b.zero"],
                &["b.float"],
            )
            .with(axis()),
        )
        .node(
            node("Conv", &["x.float", "w.float", "b.float"], &["sum"])
                .with(attr_ints("pads", &[1, 1, 1, 1])),
        )
        .node(node("Relu", &["sum"], &["bounded"]));
    through_codes(model, "bounded", "y", 32.0, 10)
}

/// The codes of x: extremes and what lies between.
fn code(i: usize) -> u8 {
    [0, 255, 200, 17, 128, 201, 254, 99, 3][i * 4 % 9]
}

fn x() -> Tensor {
    let [channels, height, width] = SIZES;
    let numbers: Vec<f32> = (0..channels * height * width)
        .map(|i| (f32::from(code(i)) - 200.0) * 0.5)
        .collect();
    Tensor::from_slice(&[1, channels, height, width], &numbers).expect("fits")
}

/// The result of [`convolution`], from sums of integers.
fn expected() -> Vec<f64> {
    let [channels, height, width] = SIZES;
    let mut all = Vec::new();
    for o in 0..3 {
        for at in 0..height * width {
            let (row, col) = (at / width, at % width);
            let mut sum = i64::from(BIAS[o]);
            for tap in 0..channels * 9 {
                let (c, t) = (tap / 9, tap % 9);
                let (r, s) = ((row + t / 3).wrapping_sub(1), (col + t % 3).wrapping_sub(1));
                if r < height && s < width {
                    let x = i64::from(code((c * height + r) * width + s)) - 200;
                    sum += x * i64::from(weight(o * 18 + tap));
                }
            }
            let number = sum as f64 * 0.5 * f64::from(SCALES[o]);
            let code = (number.max(0.0) / 32.0).round_ties_even() + 10.0;
            all.push((code.clamp(0.0, 255.0) - 10.0) * 32.0);
        }
    }
    all
}

#[test]
fn a_convolution_between_codes_is_one_of_integers() {
    let model = convolution();
    let kernels = kernels(&model);
    assert!(kernels.contains("1 x quantized_conv"), "{kernels}");
    assert!(!kernels.contains(" x conv "), "{kernels}");
    let y = run(&model, &x()).to_f64s();
    let expected = expected();
    assert_eq!(y, expected);
    let (least, greatest) = (0.0, 245.0 * 32.0);
    assert!(expected.contains(&least) && expected.contains(&greatest));
}

#[test]
fn what_moves_numbers_moves_their_codes() {
    let model = Model::new(&["1", "2", "4", "5"]).opset(13);
    let model = through_codes(model, "x", "a", 0.5, 200)
        .node(
            node("MaxPool", &["a"], &["pooled"])
                .with(attr_ints("kernel_shape", &[3, 3]))
                .with(attr_ints("pads", &[1, 1, 1, 1])),
        )
        .node(node("Concat", &["a", "pooled.float"], &["both"]).with(attr_int("axis", 1)));
    let model = through_codes(model, "pooled", "pooled.float", 0.5, 200);
    let model = through_codes(model, "both", "y", 1.0, 100);
    let kernels = kernels(&model);
    assert!(kernels.contains("1 x pool"), "{kernels}");
    let y = run(&model, &x());
    assert_eq!(y.shape(), [1, 4, 4, 5]);
    let [channels, height, width] = SIZES;
    let number = |i: usize| (f64::from(code(i)) - 200.0) * 0.5;
    let again = |x: f64| (x.round_ties_even() + 100.0).clamp(0.0, 255.0) - 100.0;
    let mut expected: Vec<f64> = (0..channels * height * width)
        .map(|i| again(number(i)))
        .collect();
    for i in 0..channels * height * width {
        let (c, row, col) = (i / (height * width), i / width % height, i % width);
        let around = (0..9).filter_map(|t| {
            let (r, s) = ((row + t / 3).wrapping_sub(1), (col + t % 3).wrapping_sub(1));
            (r < height && s < width).then(|| number((c * height + r) * width + s))
        });
        expected.push(again(around.fold(f64::MIN, f64::max)));
    }
    assert_eq!(y.to_f64s(), expected);
}
