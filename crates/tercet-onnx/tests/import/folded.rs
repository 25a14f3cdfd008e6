//! Nodes whose constant operands are computed at import: batch normalizations, and the indices of patches.

use tercet::Tensor;
use tercet_ir::Op;
use tercet_onnx::ImportOptions;

use crate::made::{Model, attr_ints, node};
use crate::run;

/// Numbers without a period in `-1..1`.
fn numbers(count: usize, seed: usize) -> Vec<f32> {
    let mut state = seed as u32 + 1;
    let next = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(next).collect()
}

impl Model {
    fn floats(self, name: &str, dims: &[i64], values: &[f32]) -> Model {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.raw(name, 1, dims, &bytes)
    }
}

const CHANNELS: usize = 5;

/// The parameters of a batch normalization, and the node from `from` to `y`.
fn normalized(model: Model, from: &str) -> Model {
    let positive: Vec<f32> = numbers(CHANNELS, 4).iter().map(|x| x.abs() + 0.1).collect();
    let dims = [CHANNELS as i64];
    model
        .floats("gamma", &dims, &numbers(CHANNELS, 1))
        .floats("beta", &dims, &numbers(CHANNELS, 2))
        .floats("mean", &dims, &numbers(CHANNELS, 3))
        .floats("variance", &dims, &positive)
        .node(node(
            "BatchNormalization",
            &[from, "gamma", "beta", "mean", "variance"],
            &["y"],
        ))
}

fn convolved(has_bias: bool, groups: i64) -> Model {
    let wide = 6 / groups;
    let weights = numbers(CHANNELS * wide as usize * 9, 7);
    let mut operands = vec!["x", "w"];
    operands.extend(has_bias.then_some("b"));
    let conv = node("Conv", &operands, &["c"]).with(attr_ints("pads", &[1, 1, 1, 1]));
    Model::new(&["2", "6", "7", "8"])
        .floats("w", &[CHANNELS as i64, wide, 3, 3], &weights)
        .floats("b", &[CHANNELS as i64], &numbers(CHANNELS, 9))
        .node(conv)
}

fn close(a: &Tensor, b: &Tensor) {
    assert_eq!(a.shape(), b.shape());
    for (a, b) in a.to_f64s().iter().zip(b.to_f64s()) {
        assert!((a - b).abs() < 1e-5 * (1.0 + b.abs()), "{a} and {b}");
    }
}

/// The number of elementwise nodes.
fn binaries(model: &Model) -> usize {
    let imported = tercet_onnx::import(model.bytes(), &ImportOptions::new()).expect("imports");
    let live = imported.graph.nodes();
    live.filter(|(_, node)| matches!(node.op, Op::Binary(_)))
        .count()
}

#[test]
fn batch_norms_become_part_of_a_convolution() {
    let x = Tensor::from_slice(&[2, 6, 7, 8], &numbers(2 * 6 * 7 * 8, 11)).expect("fits");
    for has_bias in [false, true] {
        let folded = normalized(convolved(has_bias, 1), "c");
        assert_eq!(binaries(&folded), 0);
        // The second use of the convolution needs its own result.
        let apart = normalized(convolved(has_bias, 1), "c")
            .node(node("Neg", &["c"], &["z"]))
            .output("z");
        assert_eq!(binaries(&apart), 3);
        close(&run(&folded, &x), &run(&apart, &x));
    }
    // An output of the model is a use too.
    let shown = normalized(convolved(false, 1), "c").output("c");
    assert_eq!(binaries(&shown), 3);
}

#[test]
fn batch_norms_of_other_values_follow_their_formula() {
    let shape = [2, CHANNELS, 3];
    let x = numbers(2 * CHANNELS * 3, 5);
    let model = normalized(Model::new(&["2", "5", "3"]), "x");
    let y = run(&model, &Tensor::from_slice(&shape, &x).expect("fits"));
    let [gamma, beta, mean] = [1, 2, 3].map(|seed| numbers(CHANNELS, seed));
    let variance = numbers(CHANNELS, 4);
    let want = x.iter().enumerate().map(|(i, x)| {
        let c = i / 3 % CHANNELS;
        let deviation = (f64::from(variance[c].abs() + 0.1) + 1e-5).sqrt();
        let moved = (f64::from(*x) - f64::from(mean[c])) / deviation;
        (moved * f64::from(gamma[c]) + f64::from(beta[c])) as f32
    });
    let want: Vec<f32> = want.collect();
    close(&y, &Tensor::from_slice(&shape, &want).expect("fits"));
}

/// Image, block, strides, dilations and pads of a `Col2Im` with two axes.
type Patches = ([usize; 2], [usize; 2], [usize; 2], [usize; 2], [usize; 4]);

#[test]
fn patches_are_added_at_every_stride_and_dilation() {
    let cases: [Patches; 6] = [
        ([5, 6], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
        ([8, 9], [2, 3], [2, 3], [1, 1], [0, 0, 0, 0]),
        ([9, 8], [3, 2], [2, 1], [1, 2], [1, 0, 2, 1]),
        ([7, 7], [1, 1], [3, 2], [1, 1], [0, 0, 0, 0]),
        ([11, 5], [2, 2], [3, 1], [4, 3], [2, 1, 0, 1]),
        // More parts than the import adds one by one.
        ([20, 20], [17, 17], [1, 1], [1, 1], [0, 0, 0, 0]),
    ];
    for (image, block, strides, dilations, pads) in cases {
        let places: [usize; 2] = [0, 1].map(|a| {
            let padded = image[a] + pads[a] + pads[a + 2];
            (padded - dilations[a] * (block[a] - 1) - 1) / strides[a] + 1
        });
        let (taps, count) = (block[0] * block[1], places[0] * places[1]);
        let channels = 2;
        let x = numbers(channels * taps * count, 3);
        let list = |list: &[usize]| list.iter().map(|n| *n as i64).collect::<Vec<i64>>();
        let operator = node("Col2Im", &["x", "image", "block"], &["y"])
            .with(attr_ints("strides", &list(&strides)))
            .with(attr_ints("dilations", &list(&dilations)))
            .with(attr_ints("pads", &list(&pads)));
        let dims = [1, channels * taps, count].map(|n| n.to_string());
        let model = Model::new(&dims.each_ref().map(String::as_str))
            .ints("image", &[2], &list(&image))
            .ints("block", &[2], &list(&block))
            .node(operator);
        let given = Tensor::from_slice(&[1, channels * taps, count], &x).expect("fits");
        let mut want = vec![0f32; channels * image[0] * image[1]];
        for (i, x) in x.iter().enumerate() {
            let (row, place) = (i / count, i % count);
            let (channel, tap) = (row / taps, row % taps);
            let at = |a: usize, tap: usize, place: usize| {
                (place * strides[a] + tap * dilations[a]).checked_sub(pads[a])
            };
            let y = at(0, tap / block[1], place / places[1]).filter(|y| *y < image[0]);
            let x_at = at(1, tap % block[1], place % places[1]).filter(|x| *x < image[1]);
            if let (Some(y), Some(x_at)) = (y, x_at) {
                want[(channel * image[0] + y) * image[1] + x_at] += x;
            }
        }
        let shape = [1, channels, image[0], image[1]];
        close(
            &run(&model, &given),
            &Tensor::from_slice(&shape, &want).expect("fits"),
        );
    }
}
