//! Tests of 8-bit quantized graphs: a sequence of dequantize, compute and quantize runs on the
//! integers.

use tercet::{CompileOptions, Device, Tensor};
use tercet_cases::{CaseGraph, OpCase, cases};
use tercet_ir::fill::InputFill;
use tercet_ir::{DType, EvalCtx, Op, OpError, OpKind, Type, evaluate};
use tercet_onnx::ImportOptions;

use super::made::{Model, attr_int, attr_ints, node};
use super::run;

/// `TensorProto.DataType` numbers.
const FLOAT: i32 = 1;
const UINT8: i32 = 2;
const INT8: i32 = 3;
const INT32: i32 = 6;

fn floats(list: &[f32]) -> Vec<u8> {
    list.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// The kernels of the CPU executor, one per line, with the symbol `n` bounded by 4.
fn kernels(model: &Model) -> String {
    let imported = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect("imports");
    let options = CompileOptions::default().bound("n", 4);
    let explained = Device::cpu().explain(&imported.graph, &options);
    let text = explained.expect("explains").to_string();
    let at = text.find("kernels").expect("the list of kernels");
    text[at..].to_string()
}

/// Adds `to = dequantize(quantize(from))` with U8 values.
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
/// The channels, rows and columns of x.
const SIZES: [usize; 3] = [3, 4, 5];

fn weight(i: usize) -> i8 {
    [-128, 127, 3, -7, 0, 90, -55][i * 5 % 7]
}

/// A quantized 3 x 3 convolution with padding, per-channel scales, a bias and a clamp.
fn convolution() -> Model {
    let weights: Vec<u8> = (0..81).map(|i| weight(i) as u8).collect();
    let bias: Vec<u8> = BIAS.iter().flat_map(|b| b.to_le_bytes()).collect();
    let steps: Vec<f32> = SCALES.iter().map(|s| s * 0.5).collect();
    let axis = || attr_int("axis", 0);
    let model = Model::new(&["1", "3", "4", "5"])
        .opset(13)
        .raw("w", INT8, &[3, 3, 3, 3], &weights)
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

/// The quantized values of x, including the extremes.
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

/// The expected result of [`convolution`], from integer sums.
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
                    sum += x * i64::from(weight(o * 27 + tap));
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

/// The row length and column count of [`product`], above the constant folding limit.
const DEPTH: usize = 270;
const COLUMNS: usize = 300;

/// A quantized matmul of `rows` rows with per-column scales, a bias and a clamp; the weights are
/// transposed if `turned`.
fn product(rows: &str, turned: bool) -> Model {
    let at = |i: usize| match turned {
        true => i,
        false => i % COLUMNS * DEPTH + i / COLUMNS,
    };
    let weights: Vec<u8> = (0..COLUMNS * DEPTH).map(|i| weight(at(i)) as u8).collect();
    let scales: Vec<f32> = (0..COLUMNS).map(|o| SCALES[o % 3]).collect();
    let bias: Vec<f32> = (0..COLUMNS)
        .map(|o| BIAS[o % 3] as f32 * SCALES[o % 3] * 0.5)
        .collect();
    let sizes = if turned {
        [COLUMNS, DEPTH]
    } else {
        [DEPTH, COLUMNS]
    };
    let columns = COLUMNS as i64;
    let model = Model::new(&[rows, &DEPTH.to_string()])
        .opset(13)
        .raw("w", INT8, &sizes.map(|n| n as i64), &weights)
        .raw("w.scale", FLOAT, &[columns], &floats(&scales))
        .raw("w.zero", INT8, &[columns], &[0; COLUMNS])
        .raw("b", FLOAT, &[columns], &floats(&bias));
    let axis = attr_int("axis", i64::from(!turned));
    let weights = ["w", "w.scale", "w.zero"];
    let model = through_codes(model, "x", "x.float", 0.5, 200)
        .node(node("DequantizeLinear", &weights, &["w.float"]).with(axis));
    let model = match turned {
        true => model
            .node(node("Gemm", &["x.float", "w.float", "b"], &["sum"]).with(attr_int("transB", 1))),
        false => model
            .node(node("MatMul", &["x.float", "w.float"], &["product"]))
            .node(node("Add", &["b", "product"], &["sum"])),
    };
    let model = model.node(node("Relu", &["sum"], &["bounded"]));
    through_codes(model, "bounded", "y", 32.0, 10)
}

/// The expected result of [`product`], from integer sums.
fn expected_product(rows: usize) -> Vec<f64> {
    let of = |row: usize, o: usize| {
        let products = (0..DEPTH)
            .map(|i| (i64::from(code(row * DEPTH + i)) - 200) * i64::from(weight(o * DEPTH + i)));
        let sum = products.sum::<i64>() + i64::from(BIAS[o % 3]);
        let number = sum as f64 * 0.5 * f64::from(SCALES[o % 3]);
        let code = (number.max(0.0) / 32.0).round_ties_even() + 10.0;
        (code.clamp(0.0, 255.0) - 10.0) * 32.0
    };
    let all = (0..rows).flat_map(|row| (0..COLUMNS).map(move |o| (row, o)));
    all.map(|(row, o)| of(row, o)).collect()
}

#[test]
fn a_product_of_few_rows_between_codes_is_one_of_integers() {
    for (rows, turned) in [(1, true), (1, false), (3, true), (4, false), (5, true)] {
        let model = product(&rows.to_string(), turned);
        let kernels = kernels(&model);
        assert_eq!(
            kernels.contains("1 x quantized_conv"),
            rows < 5,
            "{kernels}"
        );
        let numbers: Vec<f32> = (0..rows * DEPTH)
            .map(|i| (f32::from(code(i)) - 200.0) * 0.5)
            .collect();
        let x = Tensor::from_slice(&[rows, DEPTH], &numbers).expect("fits");
        let y = run(&model, &x);
        assert_eq!(y.shape(), [rows, COLUMNS]);
        assert_eq!(y.to_f64s(), expected_product(rows), "{rows} {turned}");
    }
    // The number of rows depends on the run, so the result stays in floats.
    let kernels = kernels(&product("n", true));
    assert!(!kernels.contains("quantized_conv"), "{kernels}");
}

#[test]
fn what_moves_numbers_moves_their_codes() {
    let model = Model::new(&["1", "3", "4", "5"]).opset(13);
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
    assert_eq!(y.shape(), [1, 6, 4, 5]);
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

/// `x` times the transpose of quantized weights with one scale.
#[test]
fn weights_of_a_product_stay_codes() {
    const ROWS: usize = 300;
    const DEPTH: usize = 256;
    let codes: Vec<u8> = (0..ROWS * DEPTH).map(|i| (i * 37 % 256) as u8).collect();
    let model = Model::new(&["3", "256"])
        .opset(13)
        .raw("w", UINT8, &[300, 256], &codes)
        .raw("w.scale", FLOAT, &[], &0.3f32.to_le_bytes())
        .raw("w.zero", UINT8, &[], &[90])
        .node(node("Transpose", &["w"], &["turned"]).with(attr_ints("perm", &[1, 0])))
        .node(node(
            "DequantizeLinear",
            &["turned", "w.scale", "w.zero"],
            &["w.float"],
        ))
        .node(node("MatMul", &["x", "w.float"], &["y"]));
    let kernels = kernels(&model);
    assert!(kernels.contains("1 x dequant_mat_mul"), "{kernels}");
    let numbers: Vec<f32> = (0..3 * DEPTH)
        .map(|i| (i * 29 % 64) as f32 / 8.0 - 4.0)
        .collect();
    let x = Tensor::from_slice(&[3, DEPTH], &numbers).expect("fits");
    let y = run(&model, &x).to_f64s();
    for (at, y) in y.iter().enumerate() {
        let (row, column) = (at / ROWS, at % ROWS);
        let products = (0..DEPTH).map(|p| {
            let code = f64::from(codes[column * DEPTH + p]) - 90.0;
            f64::from(numbers[row * DEPTH + p]) * code * f64::from(0.3f32)
        });
        let (sum, size) = products.fold((0.0, 0.0), |(s, a), p| (s + p, a + f64::abs(p)));
        assert!((y - sum).abs() <= 1e-6 * size, "{at}: {y}, not {sum}");
    }
}

/// The results of a case on the CPU executor and from the reference.
fn both(case: &CaseGraph) -> [Vec<Tensor>; 2] {
    let options = CompileOptions {
        bounds: case.bounds.clone(),
        ..CompileOptions::default()
    };
    let mut exe = Device::cpu()
        .compile(&case.graph, &options)
        .expect("compiles");
    let mut given: Vec<(&str, &Tensor)> = Vec::new();
    for (_, node) in case.graph.nodes() {
        match &node.op {
            Op::Param(p) => {
                let tensor = case.tensors[&p.name].clone();
                exe.set_param(&p.name, tensor).expect("a parameter");
            }
            Op::Input(i) => given.push((&i.name, &case.tensors[&i.name])),
            _ => {}
        }
    }
    let got = exe.run(&given).expect("runs");
    let want = evaluate(&case.graph, &EvalCtx::default(), &case.tensors).expect("evaluates");
    let outputs = case.graph.outputs().iter();
    let want = outputs.map(|o| want.get(o.value).clone()).collect();
    [got, want]
}

#[test]
fn the_cpu_convolves_codes_as_the_reference_does() {
    for case in cases(OpKind::QuantizedConv) {
        for dtype in [DType::U8, DType::I8] {
            let case_graph = case.build(dtype).expect("cases build");
            let [got, want] = both(&case_graph);
            assert_eq!(got, want, "{} of {dtype}", case.name);
        }
    }
}

/// A function of one or two quantized operands with every possible value, as floats and quantized
/// again. With `wide`, the float result is also an output.
fn of_codes(c: &mut CaseGraph, second: bool, wide: bool) -> Result<(), OpError> {
    let all: Vec<f64> = (0..2048).map(|i| f64::from(i * 37 % 256)).collect();
    let low = if c.dtype == DType::I8 { 128.0 } else { 0.0 };
    let codes = |step: usize| {
        let list = (0..all.len()).map(|i| all[i * step % all.len()] - low);
        InputFill::Values(list.collect())
    };
    let mut numbers = Vec::new();
    for (name, step, zero) in [("a", 1, 3.0), ("b", 5, 100.0)] {
        if name == "b" && !second {
            continue;
        }
        let x = c.input(name, [2, 1024], codes(step))?;
        let g = &mut c.graph;
        let wide = g.cast(x, DType::I32)?;
        let zero = g.scalar(DType::I32, zero)?;
        let less = g.sub(wide, zero)?;
        let float = g.cast(less, DType::F32)?;
        let scale = g.scalar(DType::F32, 0.037)?;
        numbers.push(g.mul(float, scale)?);
    }
    let dtype = c.dtype;
    let g = &mut c.graph;
    let number = match numbers.as_slice() {
        &[a, b] => g.plus(a, b)?,
        _ => g.sigmoid(numbers[0])?,
    };
    let scale = g.scalar(DType::F32, if second { 0.05 } else { 0.004 })?;
    let scaled = g.div(number, scale)?;
    let rounded = g.round(scaled)?;
    let zero = g.scalar(DType::F32, 7.0)?;
    let moved = g.plus(rounded, zero)?;
    let (least, greatest) = dtype.int_range().expect("integers");
    let bounded = g.clamp(moved, least as f64, greatest as f64)?;
    let y = g.cast(bounded, dtype)?;
    let wider = g.cast(y, DType::I32)?;
    c.output(y)?;
    match wide {
        true => c.output(wider),
        false => Ok(()),
    }
}

#[test]
fn maps_of_codes_are_exact() {
    for (second, wide) in [(false, true), (true, true), (true, false)] {
        let case = OpCase::new("codes", move |c| of_codes(c, second, wide));
        for dtype in [DType::U8, DType::I8] {
            let case = case.build(dtype).expect("builds");
            let [got, want] = both(&case);
            for (got, want) in got.iter().zip(&want) {
                let (got, want) = (got.to_f64s(), want.to_f64s());
                // The reference rounds through F64 and may choose the other integer near a tie.
                let off = got.iter().zip(&want).filter(|(a, b)| a != b);
                let steps = off.clone().all(|(a, b)| (a - b).abs() <= 1.0);
                assert!(
                    steps && off.count() * 100 <= want.len(),
                    "{dtype} {second} {wide}"
                );
            }
        }
    }
}

/// Dequantizes with a zero point that is known only at run time.
fn less_zero(c: &mut CaseGraph, zero: f64) -> Result<(), OpError> {
    let list = (0..1500).map(|i| f64::from(i * 37 % 700) * 0.25 - 20.0);
    let x = c.input("x", [1500], InputFill::Values(list.collect()))?;
    let zero = c.input_of(
        "zero",
        Type::new(DType::I32, [0usize; 0]),
        InputFill::Values(vec![zero]),
    )?;
    let g = &mut c.graph;
    let scale = g.scalar(DType::F32, 0.5)?;
    let scaled = g.div(x, scale)?;
    let rounded = g.round(scaled)?;
    let bounded = g.clamp(rounded, 0.0, 255.0)?;
    let codes = g.cast(bounded, DType::U8)?;
    let wide = g.cast(codes, DType::I32)?;
    let y = g.sub(wide, zero)?;
    c.output(y)
}

#[test]
fn zero_points_of_a_run_are_subtracted_whatever_they_are() {
    for zero in [100.0, -65_536.0, 65_537.0, -2_147_483_648.0] {
        let case = OpCase::new("less", move |c| less_zero(c, zero));
        let case = case.build(DType::F32).expect("builds");
        let [got, want] = both(&case);
        assert_eq!(got, want, "{zero}");
    }
}

/// Quantizing NaN gives 0, as in the unfused computation; values outside the range are clamped.
#[test]
fn numbers_that_are_none_become_codes() {
    let model = Model::new(&["6"]).opset(13);
    let model = through_codes(model, "x", "y", 0.5, 3);
    let list = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.25,
        1e30,
        -0.0,
    ];
    let x = Tensor::from_slice(&[6], &list).expect("fits");
    let y = run(&model, &x).to_f64s();
    assert_eq!(y, [-1.5, 126.0, -1.5, 0.0, 126.0, 0.0]);
}
