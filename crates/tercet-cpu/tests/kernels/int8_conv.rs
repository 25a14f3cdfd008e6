//! Int8 convolutions compared with plain integer loops, at every SIMD level of the machine.
#![allow(clippy::unwrap_used, reason = "tests")]

use tercet_cpu::kernels::conv::{ConvShape, ConvWindowAxes};
use tercet_cpu::kernels::int8_conv::{
    Int8ConvArgs, Int8Encoding, Requantize, int8_conv, pack, packed_len, scratch_len,
};
use tercet_cpu::kernels::{KernelThreads, SimdLevel};

/// Random bytes; a third of them are extreme values.
fn bytes(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 28 {
            0 | 1 => 0x80,
            2 | 3 => 0x7f,
            4 => 0xff,
            5 => 0,
            _ => (state >> 16) as u8,
        }
    };
    (0..len).map(|_| next()).collect()
}

/// Random weights. Without `large`, weights are uniform with many extreme values; with `large`,
/// they are small with a few extreme values, as in quantized models.
fn weights(len: usize, codes: Int8Encoding, large: Option<usize>) -> Vec<u8> {
    let mut all = bytes(len, 2);
    if let Some(apart) = large {
        let own = bytes(len, 3);
        for (i, w) in all.iter_mut().enumerate() {
            // Every `apart`th weight, and sometimes its neighbour, keeps its random value; all
            // others become small.
            if i % apart > usize::from(i % 3 == 0) {
                *w = (codes.zero as u8)
                    .wrapping_add(own[i] % 61)
                    .wrapping_sub(30);
            }
        }
    }
    all
}

/// `[batch, groups, channels, m]`, and for height and width `[size, kernel, stride, dilation, pad
/// before, pad after]`.
type Case = ([usize; 4], [[usize; 6]; 2]);

fn shape(&([batch, groups, channels, m], axes): &Case) -> ConvShape {
    let of = |f: fn([usize; 6]) -> usize, first: usize| [first, f(axes[0]), f(axes[1])];
    let out = |[size, kernel, stride, dilation, before, after]: [usize; 6]| {
        let reach = (kernel - 1) * dilation + 1;
        (size + before + after).checked_sub(reach).unwrap() / stride + 1
    };
    ConvShape {
        windows: ConvWindowAxes {
            sizes: of(|a| a[0], 1),
            kernel: of(|a| a[1], 1),
            out: of(out, 1),
            stride: of(|a| a[2], 1),
            dilation: of(|a| a[3], 1),
            pad: of(|a| a[4], 0),
        },
        batch,
        groups,
        channels,
        m,
    }
}

fn value(byte: u8, codes: Int8Encoding) -> i64 {
    let code = match codes.signed {
        true => i64::from(byte as i8),
        false => i64::from(byte),
    };
    code - i64::from(codes.zero)
}

/// Sum of window `at` of channel `channel`, counted over all groups.
fn sum(
    s: &ConvShape,
    x: &[u8],
    w: &[u8],
    codes: [Int8Encoding; 2],
    channel: usize,
    at: usize,
) -> i64 {
    let windows = &s.windows;
    let (entry, own) = (channel / s.m, channel % (s.groups * s.m));
    let place = [0, at / windows.out[2], at % windows.out[2]];
    let mut sum = 0;
    for c in 0..s.channels {
        for t in 0..windows.taps() {
            let tap = windows.tap(t);
            let from = |axis: usize| {
                let to = place[axis] * windows.stride[axis] + tap[axis] * windows.dilation[axis];
                to.checked_sub(windows.pad[axis])
                    .filter(|i| *i < windows.sizes[axis])
            };
            if let (Some(row), Some(col)) = (from(1), from(2)) {
                let plane = (entry * s.channels + c) * windows.plane();
                let x = x[plane + row * windows.sizes[2] + col];
                let w = w[(own * s.channels + c) * windows.taps() + t];
                sum += value(x, codes[0]) * value(w, codes[1]);
            }
        }
    }
    sum
}

fn check(
    case: &Case,
    level: SimdLevel,
    codes: [Int8Encoding; 2],
    out: Int8Encoding,
    large: Option<usize>,
) {
    let s = shape(case);
    let channels = s.groups * s.m;
    let k = s.channels * s.windows.taps();
    let x = bytes(s.batch * s.groups * s.channels * s.windows.plane(), 1);
    let w = weights(channels * k, codes[1], large);
    // Scales of different magnitudes: some channels are clamped almost everywhere, others nowhere.
    let root = (k.max(1) as f32).sqrt();
    let scale: Vec<f32> = (0..channels)
        .map(|o| [0.02, 0.002, 0.0005][o % 3] / root)
        .collect();
    let bias: Vec<f32> = (0..channels).map(|o| (o % 7) as f32 * 3.3 - 9.0).collect();
    let (lo, hi) = if out.signed { (-128, 127) } else { (0, 255) };
    let (lo, hi) = (lo + 5, hi - 9);
    let finish = Requantize {
        scale: &scale,
        bias: &bias,
        zero: out.zero,
        lo,
        hi,
    };
    let mut packed = vec![0; packed_len(level, &s, codes[1])];
    pack(level, &s, codes[1], &w, &mut packed);
    let call = Int8ConvArgs {
        shape: &s,
        x: &x,
        codes: codes[0],
        weights: codes[1],
        finish,
    };
    let run = |threads: KernelThreads| {
        let mut y = vec![77; s.batch * channels * s.windows.count()];
        let mut scratch = vec![-1; scratch_len(level, threads.count(), &s, codes[1])];
        int8_conv(level, threads, &call, &packed, &mut y, &mut scratch);
        y
    };
    let y = run(KernelThreads::Serial);
    assert_eq!(y, run(KernelThreads::Pool), "{case:?}: threads");
    for (i, y) in y.iter().enumerate() {
        let (channel, at) = (i / s.windows.count(), i % s.windows.count());
        let sum = sum(&s, &x, &w, codes, channel, at);
        let o = channel % channels;
        let scaled = sum as f32 * scale[o] + bias[o];
        let code = scaled.clamp((lo - out.zero) as f32, (hi - out.zero) as f32);
        let want = code.round_ties_even() as i32 + out.zero;
        let own = if out.signed {
            i32::from(*y as i8)
        } else {
            i32::from(*y)
        };
        assert_eq!(
            own,
            want,
            "{case:?} {codes:?}, element {i}, {}",
            level.name()
        );
    }
}

const CASES: &[Case] = &[
    // 1x1 windows on contiguous rows. The sizes cover whole and partial panels of windows, all
    // remainders of channels of y, and odd numbers of channels of x.
    ([1, 1, 5, 7], [[3, 1, 1, 1, 0, 0], [7, 1, 1, 1, 0, 0]]),
    ([2, 1, 64, 13], [[7, 1, 1, 1, 0, 0], [7, 1, 1, 1, 0, 0]]),
    ([1, 1, 131, 40], [[14, 1, 1, 1, 0, 0], [14, 1, 1, 1, 0, 0]]),
    ([1, 1, 16, 96], [[40, 1, 1, 1, 0, 0], [41, 1, 1, 1, 0, 0]]),
    // A single window; one or two windows after whole panels; channels of y after whole blocks.
    ([1, 1, 210, 9], [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0]]),
    ([1, 2, 66, 11], [[3, 1, 1, 1, 0, 0], [11, 1, 1, 1, 0, 0]]),
    ([1, 1, 98, 14], [[3, 1, 1, 1, 0, 0], [6, 1, 1, 1, 0, 0]]),
    // Windows with padding on all sides, short rows, and strides.
    ([1, 1, 3, 8], [[9, 3, 1, 1, 1, 1], [7, 3, 1, 1, 1, 1]]),
    ([2, 1, 70, 33], [[7, 3, 1, 1, 1, 1], [7, 3, 1, 1, 1, 1]]),
    ([1, 1, 3, 20], [[33, 7, 2, 1, 3, 3], [45, 7, 2, 1, 3, 2]]),
    ([1, 1, 12, 6], [[17, 3, 2, 1, 1, 1], [14, 3, 2, 1, 0, 1]]),
    ([1, 1, 20, 9], [[14, 1, 2, 1, 0, 0], [15, 1, 2, 1, 0, 0]]),
    ([1, 1, 6, 5], [[19, 3, 3, 2, 2, 1], [40, 2, 3, 5, 4, 0]]),
    ([1, 1, 2, 4], [[1, 1, 1, 1, 0, 0], [61, 5, 4, 3, 7, 6]]),
    ([1, 1, 4, 3], [[11, 3, 1, 1, 2, 2], [1, 3, 1, 1, 1, 1]]),
    // One tap per row, strides along one axis, dilation, and wide rows that are split.
    ([2, 1, 37, 13], [[15, 1, 2, 1, 0, 0], [31, 1, 2, 1, 1, 0]]),
    ([1, 2, 5, 8], [[11, 1, 3, 1, 0, 1], [50, 4, 2, 2, 3, 2]]),
    ([1, 1, 2, 70], [[70, 3, 2, 1, 1, 1], [80, 1, 1, 1, 0, 0]]),
    ([1, 1, 250, 9], [[3, 2, 1, 2, 0, 2], [400, 3, 2, 1, 1, 1]]),
    // Winograd: odd sizes, padding of every width, wide rows in several tasks, many channels,
    // groups.
    ([1, 1, 16, 13], [[7, 3, 1, 1, 1, 1], [7, 3, 1, 1, 1, 1]]),
    ([2, 1, 33, 12], [[14, 3, 1, 1, 1, 1], [29, 3, 1, 1, 0, 0]]),
    ([1, 1, 12, 17], [[3, 3, 1, 1, 0, 0], [290, 3, 1, 1, 2, 3]]),
    ([1, 1, 15, 12], [[1, 3, 1, 1, 4, 5], [1, 3, 1, 1, 5, 7]]),
    ([1, 1, 300, 20], [[9, 3, 1, 1, 1, 1], [20, 3, 1, 1, 1, 1]]),
    ([2, 2, 13, 14], [[30, 3, 1, 1, 1, 1], [17, 3, 1, 1, 1, 1]]),
    ([1, 1, 900, 13], [[4, 3, 1, 1, 1, 1], [5, 3, 1, 1, 1, 1]]),
    // So much weight data that each task reads it only once, and more columns than one task packs.
    ([1, 1, 400, 64], [[9, 3, 1, 1, 1, 1], [9, 3, 1, 1, 1, 1]]),
    // Several groups of channels, including groups of one channel.
    ([2, 3, 4, 7], [[8, 3, 1, 1, 1, 1], [9, 3, 1, 1, 1, 1]]),
    ([2, 5, 1, 1], [[9, 3, 1, 1, 1, 1], [18, 3, 1, 1, 1, 1]]),
    ([1, 4, 1, 3], [[15, 3, 2, 1, 1, 1], [37, 3, 2, 1, 1, 1]]),
    ([1, 33, 1, 1], [[7, 5, 1, 1, 2, 2], [7, 5, 1, 1, 2, 2]]),
    ([1, 3, 1, 1], [[200, 3, 1, 2, 2, 2], [130, 2, 3, 4, 3, 0]]),
    ([1, 2, 1, 1], [[12, 9, 1, 1, 4, 4], [12, 9, 1, 1, 4, 4]]),
    // Windows that are entirely in padding, and a convolution without input channels.
    ([1, 1, 2, 3], [[1, 2, 3, 1, 4, 4], [1, 2, 3, 1, 3, 3]]),
    ([1, 1, 0, 3], [[3, 1, 1, 1, 0, 0], [4, 1, 1, 1, 0, 0]]),
];

#[test]
fn convolutions_of_bytes_are_sums_of_integers() {
    let codes = |signed: bool, zero: i32| Int8Encoding { signed, zero };
    let kinds = [
        ([codes(false, 0), codes(true, 0)], codes(false, 0)),
        ([codes(false, 255), codes(false, 128)], codes(false, 128)),
        ([codes(true, -128), codes(true, -128)], codes(true, 127)),
        ([codes(true, 127), codes(false, 127)], codes(true, -128)),
        ([codes(true, 5), codes(true, 0)], codes(true, -3)),
    ];
    for case in CASES {
        for level in SimdLevel::available() {
            for (codes, out) in kinds {
                for large in [None, Some(29), Some(97)] {
                    check(case, *level, codes, out, large);
                }
            }
        }
    }
}
