//! Test cases of int8 convolutions.

use super::QuantizedConv;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::ops::window::Window;
use crate::types::{Shape, Type};

/// The operator for these windows, with zero points inside the ranges of their dtypes.
fn op(window: Window, groups: usize, x: DType, to: DType) -> QuantizedConv {
    let Window {
        stride,
        pad_before,
        pad_after,
        dilation,
    } = window;
    let (lo, hi) = if to == DType::U8 {
        (0, 255)
    } else {
        (-128, 127)
    };
    QuantizedConv {
        stride,
        pad_before,
        pad_after,
        dilation,
        groups,
        x_zero: if x == DType::U8 { 131 } else { -3 },
        w_zero: 0,
        y_zero: lo + 77,
        lo,
        hi,
        to,
    }
}

/// A convolution given by its shapes.
struct QuantizedConvCaseShapes {
    name: &'static str,
    x: &'static [usize],
    w: &'static [usize],
    groups: usize,
    window: fn(Window) -> Window,
}

const SHAPES: &[QuantizedConvCaseShapes] = &[
    QuantizedConvCaseShapes {
        name: "pointwise",
        x: &[2, 12, 5, 7],
        w: &[9, 12, 1, 1],
        groups: 1,
        window: |w| w,
    },
    QuantizedConvCaseShapes {
        name: "plane_3x3",
        x: &[2, 5, 9, 7],
        w: &[7, 5, 3, 3],
        groups: 1,
        window: |w| w.with_pads(&[1, 1], &[1, 1]),
    },
    QuantizedConvCaseShapes {
        name: "first_layer_7x7_stride_2",
        x: &[1, 3, 21, 18],
        w: &[8, 3, 7, 7],
        groups: 1,
        window: |w| w.with_stride(&[2, 2]).with_pads(&[3, 3], &[3, 3]),
    },
    QuantizedConvCaseShapes {
        name: "asymmetric",
        x: &[1, 4, 8, 9],
        w: &[3, 4, 2, 3],
        groups: 1,
        window: |w| {
            w.with_stride(&[3, 1])
                .with_pads(&[2, 0], &[0, 3])
                .with_dilation(&[1, 2])
        },
    },
    QuantizedConvCaseShapes {
        name: "groups",
        x: &[2, 6, 7, 5],
        w: &[9, 2, 3, 3],
        groups: 3,
        window: |w| w.with_pads(&[1, 1], &[1, 1]),
    },
    QuantizedConvCaseShapes {
        name: "depthwise_stride_2",
        x: &[1, 5, 9, 13],
        w: &[5, 1, 3, 3],
        groups: 5,
        window: |w| w.with_stride(&[2, 2]).with_pads(&[1, 0], &[1, 2]),
    },
    QuantizedConvCaseShapes {
        name: "line",
        x: &[2, 3, 19],
        w: &[5, 3, 4],
        groups: 1,
        window: |w| w.with_stride(&[2]).with_pads(&[3], &[0]),
    },
    QuantizedConvCaseShapes {
        name: "block",
        x: &[1, 2, 3, 4, 5],
        w: &[3, 2, 2, 3, 2],
        groups: 1,
        window: |w| w.with_pads(&[1, 0, 1], &[0, 1, 1]),
    },
    QuantizedConvCaseShapes {
        name: "many_channels_3x3",
        x: &[2, 13, 5, 7],
        w: &[14, 13, 3, 3],
        groups: 1,
        window: |w| w.with_pads(&[1, 0], &[1, 2]),
    },
    QuantizedConvCaseShapes {
        name: "pointwise_stride_2",
        x: &[1, 5, 9, 8],
        w: &[4, 5, 1, 1],
        groups: 1,
        window: |w| w.with_stride(&[2, 2]),
    },
    QuantizedConvCaseShapes {
        name: "pointwise_one_window",
        x: &[3, 70, 1, 1],
        w: &[9, 70, 1, 1],
        groups: 1,
        window: |w| w,
    },
    QuantizedConvCaseShapes {
        name: "one_window_of_all",
        x: &[1, 12, 3, 2],
        w: &[6, 12, 3, 2],
        groups: 1,
        window: |w| w,
    },
    QuantizedConvCaseShapes {
        name: "no_batch",
        x: &[0, 3, 4, 4],
        w: &[2, 3, 3, 3],
        groups: 1,
        window: |w| w,
    },
    QuantizedConvCaseShapes {
        name: "no_channels",
        x: &[2, 0, 4],
        w: &[3, 0, 2],
        groups: 1,
        window: |w| w,
    },
];

/// A case with weights and results of these dtypes.
fn shaped(s: &'static QuantizedConvCaseShapes, w: DType, to: DType) -> OpCase {
    let name = format!("{}_{}_to_{}", s.name, w.name(), to.name());
    OpCase::new(name, move |c| {
        let channels = s.w[0];
        let x = c.input("x", s.x, InputFill::Bytes)?;
        let scales = Type::new(DType::F32, [channels]);
        let own = c.param_of("w", Type::new(w, s.w), InputFill::Bytes)?;
        let scale = c.param_of("scale", scales.clone(), InputFill::Uniform(0.0002, 0.004))?;
        let bias = c.param_of("bias", scales, InputFill::Uniform(-40.0, 40.0))?;
        let window = (s.window)(Window::new(s.x.len() - 2));
        let mut op = op(window, s.groups, c.dtype, to);
        op.w_zero = if w == DType::U8 { 120 } else { 0 };
        let y = c.graph.quantized_conv(op, [x, own, scale, bias])?;
        c.output(y)
    })
}

pub(super) fn all() -> Vec<OpCase> {
    let plain = SHAPES.iter().map(|s| shaped(s, DType::I8, DType::U8));
    let others = SHAPES[..4].iter().flat_map(|s| {
        let signed = shaped(s, DType::I8, DType::I8);
        [signed, shaped(s, DType::U8, DType::U8)]
    });
    plain.chain(others).chain(fixed_value_cases()).collect()
}

fn fixed_value_cases() -> Vec<OpCase> {
    // Two channels of two elements: weights of different signs, ties that round to even, and both
    // bounds.
    let of = |name, bias: [f64; 2], lo: i64, expected: &'static [f64]| {
        OpCase::new(name, move |c| {
            let x = c.input("x", [1, 1, 3], InputFill::Values(vec![0.0, 10.0, 127.0]))?;
            let w = Type::new(DType::I8, [2, 1, 1]);
            let w = c.param_of("w", w, InputFill::Values(vec![1.0, -128.0]))?;
            let scales = Type::new(DType::F32, [2]);
            let scale = c.param_of("scale", scales.clone(), InputFill::Values(vec![0.25, 1.0]))?;
            let bias = c.param_of("bias", scales, InputFill::Values(bias.to_vec()))?;
            let mut op = op(Window::new(1), 1, c.dtype, DType::U8);
            (op.x_zero, op.y_zero, op.lo) = (0, 10, lo);
            let y = c.graph.quantized_conv(op, [x, w, scale, bias])?;
            c.output_expect(y, expected)
        })
    };
    let symbolic = OpCase::new("symbolic", |c| {
        let (b, s) = (c.sym("b", 2, 3), c.sym("s", 5, 9));
        let x = c.input("x", [b, 6.into(), s, 7.into()], InputFill::Bytes)?;
        let w = c.param_of("w", Type::new(DType::I8, [4, 6, 3, 3]), InputFill::Bytes)?;
        let scales = Type::new(DType::F32, [4]);
        let scale = c.param_of("scale", scales.clone(), InputFill::Uniform(0.0002, 0.004))?;
        let bias = c.param_of("bias", scales, InputFill::Uniform(-40.0, 40.0))?;
        let window = Window::new(2)
            .with_stride(&[1, 2])
            .with_pads(&[1, 1], &[1, 1]);
        let op = op(window, 1, c.dtype, DType::I8);
        let y = c.graph.quantized_conv(op, [x, w, scale, bias])?;
        c.output(y)
    });
    // Weights that are an input of a run, and an operand that is not row-major.
    let given = OpCase::new("given_weights_and_a_view", |c| {
        let x = c.input("x", [2, 8, 6, 5], InputFill::Bytes)?;
        let x = c.graph.narrow(x, 3, 1, 4)?;
        let x = c.graph.transpose(x, &[0, 3, 1, 2])?;
        let w = c.input_of("w", Type::new(DType::I8, [3, 4, 2, 2]), InputFill::Bytes)?;
        let scales = Type::new(DType::F32, [3]);
        let scale = c.input_of("scale", scales.clone(), InputFill::Uniform(0.0002, 0.004))?;
        let bias = c.input_of("bias", scales, InputFill::Uniform(-40.0, 40.0))?;
        let op = op(Window::new(2), 1, c.dtype, DType::U8);
        let y = c.graph.quantized_conv(op, [x, w, scale, bias])?;
        c.output(y)
    });
    vec![
        of(
            "written",
            [0.0, 1275.0],
            0,
            &[10.0, 12.0, 42.0, 255.0, 5.0, 0.0],
        ),
        of(
            "bounded_below",
            [0.0, 1275.0],
            12,
            &[12.0, 12.0, 42.0, 255.0, 12.0, 12.0],
        ),
        symbolic,
        given,
    ]
}

pub(super) fn rejects() -> Vec<RejectCase> {
    fn build(
        g: &mut Graph,
        scale: impl Into<Shape>,
        change: fn(&mut QuantizedConv),
    ) -> Result<Value, OpError> {
        let x = g.input("x", Type::new(DType::U8, [1, 4, 5]))?;
        let w = g.input("w", Type::new(DType::I8, [2, 4, 1]))?;
        let scale = g.input("scale", Type::new(DType::F32, scale))?;
        let bias = g.input("bias", Type::new(DType::F32, [2]))?;
        let mut op = op(Window::new(1), 1, DType::U8, DType::U8);
        change(&mut op);
        g.quantized_conv(op, [x, w, scale, bias])
    }
    vec![
        reject(
            "scales",
            "bias and channels of the result: 3 and 2 differ",
            |g| build(g, [3], |_| ()),
        ),
        reject("zero_point", "-1 does not fit u8", |g| {
            build(g, [2], |op| op.x_zero = -1)
        }),
        reject("bounds", "9 is above hi, 8", |g| {
            build(g, [2], |op| (op.lo, op.hi) = (9, 8))
        }),
        reject("result", "i32 is neither u8 nor i8", |g| {
            build(g, [2], |op| op.to = DType::I32)
        }),
        reject("groups", "3 does not divide", |g| {
            build(g, [2], |op| op.groups = 3)
        }),
    ]
}
