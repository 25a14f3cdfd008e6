//! Test cases of convolutions.

use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::conv::Conv;
use crate::ops::util::{counted, reject};
use crate::ops::window::Window;
use crate::scalar::UnaryFn;
use crate::types::Type;

/// A test case of a convolution, as its name, shapes, groups and window.
struct ConvCaseShapes {
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    groups: usize,
    window: fn(Window) -> Window,
}

const fn shapes(
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    groups: usize,
    window: fn(Window) -> Window,
) -> ConvCaseShapes {
    ConvCaseShapes {
        name,
        x,
        w,
        groups,
        window,
    }
}

/// Shapes of the cases that run with the float dtypes.
const FLOATS: &[ConvCaseShapes] = &[
    shapes("line_2x3x19", &[2, 3, 19], &[5, 3, 4], 1, |w| {
        w.with_stride(&[2]).with_pads(&[3], &[1])
    }),
    shapes("plane_3x3_2x5x9x7", &[2, 5, 9, 7], &[6, 5, 3, 3], 1, |w| {
        w.with_pads(&[1, 1], &[1, 1])
    }),
    // Full and partial tiles along channels, windows and depth.
    shapes("tiles_and_rest", &[2, 9, 13, 11], &[70, 9, 3, 3], 1, |w| {
        w.with_pads(&[1, 1], &[1, 1])
    }),
    shapes("whole_quads", &[1, 8, 12, 16], &[72, 8, 3, 3], 1, |w| {
        w.with_pads(&[1, 1], &[1, 1])
    }),
    shapes(
        "first_layer_7x7_stride_2",
        &[1, 3, 21, 18],
        &[16, 3, 7, 7],
        1,
        |w| w.with_stride(&[2, 2]).with_pads(&[3, 3], &[3, 3]),
    ),
    shapes("asymmetric", &[1, 4, 8, 9], &[3, 4, 2, 3], 1, |w| {
        w.with_stride(&[3, 1])
            .with_pads(&[2, 0], &[0, 3])
            .with_dilation(&[1, 2])
    }),
    shapes("dilated", &[1, 2, 11, 12], &[4, 2, 3, 3], 1, |w| {
        w.with_dilation(&[3, 2]).with_pads(&[2, 1], &[2, 1])
    }),
    shapes("block_3d", &[2, 3, 5, 6, 7], &[4, 3, 2, 3, 3], 1, |w| {
        w.with_stride(&[1, 2, 1]).with_pads(&[1, 0, 1], &[0, 1, 1])
    }),
    shapes("pointwise", &[2, 12, 5, 7], &[9, 12, 1, 1], 1, |w| w),
    shapes(
        "pointwise_whole_words",
        &[1, 16, 8, 16],
        &[72, 16, 1, 1],
        1,
        |w| w,
    ),
    shapes("pointwise_stride_2", &[1, 6, 7, 8], &[5, 6, 1, 1], 1, |w| {
        w.with_stride(&[2, 2])
    }),
    shapes("groups", &[2, 6, 7, 5], &[9, 2, 3, 3], 3, |w| {
        w.with_pads(&[1, 1], &[1, 1])
    }),
    shapes("pointwise_groups", &[2, 6, 4, 5], &[4, 3, 1, 1], 2, |w| w),
    shapes("depthwise", &[2, 7, 9, 10], &[7, 1, 3, 3], 7, |w| {
        w.with_pads(&[1, 1], &[1, 1])
    }),
    shapes(
        "depthwise_stride_2",
        &[1, 5, 9, 13],
        &[5, 1, 3, 3],
        5,
        |w| w.with_stride(&[2, 2]).with_pads(&[1, 0], &[1, 2]),
    ),
    shapes("depthwise_dilated", &[1, 3, 11, 9], &[3, 1, 3, 2], 3, |w| {
        w.with_dilation(&[2, 3]).with_pads(&[2, 3], &[2, 1])
    }),
    shapes("depthwise_line", &[2, 8, 23], &[8, 1, 4], 8, |w| {
        w.with_pads(&[3], &[0])
    }),
    shapes(
        "depthwise_block",
        &[1, 2, 3, 5, 6],
        &[2, 1, 2, 3, 3],
        2,
        |w| w.with_pads(&[1, 1, 1], &[0, 1, 1]),
    ),
    shapes(
        "depthwise_multiplier",
        &[2, 3, 6, 5],
        &[6, 1, 3, 3],
        3,
        |w| w.with_pads(&[1, 1], &[1, 1]),
    ),
    // Sums long enough for split-K, and window tiles that span batch entries.
    shapes("deep", &[2, 192, 3, 3], &[16, 192, 3, 3], 1, |w| {
        w.with_pads(&[1, 1], &[1, 1])
    }),
    // The number of channels is a multiple of a kernel's block, so kernels gather one tap after the
    // other.
    shapes("deep_groups", &[2, 128, 4, 4], &[40, 64, 3, 3], 2, |w| {
        w.with_pads(&[1, 1], &[1, 1])
    }),
    shapes(
        "deep_block",
        &[3, 32, 3, 4, 5],
        &[16, 32, 2, 3, 3],
        1,
        |w| w.with_pads(&[1, 0, 1], &[0, 1, 1]).with_stride(&[1, 1, 2]),
    ),
    shapes("deep_7x7", &[1, 32, 9, 8], &[17, 32, 7, 7], 1, |w| {
        w.with_pads(&[3, 3], &[3, 3]).with_dilation(&[1, 2])
    }),
    shapes("one_window", &[3, 4, 5, 6], &[7, 4, 5, 6], 1, |w| w),
    shapes("padding_only", &[1, 2, 1, 1], &[3, 2, 2, 2], 1, |w| {
        w.with_stride(&[3, 3]).with_pads(&[4, 3], &[4, 3])
    }),
];

const EVERY_DTYPE: &[ConvCaseShapes] = &[
    shapes("small_plane", &[1, 2, 5, 4], &[3, 2, 3, 2], 1, |w| {
        w.with_pads(&[1, 1], &[1, 0]).with_stride(&[1, 2])
    }),
    shapes("small_depthwise", &[2, 3, 7], &[3, 1, 3], 3, |w| {
        w.with_pads(&[1], &[1])
    }),
    shapes("no_batch", &[0, 3, 4, 4], &[2, 3, 3, 3], 1, |w| w),
    shapes("no_channels", &[2, 0, 4], &[3, 0, 2], 1, |w| w),
    shapes("no_results", &[2, 3, 4], &[0, 3, 2], 1, |w| w),
    shapes("no_elements", &[1, 2, 0], &[3, 2, 2], 1, |w| {
        w.with_pads(&[1], &[2])
    }),
];

const ACTIVATIONS: [UnaryFn; 7] = [
    UnaryFn::Relu,
    UnaryFn::Sigmoid,
    UnaryFn::Tanh,
    UnaryFn::Gelu,
    UnaryFn::GeluTanh,
    UnaryFn::Silu,
    UnaryFn::Softplus,
];

/// Two cases: one without and one with a bias.
fn pair(s: &'static ConvCaseShapes, activation: Option<UnaryFn>, prefix: &str) -> [OpCase; 2] {
    [false, true].map(|biased| {
        let name = format!("{prefix}{}{}", s.name, if biased { "_bias" } else { "" });
        OpCase::new(name, move |c| {
            let dtype = c.dtype;
            let x = c.input("x", s.x, InputFill::Normal)?;
            let w = c.param_of("w", Type::new(dtype, s.w), InputFill::Normal)?;
            let mut operands = vec![x, w];
            if biased {
                operands.push(c.param_of("bias", Type::new(dtype, [s.w[0]]), InputFill::Normal)?);
            }
            let window = (s.window)(Window::new(s.x.len() - 2));
            let y = c
                .graph
                .add(Conv::new(window, s.groups, activation), &operands)?;
            c.output(y)
        })
    })
}

pub(super) fn all() -> Vec<OpCase> {
    let of = |list: &'static [ConvCaseShapes], only: &'static [DType]| {
        let cases = list.iter().flat_map(|s| pair(s, None, ""));
        cases.map(move |case| case.only(only))
    };
    let plane = FLOATS.iter().find(|s| s.name == "plane_3x3_2x5x9x7");
    let quads = FLOATS.iter().find(|s| s.name == "whole_quads");
    let depthwise = FLOATS.iter().find(|s| s.name == "depthwise");
    let activated = ACTIVATIONS.iter().flat_map(move |&f| {
        // The case `whole_quads` runs only with two activations, one short and one long formula.
        let long = matches!(f, UnaryFn::Relu | UnaryFn::Silu);
        let shapes = [plane, depthwise, quads.filter(|_| long)];
        let shapes = shapes.into_iter().flatten();
        shapes.flat_map(move |s| {
            let [_, biased] = pair(s, Some(f), &format!("{}_", f.name()));
            [biased.only(DType::FLOATS)]
        })
    });
    of(FLOATS, DType::FLOATS)
        .chain(of(EVERY_DTYPE, DType::NUMBERS))
        .chain(activated)
        .chain(fixed_value_cases())
        .chain(symbolic())
        .chain(views())
        .collect()
}

fn fixed_value_cases() -> Vec<OpCase> {
    vec![
        OpCase::new("written_line", |c| {
            let x = c.input("x", [1, 1, 4], counted(&[1, 1, 4]))?;
            let w = c.input("w", [1, 1, 3], InputFill::Values(vec![1.0, 2.0, 3.0]))?;
            let window = Window::new(1).with_pads(&[1], &[1]);
            let y = c.graph.conv(x, w, None, window, 1)?;
            c.output_expect(y, &[3.0, 8.0, 14.0, 8.0])
        }),
        OpCase::new("written_groups", |c| {
            let x = c.input("x", [1, 2, 3], counted(&[1, 2, 3]))?;
            let w = c.input("w", [2, 1, 2], InputFill::Values(vec![1.0, 1.0, 0.0, 2.0]))?;
            let bias = c.input("bias", [2], InputFill::Values(vec![1.0, 5.0]))?;
            let y = c.graph.conv(x, w, Some(bias), Window::new(1), 2)?;
            c.output_expect(y, &[2.0, 4.0, 13.0, 15.0])
        }),
        OpCase::new("empty_sum_is_the_bias", |c| {
            let x = c.input("x", [1, 0, 2], InputFill::Normal)?;
            let w = c.input("w", [2, 0, 1], InputFill::Normal)?;
            let bias = c.input("bias", [2], InputFill::Values(vec![3.0, 5.0]))?;
            let y = c.graph.conv(x, w, Some(bias), Window::new(1), 1)?;
            c.output_expect(y, &[3.0, 3.0, 5.0, 5.0])
        }),
        // Padding is skipped, so an infinite weight on padding does not give NaN.
        OpCase::new("relu_keeps_nan", |c| {
            let x = c.input("x", [1, 1, 2], InputFill::Values(vec![f64::NAN, -2.0]))?;
            let w = c.input("w", [1, 1, 1], InputFill::Values(vec![1.0]))?;
            let conv = Conv::new(Window::new(1), 1, Some(UnaryFn::Relu));
            let y = c.graph.add(conv, &[x, w])?;
            c.output_expect(y, &[f64::NAN, 0.0])
        })
        .only(DType::FLOATS),
        // 2049 is not an f16: rounding it before the bias is added would give 2048.
        OpCase::new("bias_is_added_before_rounding", |c| {
            let x = c.input("x", [1, 2, 1], InputFill::Values(vec![2048.0, 1.0]))?;
            let w = c.input("w", [1, 2, 1], InputFill::Values(vec![1.0, 1.0]))?;
            let bias = c.input("bias", [1], InputFill::Values(vec![1.0]))?;
            let y = c.graph.conv(x, w, Some(bias), Window::new(1), 1)?;
            c.output_expect(y, &[2050.0])
        })
        .only(&[DType::F32, DType::F16, DType::F64]),
        OpCase::new("integers_wrap_before_relu", |c| {
            let x = c.input("x", [1, 1, 1], InputFill::Values(vec![100.0]))?;
            let w = c.input("w", [2, 1, 1], InputFill::Values(vec![1.0, -1.0]))?;
            let bias = c.input("bias", [2], InputFill::Values(vec![100.0, -100.0]))?;
            let conv = Conv::new(Window::new(1), 1, Some(UnaryFn::Relu));
            let y = c.graph.add(conv, &[x, w, bias])?;
            c.output_expect(y, &[0.0, 56.0])
        })
        .only(&[DType::I8]),
    ]
}

fn symbolic() -> Vec<OpCase> {
    let of = |name, groups: usize, kernel: &'static [usize]| {
        OpCase::new(name, move |c| {
            let (b, s, dtype) = (c.sym("b", 2, 3), c.sym("s", 5, 9), c.dtype);
            let wide = s.checked_mul(&Dim::Known(2)).expect("small");
            let x = c.input("x", [b, 6.into(), s, wide], InputFill::Normal)?;
            let shape = [&[12, 6 / groups], kernel].concat();
            let w = c.param_of("w", Type::new(dtype, shape.as_slice()), InputFill::Normal)?;
            let bias = c.param_of("bias", Type::new(dtype, [12]), InputFill::Normal)?;
            let pad = kernel[0] / 2;
            let window = match pad {
                0 => Window::new(2),
                _ => Window::new(2)
                    .with_stride(&[1, 2])
                    .with_pads(&[pad, pad], &[pad, pad]),
            };
            let y = c.graph.conv(x, w, Some(bias), window, groups)?;
            c.output(y)
        })
        .only(DType::FLOATS)
    };
    vec![
        of("symbolic_3x3", 1, &[3, 3]),
        of("symbolic_depthwise", 6, &[3, 3]),
        of("symbolic_pointwise", 2, &[1, 1]),
    ]
}

/// Operands that are not row-major.
fn views() -> Vec<OpCase> {
    let of = |name, channels: usize, groups: usize, kernel: usize| {
        OpCase::new(name, move |c| {
            let dtype = c.dtype;
            // Channels-last data, and a slice of each row.
            let x = c.input("x", [2, 8, 6, channels + 1], InputFill::Normal)?;
            let x = c.graph.narrow(x, 3, 1, channels)?;
            let x = c.graph.transpose(x, &[0, 3, 1, 2])?;
            let own = channels / groups;
            let w = Type::new(dtype, [own, kernel, kernel, 8]);
            let w = c.param_of("w", w, InputFill::Normal)?;
            let w = c.graph.transpose(w, &[3, 0, 1, 2])?;
            let y = c.graph.conv(x, w, None, Window::new(2), groups)?;
            c.output(y)
        })
        .only(DType::FLOATS)
    };
    vec![
        of("channels_last", 4, 1, 3),
        of("channels_last_pointwise", 6, 1, 1),
        of("channels_last_depthwise", 8, 8, 2),
    ]
}

pub(super) fn rejects() -> Vec<RejectCase> {
    fn build(
        g: &mut Graph,
        x: &[usize],
        w: &[usize],
        groups: usize,
        bias: Option<usize>,
    ) -> Result<Value, OpError> {
        let x = g.input("x", Type::new(DType::F32, x))?;
        let w = g.input("w", Type::new(DType::F32, w))?;
        let bias = bias
            .map(|n| g.input("bias", Type::new(DType::F32, [n])))
            .transpose()?;
        g.conv(x, w, bias, Window::new(1), groups)
    }
    vec![
        reject("rank", "expected rank 3 to 5", |g| {
            build(g, &[3, 4], &[2, 3, 1], 1, None)
        }),
        reject("rank_of_w", "expected rank 3", |g| {
            build(g, &[1, 3, 4], &[2, 3, 1, 1], 1, None)
        }),
        reject(
            "channels",
            "channels of a group and of w: 3 and 4 differ",
            |g| build(g, &[1, 3, 5], &[2, 4, 1], 1, None),
        ),
        reject("groups_of_x", "2 does not divide 3 channels", |g| {
            build(g, &[1, 3, 5], &[2, 1, 1], 2, None)
        }),
        reject("groups_of_w", "2 does not divide 3 channels", |g| {
            build(g, &[1, 4, 5], &[3, 2, 1], 2, None)
        }),
        reject("no_groups", "0 does not divide", |g| {
            build(g, &[1, 4, 5], &[3, 4, 1], 0, None)
        }),
        reject(
            "bias",
            "bias and channels of the result: 3 and 2 differ",
            |g| build(g, &[1, 4, 5], &[2, 4, 1], 1, Some(3)),
        ),
        reject("too_small", "does not fit spatial axis 0", |g| {
            build(g, &[1, 4, 5], &[2, 4, 6], 1, None)
        }),
        reject("no_taps", "must be known and between", |g| {
            build(g, &[1, 4, 5], &[2, 4, 0], 1, None)
        }),
        reject("symbolic_taps", "must be known", |g| {
            let x = g.input("x", Type::new(DType::F32, [1, 1, 5]))?;
            let w = Type::new(DType::F32, [Dim::Known(1), Dim::Known(1), Dim::sym("k")]);
            let w = g.input("w", w)?;
            g.conv(x, w, None, Window::new(1), 1)
        }),
        reject("lists", "2 values for 1 spatial axes", |g| {
            let x = g.input("x", Type::new(DType::F32, [1, 1, 5]))?;
            let w = g.input("w", Type::new(DType::F32, [1, 1, 2]))?;
            g.conv(x, w, None, Window::new(2), 1)
        }),
        reject("activation_to_truth_values", "is_nan gives bool", |g| {
            let x = g.input("x", Type::new(DType::F32, [1, 1, 5]))?;
            let w = g.input("w", Type::new(DType::F32, [1, 1, 2]))?;
            let conv = Conv::new(Window::new(1), 1, Some(UnaryFn::IsNan));
            g.add(conv, &[x, w])
        }),
    ]
}
