//! Operands large enough for several threads. The results must have the same bits on one thread and
//! on several, and agree with the reference. The regular test cases of the operators are small.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tercet_cpu::{CpuBackend, ReferenceBackend};
use tercet_ir::accuracy::tolerance;
use tercet_ir::ops::{
    CumSum, PadMode, PoolFn, Recurrence, RecurrentCell, SampleOptions, ScanFn, ScatterReduce,
    Window,
};
use tercet_ir::{
    Backend, CompileOptions, DType, Graph, OpError, Scheme, Tensor, TensorType, Type, Value,
};

/// Numbers without a period, so that no two rows or columns are equal.
fn numbers(dtype: DType, shape: &[usize]) -> Tensor {
    let ty = TensorType::new(dtype, shape);
    let mut state = 12345u32;
    let values: Vec<f64> = (0..ty.numel())
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f64::from(state >> 8) / f64::from(1 << 22) - 2.0
        })
        .collect();
    match dtype.is_float() {
        true => Tensor::from_f64s(ty, &values).unwrap(),
        false => {
            let whole: Vec<i64> = values.iter().map(|x| (x * 40.0) as i64).collect();
            Tensor::from_i64s(ty, &whole).unwrap()
        }
    }
}

fn indices(count: usize, of: usize) -> Tensor {
    let values: Vec<i32> = (0..count)
        .map(|i| (i * 7919 % of) as i32 - if i % 3 == 0 { of as i32 } else { 0 })
        .collect();
    Tensor::from_slice(&[count], &values).unwrap()
}

/// Runs a graph over `inputs` on the reference, on one thread and on four, twice each.
fn check(inputs: &[Tensor], build: impl Fn(&mut Graph, &[Value]) -> Result<Value, OpError>) {
    let mut g = Graph::new();
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("x{i}")).collect();
    let mut values = Vec::new();
    for (name, x) in names.iter().zip(inputs) {
        let ty = Type::new(x.dtype(), x.shape());
        values.push(g.input(name, ty).unwrap());
    }
    let y = build(&mut g, &values).unwrap();
    let doc = g.node(y.node).op.kind().doc();
    for port in 0..g.node(y.node).outputs.len() as u8 {
        g.output(&format!("y{port}"), y.port(port)).unwrap();
    }
    let named: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(inputs).collect();
    let run = |backend: &dyn Backend| {
        let mut exe = backend.compile(&g, &CompileOptions::new()).unwrap();
        let mut outputs = exe.run(&named).unwrap();
        outputs.extend(exe.run(&named).unwrap());
        outputs
    };
    let want = run(&ReferenceBackend::new());
    let one = run(&CpuBackend::with_threads(1).unwrap());
    let four = run(&CpuBackend::with_threads(4).unwrap());
    for ((want, one), four) in want.iter().zip(&one).zip(&four) {
        assert_eq!(one, four, "{} depends on the number of threads", doc.name);
        assert_eq!(one.ty(), want.ty(), "{}", doc.name);
        let (got, want) = (one.to_f64s(), want.to_f64s());
        let scale = want.iter().fold(f64::from(f32::MIN_POSITIVE), |m, x| {
            if x.is_finite() { m.max(x.abs()) } else { m }
        });
        let allowed = tolerance(doc.accuracy, one.dtype());
        for (i, (got, want)) in got.iter().zip(&want).enumerate() {
            let units = allowed.error_in_tolerances(*got, *want, scale);
            assert!(
                units <= 1.0,
                "{} element {i}: {got}, expected {want}",
                doc.name
            );
        }
    }
}

#[test]
fn gathers() {
    let rows = [numbers(DType::F32, &[500, 161]), indices(1000, 500)];
    check(&rows, |g, x| g.gather(x[0], x[1], 0));
    let columns = [numbers(DType::F16, &[401, 500]), indices(333, 500)];
    check(&columns, |g, x| g.gather(x[0], x[1], 1));
    let packed = [numbers(DType::U8, &[500, 340]), indices(900, 500)];
    check(&packed, |g, x| g.gather(x[0], x[1], 0));
}

#[test]
fn elements_and_slices_by_index() {
    let places = |shape: &[usize], of: usize| {
        let flat = indices(shape.iter().product(), of);
        flat.reshaped(shape).unwrap()
    };
    for dtype in [DType::F32, DType::F16, DType::U8, DType::F64] {
        let x = [numbers(dtype, &[401, 130]), places(&[401, 300], 130)];
        check(&x, |g, x| g.gather_elements(x[0], x[1], 1));
        let x = [numbers(dtype, &[130, 401]), places(&[700, 390], 130)];
        check(&x, |g, x| g.gather_elements(x[0], x[1], 0));
        let x = [numbers(dtype, &[40, 50, 61]), places(&[5000, 2], 40)];
        check(&x, |g, x| g.gather_nd(x[0], x[1], 0));
        let x = [numbers(dtype, &[40, 50, 61]), places(&[40, 90, 1], 50)];
        check(&x, |g, x| g.gather_nd(x[0], x[1], 1));
    }
    check(&[places(&[3000], 77)], |g, x| {
        g.one_hot(x[0], 77, DType::F16)
    });
}

#[test]
fn indices_that_repeat_along_axes() {
    let places = |shape: &[usize], of: usize| {
        let flat = indices(shape.iter().product(), of);
        flat.reshaped(shape).unwrap()
    };
    for dtype in [DType::F32, DType::F16, DType::U8, DType::I64] {
        // Whole rows, of the first and of a middle axis.
        let x = [numbers(dtype, &[90, 7, 40, 11]), places(&[70, 5, 1, 1], 90)];
        check(&x, |g, x| {
            let part = g.slice(x[0], &[0; 4], &[90, 5, 40, 11], &[1; 4])?;
            let wide = g.expand(x[1], [70usize, 5, 40, 11])?;
            g.gather_elements(part, wide, 0)
        });
        let x = [numbers(dtype, &[9, 60, 401]), places(&[9, 300, 1], 60)];
        check(&x, |g, x| {
            let wide = g.expand(x[1], [9usize, 300, 401])?;
            g.gather_elements(x[0], wide, 1)
        });
        // Rows that end before those of the data, and indices that repeat along other axes.
        check(&x, |g, x| {
            let wide = g.expand(x[1], [9usize, 300, 390])?;
            g.gather_elements(x[0], wide, 1)
        });
        let x = [numbers(dtype, &[30, 60, 40]), places(&[50, 40], 60)];
        check(&x, |g, x| {
            let wide = g.expand(x[1], [30usize, 50, 40])?;
            g.gather_elements(x[0], wide, 1)
        });
        // Transposed indices of rows.
        let x = [numbers(dtype, &[60, 50, 33]), places(&[50, 40], 60)];
        check(&x, |g, x| {
            let turned = g.transpose(x[1], &[1, 0])?;
            let column = g.unsqueeze(turned, 2)?;
            let wide = g.expand(column, [40usize, 50, 33])?;
            g.gather_elements(x[0], wide, 0)
        });
    }
}

#[test]
fn long_lines_with_replaced_elements() {
    for dtype in [DType::F32, DType::F16, DType::U8, DType::I64] {
        let replace = ScatterReduce::Replace;
        // A single line, whose data may be one repeated element.
        let x = [
            numbers(dtype, &[1]),
            indices(50_000, 70_000),
            numbers(dtype, &[50_000]),
        ];
        check(&x, |g, x| {
            let line = g.expand(x[0], [70_000usize])?;
            g.scatter_elements(line, x[1], x[2], 0, replace)
        });
        // Several updates of an element: the last one remains.
        let x = [
            numbers(dtype, &[20_000, 3]),
            indices(90_000, 20_000).reshaped(&[30_000, 3]).unwrap(),
            numbers(dtype, &[30_000, 3]),
        ];
        check(&x, |g, x| g.scatter_elements(x[0], x[1], x[2], 0, replace));
        // Transposed data, with and without a sort.
        let x = [
            numbers(dtype, &[40, 300]),
            indices(12_000, 300).reshaped(&[300, 40]).unwrap(),
            numbers(dtype, &[300, 40]),
        ];
        for &reduce in ScatterReduce::ALL {
            check(&x, |g, x| {
                let turned = g.transpose(x[0], &[1, 0])?;
                g.scatter_elements(turned, x[1], x[2], 0, reduce)
            });
            check(&x, |g, x| {
                let turned = g.transpose(x[0], &[1, 0])?;
                let some = g.slice(x[1], &[0, 0], &[200, 30], &[1, 1])?;
                let updates = g.slice(x[2], &[0, 0], &[200, 30], &[1, 1])?;
                g.scatter_elements(turned, some, updates, 0, reduce)
            });
        }
    }
}

#[test]
fn updates_by_index() {
    for dtype in [DType::F32, DType::BF16, DType::I32] {
        for &reduce in ScatterReduce::ALL {
            let idx = indices(40_000, 3000);
            let x = [
                numbers(dtype, &[3000, 20]),
                idx.reshaped(&[2000, 20]).unwrap(),
                numbers(dtype, &[2000, 20]),
            ];
            check(&x, |g, x| g.scatter_elements(x[0], x[1], x[2], 0, reduce));
            let idx = indices(900, 500).reshaped(&[900, 1]).unwrap();
            let x = [
                numbers(dtype, &[500, 201]),
                idx,
                numbers(dtype, &[900, 201]),
            ];
            check(&x, |g, x| g.scatter_nd(x[0], x[1], x[2], reduce));
        }
        let x = [numbers(dtype, &[9000, 33]), indices(9000, 700)];
        check(&x, |g, x| g.scatter_add(x[0], x[1], 700usize));
    }
}

#[test]
fn concatenations_of_dense_operands_and_views() {
    let parts = [
        numbers(DType::F32, &[300, 401]),
        numbers(DType::F32, &[401, 300]),
    ];
    for axis in [0, 1] {
        check(&parts, |g, x| {
            let turned = g.transpose(x[1], &[1, 0])?;
            g.concat(&[x[0], turned, x[0]], axis)
        });
    }
}

#[test]
fn windows_and_paddings() {
    let x = [numbers(DType::F32, &[401, 500])];
    for &mode in PadMode::ALL {
        check(&x, |g, x| g.pad(x[0], &[3, 7], &[2, 5], mode, 0.0));
    }
    // Rows that are not padded, and an axis between them.
    let x3 = [numbers(DType::F16, &[9, 70, 80])];
    for (before, after) in [
        ([0, 5, 0], [0, 3, 0]),
        ([2, 0, 0], [1, 0, 0]),
        ([1, 0, 0], [0, 0, 4]),
    ] {
        for &mode in PadMode::ALL {
            let value = if mode == PadMode::Constant { 0.5 } else { 0.0 };
            check(&x3, |g, x| g.pad(x[0], &before, &after, mode, value));
        }
    }
    let starts = Tensor::from_slice(&[2], &[-300i32, 900]).unwrap();
    let window = [x[0].clone(), starts];
    check(&window, |g, x| g.dynamic_slice(x[0], x[1], [390, 450]));
}

#[test]
fn extremes() {
    for dtype in [DType::F32, DType::BF16, DType::I8, DType::I64] {
        let rows = [numbers(dtype, &[50, 4001])];
        check(&rows, |g, x| g.top_k(x[0], 40, 1, true));
        check(&rows, |g, x| g.top_k(x[0], 100, 1, true));
        let long = [numbers(dtype, &[3, 20_011])];
        check(&long, |g, x| g.top_k(x[0], 100, 1, false));
        check(&rows, |g, x| g.sort(x[0], 1, false));
        check(&rows, |g, x| g.arg_max(x[0], 1, false));
        let middle = [numbers(dtype, &[7, 300, 100])];
        check(&middle, |g, x| g.top_k(x[0], 3, 1, false));
        check(&middle, |g, x| g.arg_min(x[0], 1, true));
        let columns = [numbers(dtype, &[2, 21, 5003])];
        check(&columns, |g, x| g.arg_max(x[0], 1, false));
    }
}

#[test]
fn reductions() {
    let shapes: [(&[usize], &[usize]); 8] = [
        (&[1500, 49], &[1]),
        (&[300_007], &[0]),
        (&[3, 100_003], &[1]),
        (&[301, 701], &[1]),
        (&[701, 301], &[0]),
        (&[140, 1301], &[0]),
        (&[7, 200, 151], &[1]),
        (&[20, 101, 100], &[0, 2]),
    ];
    for dtype in [DType::F32, DType::F16, DType::F64, DType::I32, DType::U8] {
        for (shape, axes) in shapes {
            let x = [numbers(dtype, shape)];
            check(&x, |g, x| g.reduce_sum(x[0], axes, false));
            check(&x, |g, x| g.reduce_max(x[0], axes, false));
            check(&x, |g, x| g.reduce_min(x[0], axes, true));
        }
    }
    let x = [numbers(DType::F32, &[500, 301])];
    check(&x, |g, x| {
        let turned = g.transpose(x[0], &[1, 0])?;
        g.reduce_mean(turned, &[0], false)
    });
}

#[test]
fn scans_and_log_softmax() {
    for dtype in [DType::F32, DType::BF16, DType::I64] {
        for (shape, axis) in [(&[400, 401][..], 1), (&[11, 100, 200], 1), (&[90, 777], 0)] {
            let x = [numbers(dtype, shape)];
            for &f in ScanFn::ALL {
                let (exclusive, reverse) = (f == ScanFn::Sum, f == ScanFn::Max);
                let scan = CumSum {
                    axis,
                    f,
                    exclusive,
                    reverse,
                };
                check(&x, |g, x| g.scan(x[0], scan.clone()));
            }
            if dtype.is_float() {
                check(&x, |g, x| g.log_softmax(x[0], axis));
            }
        }
    }
}

#[test]
fn packed_weights() {
    for &scheme in Scheme::ALL.iter().filter(|s| s.storage() == DType::U8) {
        let row = scheme.row_bytes(512).unwrap();
        // Weight bytes in which no f16 scale is an infinity.
        let bytes: Vec<u8> = (0..401 * row).map(|i| (i * 7 % 120) as u8).collect();
        let w = [Tensor::from_slice(&[401, row], &bytes).unwrap()];
        check(&w, |g, x| g.dequantize(x[0], scheme));
    }
}

#[test]
fn random_numbers() {
    for &dtype in DType::FLOATS {
        check(&[], |g, _| g.rng_uniform([401, 503], dtype, -1.0, 3.0, 9));
        check(&[], |g, _| g.rng_normal([401, 503], dtype, 1.0, 2.0, 9));
        let logits = [numbers(dtype, &[41, 5001])];
        for (top_k, top_p, temperature) in [(0, 1.0, 0.0), (40, 0.95, 0.7), (0, 0.9, 1.0)] {
            let options = SampleOptions {
                top_k,
                top_p,
                temperature,
            };
            check(&logits, |g, x| g.sample(x[0], options, 5));
        }
    }
}

#[test]
fn strided_transposed_convolutions() {
    let window = |stride: &[usize], before: &[usize], after: &[usize]| {
        let window = Window::new(stride.len()).with_stride(stride);
        Window {
            pad_before: before.to_vec(),
            pad_after: after.to_vec(),
            ..window
        }
    };
    let x = numbers(DType::F32, &[2, 16, 20, 31]);
    for (own, groups, kernel) in [
        (24, 1, [4, 3]),
        (6, 4, [3, 5]),
        (1, 16, [4, 4]),
        (2, 2, [1, 2]),
    ] {
        let w = numbers(DType::F32, &[16, own, kernel[0], kernel[1]]);
        let bias = numbers(DType::F32, &[own * groups]);
        for (stride, before, after, more) in [
            ([2, 2], [1, 1], [1, 0], [1, 0]),
            ([3, 2], [0, 1], [0, 1], [2, 1]),
            ([1, 4], [1, 0], [0, 0], [0, 3]),
        ] {
            let x = [x.clone(), w.clone(), bias.clone()];
            check(&x, |g, x| {
                let window = window(&stride, &before, &after);
                g.conv_transpose(x[0], x[1], Some(x[2]), window, &more, groups)
            });
        }
    }
    let line = [
        numbers(DType::F32, &[1, 64, 100]),
        numbers(DType::F32, &[64, 32, 16]),
    ];
    check(&line, |g, x| {
        let window = window(&[8], &[4], &[4]).with_dilation(&[2]);
        g.conv_transpose(x[0], x[1], None, window, &[0], 1)
    });
    let half = [
        numbers(DType::F16, &[1, 8, 9, 9]),
        numbers(DType::F16, &[8, 5, 3, 3]),
    ];
    check(&half, |g, x| {
        g.conv_transpose(
            x[0],
            x[1],
            None,
            window(&[2, 2], &[1, 1], &[1, 1]),
            &[0, 0],
            1,
        )
    });
}

#[test]
fn recurrent_layers_by_rows_and_by_blocks() {
    for cell in [
        RecurrentCell::Lstm,
        RecurrentCell::Gru,
        RecurrentCell::Tanh,
        RecurrentCell::Relu,
    ] {
        // Rows on different threads, then large steps whose blocks are on different threads.
        for (batch, steps, size) in [(19, 7, 37), (1, 5, 300), (3, 0, 8), (2, 4, 1)] {
            let wide = cell.gates() * size;
            let small = |shape: &[usize]| {
                let x = numbers(DType::F32, shape);
                let values: Vec<f64> = x.to_f64s().iter().map(|x| x * 0.05).collect();
                Tensor::from_f64s(x.ty().clone(), &values).unwrap()
            };
            let mut x = vec![
                numbers(DType::F32, &[batch, steps, wide]),
                small(&[size, wide]),
                small(&[wide]),
                small(&[batch, size]),
            ];
            x.extend(cell.has_cell_state().then(|| small(&[batch, size])));
            for reverse in [false, true] {
                check(&x, |g, x| g.add(Recurrence { cell, reverse }, x));
            }
        }
    }
}

#[test]
fn coordinates_of_nonzero_elements() {
    for dtype in [DType::F32, DType::F16, DType::I8, DType::I64] {
        let x = numbers(dtype, &[3, 70, 401]);
        let kept: Vec<f64> = x
            .to_f64s()
            .iter()
            .map(|x| if *x > 1.0 { *x } else { 0.0 })
            .collect();
        let x = Tensor::from_f64s(x.ty().clone(), &kept).unwrap();
        check(&[x], |g, x| g.non_zero(x[0]));
    }
    check(&[numbers(DType::F32, &[0, 5])], |g, x| g.non_zero(x[0]));
    check(&[numbers(DType::F32, &[])], |g, x| g.non_zero(x[0]));
}

#[test]
fn integers_of_every_width() {
    use tercet_ir::scalar::{BinaryFn, UnaryFn};
    for dtype in [DType::I64, DType::I32, DType::U32, DType::I8, DType::U8] {
        let x = [numbers(dtype, &[70, 401]), numbers(dtype, &[401])];
        for f in [
            BinaryFn::Add,
            BinaryFn::Mul,
            BinaryFn::Div,
            BinaryFn::Rem,
            BinaryFn::Max,
            BinaryFn::Xor,
            BinaryFn::Shl,
        ] {
            check(&x, |g, x| g.binary(f, x[0], x[1]));
            // A constant, a column, and operands that are not contiguous.
            check(&x, |g, x| {
                let five = g.scalar(dtype, 5.0)?;
                g.binary(f, x[0], five)
            });
            check(&x, |g, x| {
                let column = g.slice(x[0], &[0, 7], &[70, 8], &[1, 1])?;
                g.binary(f, column, x[0])
            });
            check(&x, |g, x| {
                let part = g.slice(x[0], &[0, 1], &[70, 401], &[2, 3])?;
                let turned = g.transpose(part, &[1, 0])?;
                g.binary(f, turned, turned)
            });
        }
        for f in [UnaryFn::Neg, UnaryFn::Abs, UnaryFn::Sign, UnaryFn::Relu] {
            check(&x, |g, x| g.unary(f, x[0]));
        }
    }
    // Quotients that floats cannot express.
    let most = i64::MAX;
    let a = Tensor::from_slice(
        &[8],
        &[most, most - 1, i64::MIN, -7, 7, 1 << 53, (1 << 53) + 1, 0],
    )
    .unwrap();
    let b = Tensor::from_slice(&[8], &[3, most, -1, 2, 0, 3, 1, 5i64]).unwrap();
    for f in [BinaryFn::Div, BinaryFn::Rem] {
        check(&[a.clone(), b.clone()], |g, x| g.binary(f, x[0], x[1]));
    }
}

#[test]
fn pools_of_rows_of_every_length() {
    for dtype in [DType::F32, DType::F16, DType::U8] {
        for size in [[9, 11], [40, 56], [31, 700]] {
            let x = [numbers(dtype, &[2, 9, size[0], size[1]])];
            for (kernel, stride, dilation, pad) in [
                ([3, 3], [1, 1], [1, 1], 1),
                ([3, 3], [2, 2], [1, 1], 1),
                ([2, 5], [1, 3], [1, 2], 0),
                ([5, 5], [4, 4], [1, 1], 2),
                ([7, 7], [7, 7], [1, 1], 0),
            ] {
                let window = Window {
                    pad_before: vec![pad; 2],
                    pad_after: vec![pad; 2],
                    ..Window::new(2).with_stride(&stride).with_dilation(&dilation)
                };
                for f in [PoolFn::Max, PoolFn::Sum, PoolFn::Mean, PoolFn::Prod] {
                    if f == PoolFn::Mean && dtype == DType::U8 {
                        continue;
                    }
                    check(&x, |g, x| g.pool(x[0], f, &kernel, window.clone()));
                }
            }
        }
    }
}

/// `x` with some elements replaced by NaN, infinities and zeros of both signs.
fn with_special_values(x: &Tensor) -> Tensor {
    let special = [f64::NAN, f64::INFINITY, -0.0, 0.0, f64::NEG_INFINITY];
    let values: Vec<f64> = (x.to_f64s().iter().enumerate())
        .map(|(i, x)| match i % 97 {
            0 => special[i / 97 % special.len()],
            _ => *x,
        })
        .collect();
    Tensor::from_f64s(x.ty().clone(), &values).unwrap()
}

#[test]
fn pools_and_reductions_of_special_values() {
    let x = with_special_values(&numbers(DType::F32, &[2, 9, 40, 57]));
    for (kernel, stride) in [([3, 3], [1, 1]), ([3, 3], [2, 2]), ([5, 7], [3, 3])] {
        let window = Window {
            pad_before: vec![1; 2],
            pad_after: vec![1; 2],
            ..Window::new(2).with_stride(&stride)
        };
        for f in [PoolFn::Max, PoolFn::Min, PoolFn::Sum] {
            check(std::slice::from_ref(&x), |g, x| {
                g.pool(x[0], f, &kernel, window.clone())
            });
        }
    }
    let flat = x.reshaped(&[18, 2280]).unwrap();
    // Rows with zeros of both signs only.
    let zeros: Vec<f32> = (0..40 * 70)
        .map(|i| if i % 3 == i / 70 % 3 { 0.0 } else { -0.0 })
        .collect();
    let zeros = Tensor::from_slice(&[40, 70], &zeros).unwrap();
    for x in [flat, zeros] {
        for axis in [0, 1] {
            check(std::slice::from_ref(&x), |g, x| {
                g.reduce_max(x[0], &[axis], false)
            });
            check(std::slice::from_ref(&x), |g, x| {
                g.reduce_min(x[0], &[axis], false)
            });
        }
    }
}

#[test]
fn functions_of_two_broadcast_operands() {
    use tercet_ir::scalar::{BinaryFn, CompareFn};
    let shapes: [[&[usize]; 2]; 6] = [
        [&[5, 129, 67], &[67]],
        [&[5, 129, 67], &[129, 1]],
        [&[5, 1, 67], &[5, 129, 1]],
        [&[40, 701], &[1]],
        [&[1, 3], &[9000, 3]],
        [&[2, 3, 50, 70], &[3, 1, 1]],
    ];
    for dtype in [DType::F32, DType::I64, DType::F16] {
        for shapes in shapes {
            let mut x = shapes.map(|shape| numbers(dtype, shape));
            if dtype.is_float() {
                x[0] = with_special_values(&x[0]);
            }
            for f in [
                BinaryFn::Add,
                BinaryFn::Sub,
                BinaryFn::Mul,
                BinaryFn::Div,
                BinaryFn::Max,
                BinaryFn::Min,
            ] {
                check(&x, |g, x| g.binary(f, x[0], x[1]));
                check(&x, |g, x| g.binary(f, x[1], x[0]));
            }
            for &f in CompareFn::ALL {
                check(&x, |g, x| g.compare(f, x[1], x[0]));
            }
        }
    }
    // Booleans, and operands that share the memory of the result.
    let x = [
        numbers(DType::F32, &[7, 50, 61]),
        numbers(DType::F32, &[50, 1]),
    ];
    for f in [CompareFn::Eq, CompareFn::Ne] {
        check(&x, |g, x| {
            let zero = g.scalar(DType::F32, 0.0)?;
            let (a, b) = (
                g.compare(CompareFn::Gt, x[0], zero)?,
                g.compare(CompareFn::Lt, x[1], zero)?,
            );
            g.compare(f, a, b)
        });
    }
    check(&x, |g, x| {
        let sorted = g.sort(x[0], 2, false)?;
        g.mul(sorted, x[1])
    });
}

#[test]
fn chains_of_fused_steps() {
    use tercet_ir::scalar::CompareFn;
    let x = [with_special_values(&numbers(DType::F32, &[70, 401]))];
    for (low, high) in [(0.0, 1.0), (-0.5, 0.5), (0.2, 1.5)] {
        check(&x, |g, x| {
            let (low, high) = (g.scalar(DType::F32, low)?, g.scalar(DType::F32, high)?);
            let raised = g.max(x[0], low)?;
            g.min(raised, high)
        });
        check(&x, |g, x| {
            let (scale, shift) = (g.scalar(DType::F32, 0.2)?, g.scalar(DType::F32, 0.5)?);
            let (low, high) = (g.scalar(DType::F32, low)?, g.scalar(DType::F32, high)?);
            let y = g.mul(x[0], scale)?;
            let y = g.plus(y, shift)?;
            let raised = g.max(y, low)?;
            let y = g.min(raised, high)?;
            // The product is read twice.
            g.mul(y, raised)
        });
    }
    for &f in CompareFn::ALL {
        check(&x, |g, x| {
            let (zero, slope) = (g.scalar(DType::F32, 0.25)?, g.scalar(DType::F32, 0.1)?);
            let negative = g.compare(f, x[0], zero)?;
            let scaled = g.mul(x[0], slope)?;
            g.where_(negative, scaled, x[0])
        });
        check(&x, |g, x| {
            let (zero, one) = (g.scalar(DType::F32, 0.0)?, g.scalar(DType::F32, 1.5)?);
            let positive = g.compare(f, one, x[0])?;
            let y = g.where_(positive, x[0], zero)?;
            g.abs(y)
        });
    }
}

#[test]
fn products_in_the_type_of_the_operands() {
    let shapes: [[&[usize]; 2]; 7] = [
        [&[37, 65], &[65, 101]],
        [&[1, 300], &[300, 70]],
        [&[3, 300], &[300, 1]],
        [&[6, 3, 40], &[6, 40, 33]],
        [&[2, 1, 5, 9], &[3, 9, 4]],
        [&[40], &[7, 40, 33]],
        [&[7, 30, 40], &[40]],
    ];
    for dtype in [
        DType::F64,
        DType::I64,
        DType::I32,
        DType::U32,
        DType::I8,
        DType::U8,
    ] {
        for shapes in shapes {
            let x = shapes.map(|shape| numbers(dtype, shape));
            check(&x, |g, x| g.matmul(x[0], x[1]));
        }
    }
}

#[test]
fn integer_products_of_large_elements() {
    // The weights include every signed byte. The elements reach 234, then 19.
    for (m, k, n) in [(40, 130, 70), (17, 64, 16), (33, 67, 5)] {
        let weights: Vec<i32> = (0..k * n).map(|i| (i * 7919 % 255) as i32 - 127).collect();
        let weights = Tensor::from_slice(&[k, n], &weights).unwrap();
        for most in [255, 40] {
            let x: Vec<i32> = (0..m * k).map(|i| (i * 5003 % most) as i32 - 20).collect();
            let x = [Tensor::from_slice(&[m, k], &x).unwrap()];
            check(&x, |g, x| {
                let weights = g.constant(weights.clone())?;
                g.matmul(x[0], weights)
            });
        }
    }
}

#[test]
fn operands_that_repeat_along_the_last_axis() {
    use tercet_ir::scalar::BinaryFn;
    let x = [numbers(DType::F32, &[90, 1]), numbers(DType::F32, &[1, 1])];
    check(&x, |g, x| {
        let (a, b) = (
            g.expand(x[0], [90usize, 401])?,
            g.expand(x[1], [90usize, 401])?,
        );
        g.binary(BinaryFn::Sub, a, b)
    });
}
