//! Convolutions compared with plain loops in f64, at every SIMD level of the machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use tercet_cpu::kernels::conv::{
    ConvShape, ConvWeights, ConvWindowAxes, conv, conv_scratch_len, pack_conv, packed_conv_len,
};
use tercet_cpu::kernels::gemm::GemmActivation;
use tercet_cpu::kernels::{KernelThreads, SimdLevel};

/// Random values in [-1, 1) from a small generator.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// `[batch, groups, channels, m]`, and for each axis `[size, kernel, stride, dilation, pad before, pad after]`.
type Case = ([usize; 4], [[usize; 6]; 3]);

const ONE: [usize; 6] = [1, 1, 1, 1, 0, 0];

fn shape(&([batch, groups, channels, m], axes): &Case) -> ConvShape {
    let of = |f: fn([usize; 6]) -> usize| axes.map(f);
    ConvShape {
        windows: ConvWindowAxes {
            sizes: of(|a| a[0]),
            kernel: of(|a| a[1]),
            out: of(|[size, kernel, stride, dilation, before, after]| {
                let reach = (kernel - 1) * dilation + 1;
                (size + before + after).checked_sub(reach).unwrap() / stride + 1
            }),
            stride: of(|a| a[2]),
            dilation: of(|a| a[3]),
            pad: of(|a| a[4]),
        },
        batch,
        groups,
        channels,
        m,
    }
}

/// Expected element of channel `channel` in window `at`.
fn expected(s: &ConvShape, x: &[f32], w: &[f32], channel: usize, at: [usize; 3]) -> f64 {
    let windows = &s.windows;
    let (entry, own) = (channel / s.m, channel % (s.groups * s.m));
    let mut sum = 0.0;
    for c in 0..s.channels {
        for t in 0..windows.taps() {
            let tap = windows.tap(t);
            let from = |axis: usize| {
                let to = at[axis] * windows.stride[axis] + tap[axis] * windows.dilation[axis];
                to.checked_sub(windows.pad[axis])
                    .filter(|i| *i < windows.sizes[axis])
            };
            if let (Some(d), Some(h), Some(col)) = (from(0), from(1), from(2)) {
                let [_, height, width] = windows.sizes;
                let plane = (entry * s.channels + c) * windows.plane();
                let x = x[plane + (d * height + h) * width + col];
                let w = w[(own * s.channels + c) * windows.taps() + t];
                sum += f64::from(x) * f64::from(w);
            }
        }
    }
    sum
}

fn check(case: &Case, level: SimdLevel) {
    let s = shape(case);
    let channels = s.batch * s.groups * s.m;
    let k = s.channels * s.windows.taps();
    let x = noise(s.batch * s.groups * s.channels * s.windows.plane(), 1);
    let w = noise(s.groups * s.m * k, 2);
    let bias = noise(s.groups * s.m, 3);
    let run = |threads: KernelThreads, packed: bool, activation: GemmActivation| {
        let mut pack = packed_conv_len(level, &s).map(|len| vec![f32::NAN; len]);
        let weights = match (&mut pack, packed) {
            (Some(pack), true) => {
                pack_conv(level, threads, &s, &w, pack);
                ConvWeights::Packed(pack)
            }
            _ => ConvWeights::Plain(&w),
        };
        let mut y = vec![f32::NAN; channels * s.windows.count()];
        // The initial contents of the scratch memory must not matter.
        let mut scratch = vec![f32::NAN; conv_scratch_len(level, threads.count(), &s)];
        conv(
            level,
            threads,
            &s,
            &x,
            weights,
            Some(&bias),
            activation,
            &mut y,
            &mut scratch,
        );
        y
    };
    let y = run(KernelThreads::Pool, true, GemmActivation::None);
    let tolerance = 1e-6 * (k as f64 + 4.0);
    let [_, height, width] = s.windows.out;
    for (i, &got) in y.iter().enumerate() {
        let (channel, at) = (i / s.windows.count(), i % s.windows.count());
        let at = [at / (height * width), at / width % height, at % width];
        let want = expected(&s, &x, &w, channel, at) + f64::from(bias[channel % bias.len()]);
        assert!(
            (f64::from(got) - want).abs() <= tolerance,
            "{case:?} at {}: channel {channel}, window {at:?} is {got}, want {want}",
            level.name()
        );
    }
    assert_eq!(
        y,
        run(KernelThreads::Serial, false, GemmActivation::None),
        "{case:?}"
    );
    let positive: Vec<f32> = y.iter().map(|y| y.max(0.0)).collect();
    assert_eq!(
        positive,
        run(KernelThreads::Pool, true, GemmActivation::Relu),
        "{case:?}"
    );
}

/// `[size, kernel, stride, dilation, pad before, pad after]` with equal padding on both sides.
const fn axis(size: usize, kernel: usize, stride: usize, pad: usize) -> [usize; 6] {
    [size, kernel, stride, 1, pad, pad]
}

#[test]
fn channels_side_by_side() {
    let cases: &[Case] = &[
        ([1, 1, 3, 16], [ONE, axis(20, 7, 2, 3), axis(22, 7, 2, 3)]),
        ([2, 1, 20, 50], [ONE, axis(7, 3, 1, 1), axis(7, 3, 1, 1)]),
        ([1, 2, 5, 13], [ONE, axis(9, 3, 2, 1), axis(11, 3, 2, 1)]),
        ([1, 1, 3, 97], [ONE, axis(13, 3, 1, 0), axis(5, 2, 1, 1)]),
        // Rows of windows that are split between tasks, and a row that is longer than a block.
        ([1, 1, 2, 12], [ONE, axis(3, 3, 1, 1), axis(700, 3, 1, 1)]),
        ([1, 1, 40, 16], [ONE, ONE, axis(1100, 5, 2, 2)]),
        // More taps than a tile processes at once.
        ([1, 1, 2, 17], [ONE, axis(15, 13, 1, 2), axis(16, 13, 1, 6)]),
        ([1, 1, 1, 17], [ONE, axis(23, 21, 1, 2), axis(22, 21, 1, 2)]),
        (
            [1, 1, 4, 20],
            [axis(5, 3, 1, 1), axis(6, 3, 1, 1), axis(7, 3, 1, 1)],
        ),
        (
            [1, 1, 2, 12],
            [axis(6, 2, 2, 1), axis(5, 3, 2, 0), axis(9, 1, 2, 0)],
        ),
        // Dilation, and more or less padding after an axis than before it.
        (
            [1, 1, 3, 18],
            [ONE, [11, 3, 1, 3, 2, 5], [12, 2, 2, 4, 0, 3]],
        ),
        // Windows that are entirely in padding.
        ([1, 1, 2, 16], [ONE, axis(2, 2, 1, 5), axis(3, 2, 3, 4)]),
        ([1, 1, 2, 16], [ONE, axis(0, 3, 1, 2), axis(4, 3, 1, 1)]),
        // 1x1 windows with few and many channels of y, and with many channels of x.
        ([2, 2, 30, 18], [ONE, axis(5, 1, 1, 0), axis(9, 1, 1, 0)]),
        ([1, 2, 30, 40], [ONE, axis(5, 1, 1, 0), axis(9, 1, 1, 0)]),
        ([2, 1, 400, 12], [ONE, axis(5, 1, 1, 0), axis(9, 1, 1, 0)]),
        ([1, 1, 400, 30], [ONE, axis(5, 1, 2, 0), axis(9, 1, 2, 0)]),
        ([1, 1, 1, 12], [ONE, axis(9, 3, 1, 1), axis(9, 3, 1, 1)]),
        ([0, 1, 3, 16], [ONE, axis(5, 3, 1, 1), axis(5, 3, 1, 1)]),
    ];
    for level in SimdLevel::available() {
        for case in cases {
            check(case, *level);
        }
    }
}

#[test]
fn one_channel_each() {
    let cases: &[Case] = &[
        ([1, 16, 1, 1], [ONE, axis(14, 3, 1, 1), axis(14, 3, 1, 1)]),
        ([2, 21, 1, 1], [ONE, axis(7, 3, 2, 1), axis(7, 3, 2, 1)]),
        ([1, 5, 1, 1], [ONE, axis(6, 5, 1, 2), axis(30, 5, 3, 2)]),
        ([1, 33, 1, 1], [ONE, axis(1, 1, 1, 0), axis(3, 3, 1, 0)]),
        // Several channels of y per channel of x.
        ([2, 18, 1, 3], [ONE, axis(5, 3, 1, 1), axis(9, 3, 1, 1)]),
        // Rows that are split.
        ([1, 16, 1, 1], [ONE, axis(40, 3, 1, 1), axis(60, 3, 1, 1)]),
        ([1, 17, 1, 1], [ONE, ONE, axis(2500, 9, 1, 4)]),
        (
            [1, 12, 1, 1],
            [axis(5, 3, 2, 1), axis(6, 3, 1, 1), axis(7, 3, 1, 1)],
        ),
        (
            [1, 16, 1, 1],
            [ONE, [11, 3, 1, 4, 4, 2], [12, 3, 2, 2, 0, 7]],
        ),
        ([1, 8, 1, 1], [ONE, axis(20, 13, 1, 6), axis(20, 13, 1, 6)]),
        ([1, 20, 1, 1], [ONE, axis(0, 3, 1, 2), axis(4, 3, 1, 1)]),
        ([3, 8, 1, 1], [ONE, axis(2, 2, 1, 5), axis(3, 2, 3, 4)]),
        // Long rows of windows: tasks of whole rows, inputs of few rows, and rows that are split
        // between tasks.
        ([2, 3, 1, 1], [ONE, axis(33, 3, 1, 1), axis(45, 3, 1, 1)]),
        (
            [1, 18, 1, 2],
            [ONE, [9, 5, 1, 1, 3, 1], [31, 5, 1, 1, 0, 4]],
        ),
        ([1, 2, 1, 1], [ONE, axis(130, 3, 1, 1), axis(64, 3, 1, 1)]),
        ([1, 2, 1, 1], [ONE, axis(2, 3, 1, 1), axis(40, 3, 1, 1)]),
        ([2, 3, 1, 1], [ONE, axis(17, 3, 2, 1), axis(77, 3, 2, 1)]),
        (
            [1, 17, 1, 2],
            [ONE, [9, 5, 2, 1, 3, 1], [70, 5, 2, 1, 0, 4]],
        ),
        ([1, 2, 1, 1], [ONE, axis(3, 3, 2, 0), axis(2500, 3, 2, 1)]),
        (
            [1, 1, 1, 1],
            [axis(2, 1, 1, 0), axis(4, 3, 1, 1), axis(2000, 3, 1, 1)],
        ),
    ];
    for level in SimdLevel::available() {
        for case in cases {
            check(case, *level);
        }
    }
}

#[test]
fn by_columns() {
    let cases: &[Case] = &[
        // 1x1 windows that read all elements of x in order, or a subset of them.
        (
            [2, 1, 30, 70],
            [axis(3, 1, 1, 0), axis(9, 1, 1, 0), axis(11, 1, 1, 0)],
        ),
        ([1, 1, 30, 20], [ONE, axis(9, 1, 2, 0), axis(11, 1, 2, 0)]),
        ([1, 1, 10, 20], [ONE, axis(9, 1, 1, 1), axis(11, 1, 1, 2)]),
        // Few channels.
        ([1, 4, 3, 5], [ONE, axis(9, 3, 1, 1), axis(8, 3, 2, 1)]),
        ([1, 2, 1, 3], [ONE, axis(9, 3, 1, 1), axis(8, 3, 2, 1)]),
        // Large dilations or strides.
        ([1, 1, 3, 16], [ONE, ONE, [400, 3, 1, 100, 100, 100]]),
        ([1, 16, 1, 1], [ONE, ONE, [400, 3, 1, 100, 100, 100]]),
        ([1, 1, 3, 16], [ONE, axis(30, 2, 9, 0), axis(30, 2, 9, 0)]),
        ([1, 1, 0, 16], [ONE, axis(5, 3, 1, 1), axis(5, 3, 1, 1)]),
    ];
    for level in SimdLevel::available() {
        for case in cases {
            check(case, *level);
        }
    }
}

/// Scratch memory is sized for the maximum sizes, and must suffice for all smaller ones.
#[test]
fn scratch_grows_with_sizes() {
    let level = SimdLevel::detect();
    for [groups, channels, m] in [[1, 3, 64], [1, 64, 64], [1, 700, 16], [32, 1, 1]] {
        for (kernel, stride) in [(1, 1), (3, 1), (3, 2), (9, 2), (2, 3)] {
            let len = |rows: usize, cols: usize| {
                let (rows, cols) = (axis(rows, kernel, stride, 1), axis(cols, kernel, stride, 1));
                let case = ([1, groups, channels, m], [axis(6, 3, 1, 1), rows, cols]);
                conv_scratch_len(level, 2, &shape(&case))
            };
            let sizes = [7, 8, 15, 30, 59, 62, 127, 131, 250, 515, 1030];
            for pair in sizes.windows(2) {
                for other in sizes {
                    assert!(len(pair[0], other) <= len(pair[1], other));
                    assert!(len(other, pair[0]) <= len(other, pair[1]));
                }
            }
        }
    }
}
