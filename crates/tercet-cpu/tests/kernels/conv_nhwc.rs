//! Channels-last convolutions: compared with channels-first convolutions at every SIMD level, and
//! graphs of them compared with the reference executor.
#![allow(clippy::unwrap_used, reason = "tests")]

use tercet_cpu::kernels::conv::{
    ConvShape, ConvWeights, ConvWindowAxes, NhwcEpilogue, NhwcInputLayout, conv, conv_scratch_len,
    nhwc_conv, nhwc_conv_scratch_len, pack_nhwc_conv, packed_nhwc_conv_len,
};
use tercet_cpu::kernels::gemm::GemmActivation;
use tercet_cpu::kernels::{KernelThreads, SimdLevel};
use tercet_cpu::{CpuBackend, ReferenceBackend};
use tercet_ir::fill::InputFill;
use tercet_ir::ops::{Conv, PoolFn, ReduceFn, Window};
use tercet_ir::scalar::UnaryFn;
use tercet_ir::{
    Backend, CompileOptions, DType, Dim, Graph, OpError, Tensor, TensorType, Type, Value,
};

fn noise(name: &str, len: usize) -> Vec<f32> {
    let tensor = InputFill::Normal.tensor(name, TensorType::new(DType::F32, &[len]));
    tensor.as_slice::<f32>().unwrap().to_vec()
}

/// `[batch, groups, channels, m]`, and for both axes `[size, kernel, stride, dilation, pad]`.
type Case = ([usize; 4], [[usize; 5]; 2]);

fn shape(&([batch, groups, channels, m], axes): &Case) -> ConvShape {
    let of = |f: fn([usize; 5]) -> usize| [1, f(axes[0]), f(axes[1])];
    ConvShape {
        windows: ConvWindowAxes {
            sizes: of(|a| a[0]),
            kernel: of(|a| a[1]),
            out: of(|[size, kernel, stride, dilation, pad]| {
                (size + 2 * pad - (kernel - 1) * dilation - 1) / stride + 1
            }),
            stride: of(|a| a[2]),
            dilation: of(|a| a[3]),
            pad: [0, axes[0][4], axes[1][4]],
        },
        batch,
        groups,
        channels,
        m,
    }
}

/// Converts `[batch, channels, plane]` to `[batch, plane, step]`; only the first `channels` of
/// `step` elements are used.
fn to_last(x: &[f32], channels: usize, plane: usize, step: usize) -> Vec<f32> {
    let mut to = vec![f32::NAN; x.len() / channels.max(1) * step];
    for (i, x) in x.iter().enumerate() {
        let (entry, channel, at) = (i / plane / channels, i / plane % channels, i % plane);
        to[(entry * plane + at) * step + channel] = *x;
    }
    to
}

fn check(case: &Case, level: SimdLevel, activation: GemmActivation) {
    let s = shape(case);
    let (of_x, of_y) = (s.groups * s.channels, s.groups * s.m);
    let (plane, windows) = (s.windows.sizes.iter().product(), s.windows.count());
    let k = s.channels * s.windows.taps();
    let x = noise("x", s.batch * of_x * plane);
    let w = noise("w", of_y * k);
    let bias = noise("bias", of_y);
    let mut want = vec![0.0; s.batch * of_y * windows];
    let mut scratch = vec![0.0; conv_scratch_len(level, 1, &s)];
    let weights = ConvWeights::Plain(&w);
    conv(
        level,
        KernelThreads::Serial,
        &s,
        &x,
        weights,
        Some(&bias),
        activation,
        &mut want,
        &mut scratch,
    );
    let want = to_last(&want, of_y, windows, of_y);
    let run = |source: NhwcInputLayout, x: &[f32], threads: KernelThreads| {
        let is_first = source == NhwcInputLayout::ChannelsFirst;
        let mut packed = vec![f32::NAN; packed_nhwc_conv_len(level, &s)];
        pack_nhwc_conv(level, threads, &s, is_first, &w, &mut packed);
        // The initial contents of the scratch memory must not matter.
        let len = nhwc_conv_scratch_len(level, threads.count(), &s, is_first);
        let mut scratch = vec![f32::NAN; len];
        let mut y = vec![f32::NAN; s.batch * of_y * windows];
        let end = NhwcEpilogue {
            activation,
            residual: None,
            after: GemmActivation::None,
        };
        nhwc_conv(
            level,
            threads,
            &s,
            x,
            source,
            &packed,
            Some(&bias),
            end,
            &mut y,
            &mut scratch,
        );
        let tolerance = 1e-5 * (k as f32).sqrt();
        for (i, (y, want)) in y.iter().zip(&want).enumerate() {
            assert!(
                (y - want).abs() <= tolerance * (1.0 + want.abs()),
                "{case:?} {source:?} at {}: element {i} is {y}, want {want}",
                level.name()
            );
        }
        y
    };
    for step in [of_x, of_x + 3] {
        let x = to_last(&x, of_x, plane, step);
        let row = s.windows.sizes[2] * step;
        let source = NhwcInputLayout::ChannelsLast([s.windows.sizes[1] * row, row, step]);
        let y = run(source, &x, KernelThreads::Pool);
        assert_eq!(y, run(source, &x, KernelThreads::Serial), "{case:?}");
    }
    if s.groups == 1 && s.channels <= 8 {
        run(NhwcInputLayout::ChannelsFirst, &x, KernelThreads::Pool);
    }
}

/// `[size, kernel, stride, dilation, pad]`.
const fn axis(size: usize, kernel: usize, stride: usize, pad: usize) -> [usize; 5] {
    [size, kernel, stride, 1, pad]
}

#[test]
fn kernels_agree_with_those_of_channels_first() {
    let cases: &[Case] = &[
        ([1, 1, 3, 24], [axis(20, 3, 2, 1), axis(22, 3, 2, 1)]),
        ([2, 1, 20, 50], [axis(7, 3, 1, 1), axis(7, 3, 1, 1)]),
        ([1, 1, 64, 40], [axis(19, 3, 1, 1), axis(23, 3, 1, 1)]),
        ([2, 1, 33, 3], [axis(5, 1, 1, 0), axis(9, 1, 1, 0)]),
        ([1, 1, 40, 17], [axis(5, 1, 2, 0), axis(9, 1, 2, 0)]),
        // Sums that are split into several chains, along taps and along channels.
        ([1, 1, 200, 20], [axis(6, 3, 1, 1), axis(5, 3, 1, 1)]),
        ([1, 1, 1100, 20], [axis(3, 2, 1, 1), axis(4, 1, 2, 0)]),
        ([1, 1, 5, 9], [[11, 3, 1, 3, 4], [12, 2, 2, 4, 3]]),
        // Windows that are entirely in padding.
        ([1, 1, 2, 16], [axis(2, 2, 1, 5), axis(3, 2, 3, 4)]),
        ([1, 48, 1, 1], [axis(9, 3, 1, 1), axis(9, 3, 1, 1)]),
        ([2, 16, 1, 1], [axis(11, 3, 2, 1), axis(16, 3, 2, 1)]),
        ([1, 32, 1, 1], [axis(7, 5, 1, 2), axis(7, 5, 1, 2)]),
        ([1, 16, 1, 1], [axis(28, 5, 2, 2), axis(31, 5, 2, 2)]),
        ([1, 16, 1, 1], [axis(60, 3, 1, 1), axis(75, 3, 1, 1)]),
        ([2, 16, 1, 1], [[12, 3, 1, 2, 2], [12, 2, 3, 1, 1]]),
        ([1, 16, 1, 1], [axis(2, 2, 1, 5), axis(3, 7, 1, 4)]),
        ([1, 16, 1, 1], [axis(1, 1, 1, 0), axis(1, 1, 1, 0)]),
    ];
    for level in SimdLevel::available() {
        for case in cases {
            check(case, *level, GemmActivation::None);
            check(case, *level, GemmActivation::Silu);
        }
    }
}

/// Adds a convolution with bias, with weights of shape `w`.
fn layer(
    g: &mut Graph,
    name: &str,
    x: Value,
    w: [usize; 4],
    stride: usize,
    groups: usize,
    f: Option<UnaryFn>,
) -> Result<Value, OpError> {
    let window = Window {
        stride: vec![stride; 2],
        pad_before: vec![w[2] / 2, w[3] / 2],
        pad_after: vec![w[2] / 2, w[3] / 2],
        ..Window::new(2)
    };
    let weights = g.param(name, Type::new(DType::F32, w))?;
    let bias = g.param(&format!("{name}_b"), Type::new(DType::F32, [w[0]]))?;
    g.add(Conv::new(window, groups, f), &[x, weights, bias])
}

fn pool(g: &mut Graph, f: PoolFn, x: Value) -> Result<Value, OpError> {
    let window = Window {
        stride: vec![2; 2],
        pad_before: vec![1; 2],
        pad_after: vec![1; 2],
        ..Window::new(2)
    };
    g.pool(x, f, &[3, 3], window)
}

/// A graph with all operators that occur between convolutions: sums, squeeze-and-excitation gates,
/// slices and concatenations of channels, and pools. Between convolutions, some values pass through
/// operators that have no channels-last kernel.
fn network() -> Result<Graph, OpError> {
    let silu = Some(UnaryFn::Silu);
    let mut g = Graph::new();
    let n = Dim::sym("n");
    let shape = [n, Dim::Known(3), Dim::Known(19), Dim::Known(22)];
    let x = g.input("x", Type::new(DType::F32, shape))?;
    let stem = layer(&mut g, "stem", x, [32, 3, 3, 3], 2, 1, silu)?;
    let wide = layer(
        &mut g,
        "wide",
        stem,
        [48, 32, 1, 1],
        1,
        1,
        Some(UnaryFn::Relu6),
    )?;
    let deep = layer(&mut g, "deep", wide, [48, 1, 5, 5], 1, 48, silu)?;
    let mean = g.reduce(ReduceFn::Mean, deep, &[2, 3], true)?;
    let gate = layer(
        &mut g,
        "gate",
        mean,
        [48, 48, 1, 1],
        1,
        1,
        Some(UnaryFn::Sigmoid),
    )?;
    let gated = g.mul(deep, gate)?;
    let back = layer(&mut g, "back", gated, [32, 48, 1, 1], 1, 1, None)?;
    let sum = g.plus(back, stem)?;
    let sum = g.relu(sum)?;
    g.output("between", sum)?;
    let halves = [0, 16].map(|at| g.slice_axis(sum, 1, at, at + 16, 1));
    let [first, second] = halves;
    let (first, second) = (first?, second?);
    let odd = layer(&mut g, "odd", second, [20, 16, 3, 3], 1, 1, silu)?;
    let joined = g.concat(&[first, odd, second], 1)?;
    let most = pool(&mut g, PoolFn::Max, joined)?;
    let even = pool(&mut g, PoolFn::Mean, joined)?;
    let pooled = g.plus(most, even)?;
    let end = layer(&mut g, "end", pooled, [7, 52, 3, 3], 2, 1, None)?;
    g.output("end", end)?;
    let flat = g.reduce(ReduceFn::Max, end, &[2, 3], false)?;
    g.output("flat", flat)?;
    Ok(g)
}

#[test]
fn graphs_agree_with_the_reference() -> Result<(), Box<dyn std::error::Error>> {
    let graph = network()?;
    let options = CompileOptions::new().bound("n", 3);
    let mut ours = CpuBackend::new().compile(&graph, &options)?;
    let mut reference = ReferenceBackend.compile(&graph, &options)?;
    for exe in [&mut ours, &mut reference] {
        for port in exe.signature().params.clone() {
            let shape = port.ty.shape.as_known().unwrap();
            let ty = TensorType::new(port.ty.dtype, &shape);
            let scale = 1.0 / (shape[1..].iter().product::<usize>() as f64).sqrt();
            exe.set_param(
                &port.name,
                InputFill::Uniform(-scale, scale).tensor(&port.name, ty),
            )?;
        }
    }
    for n in [2, 1, 3] {
        let ty = TensorType::new(DType::F32, &[n, 3, 19, 22]);
        let x = InputFill::Normal.tensor("x", ty);
        let (got, want) = (ours.run(&[("x", &x)])?, reference.run(&[("x", &x)])?);
        for (got, want) in got.iter().zip(&want) {
            let pair = |t: &Tensor| t.as_slice::<f32>().map(<[f32]>::to_vec);
            for (i, (got, want)) in pair(got)?.iter().zip(pair(want)?).enumerate() {
                assert!(
                    (got - want).abs() <= 2e-5,
                    "{n}: element {i} is {got}, want {want}"
                );
            }
        }
    }
    Ok(())
}
