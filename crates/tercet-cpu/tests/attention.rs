//! Attention against plain loops in f64, at every level of the machine.

use tercet_cpu::kernels::attention::{
    Attention, HeadsView, HeadsViewMut, Mask, attention, attention_scratch_len,
};
use tercet_cpu::kernels::{SimdLevel, Threads};

fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 22) as f32 - 2.0
        })
        .collect()
}

#[derive(Clone, Copy)]
enum Kind {
    None,
    Causal,
    Window(usize),
    Keep,
    Bias,
}

struct Case {
    heads: (usize, usize),
    q_len: usize,
    kv_len: usize,
    dims: (usize, usize),
    kind: Kind,
    softcap: Option<f32>,
    bshd: bool,
}

fn strides(bshd: bool, heads: usize, len: usize, dim: usize) -> [usize; 3] {
    if bshd {
        [heads * len * dim, dim, heads * dim]
    } else {
        [heads * len * dim, len * dim, dim]
    }
}

/// What results are made of.
struct Operands {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    keep: Vec<u8>,
    bias: Vec<f32>,
    lens: [usize; BATCH],
}

const BATCH: usize = 2;

impl Operands {
    fn new(c: &Case) -> Operands {
        let ((hq, hk), (dk, dv)) = (c.heads, c.dims);
        let cells = c.q_len * c.kv_len;
        // The first query of each entry sees nothing.
        let keep = |(i, x): (usize, &f32)| u8::from(*x > 0.0 && i % cells.max(1) >= c.kv_len);
        let dice = noise(BATCH * cells, 4);
        Operands {
            q: noise(BATCH * hq * c.q_len * dk, 1),
            k: noise(BATCH * hk * c.kv_len * dk, 2),
            v: noise(BATCH * hk * c.kv_len * dv, 3),
            keep: dice.iter().enumerate().map(keep).collect(),
            bias: noise(hq * cells, 5),
            // The second batch entry has fewer keys in use.
            lens: [c.kv_len, c.kv_len.saturating_sub(3).max(c.kv_len.min(1))],
        }
    }

    fn mask(&self, c: &Case) -> Mask<'_> {
        let cells = c.q_len * c.kv_len;
        match c.kind {
            Kind::None => Mask::None,
            Kind::Causal => Mask::Causal,
            Kind::Window(w) => Mask::SlidingWindow(w),
            Kind::Keep => Mask::Keep(&self.keep, [cells, 0, c.kv_len, 1]),
            Kind::Bias => Mask::Bias(&self.bias, [0, cells, c.kv_len, 1]),
        }
    }

    /// The scores of the keys in use for query `i` of a head and batch entry, in f64.
    fn scores(&self, c: &Case, [b, h, i]: [usize; 3]) -> Vec<f64> {
        let ((hq, hk), (dk, _)) = (c.heads, c.dims);
        let (cells, kh, len) = (c.q_len * c.kv_len, h / (hq / hk), self.lens[b]);
        let sq = strides(c.bshd, hq, c.q_len, dk);
        let sk = strides(c.bshd, hk, c.kv_len, dk);
        let position = (len + i) as isize - c.q_len as isize;
        let score = |j: usize| {
            let dot: f64 = (0..dk)
                .map(|d| {
                    let x = self.q[b * sq[0] + h * sq[1] + i * sq[2] + d];
                    f64::from(x) * f64::from(self.k[b * sk[0] + kh * sk[1] + j * sk[2] + d])
                })
                .sum();
            let mut s = dot * f64::from(0.3f32);
            if let Some(cap) = c.softcap {
                s = f64::from(cap) * (s / f64::from(cap)).tanh();
            }
            let back = position - j as isize;
            match c.kind {
                Kind::None => s,
                Kind::Causal if back >= 0 => s,
                Kind::Window(w) if back >= 0 && back < w as isize => s,
                Kind::Keep if self.keep[b * cells + i * c.kv_len + j] != 0 => s,
                Kind::Bias => s + f64::from(self.bias[h * cells + i * c.kv_len + j]),
                _ => f64::NEG_INFINITY,
            }
        };
        (0..len).map(score).collect()
    }

    /// What attention gives for query `i` of a head and batch entry, in f64.
    fn weighted(&self, c: &Case, at: [usize; 3]) -> Vec<f64> {
        let ([b, h, _], (hq, hk), (_, dv)) = (at, c.heads, c.dims);
        let (kh, sv) = (h / (hq / hk), strides(c.bshd, hk, c.kv_len, dv));
        let scores = self.scores(c, at);
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e = scores.iter().map(|s| match max.is_finite() {
            true => (s - max).exp(),
            false => 0.0,
        });
        let e: Vec<f64> = e.collect();
        let sum: f64 = e.iter().sum();
        let weighted = |d: usize| {
            let v = |j: usize| f64::from(self.v[b * sv[0] + kh * sv[1] + j * sv[2] + d]);
            let weighted: f64 = e.iter().enumerate().map(|(j, e)| e * v(j)).sum();
            if sum == 0.0 { 0.0 } else { weighted / sum }
        };
        (0..dv).map(weighted).collect()
    }
}

fn check(c: &Case, level: SimdLevel) {
    let (batch, (hq, hk), (dk, dv)) = (BATCH, c.heads, c.dims);
    let of = Operands::new(c);
    let a = Attention {
        batch,
        q_heads: hq,
        kv_heads: hk,
        q_len: c.q_len,
        kv_lens: &of.lens,
        dk,
        dv,
        scale: 0.3,
        softcap: c.softcap,
        mask: of.mask(c),
    };
    let (sq, sk) = (
        strides(c.bshd, hq, c.q_len, dk),
        strides(c.bshd, hk, c.kv_len, dk),
    );
    let (sv, so) = (
        strides(c.bshd, hk, c.kv_len, dv),
        strides(c.bshd, hq, c.q_len, dv),
    );
    let mut results = Vec::new();
    for threads in [Threads::Serial, Threads::Pool] {
        let mut out = vec![9.0; batch * hq * c.q_len * dv];
        let mut scratch = vec![0.0; attention_scratch_len(level, threads, &a)];
        attention(
            level,
            threads,
            &a,
            HeadsView {
                data: &of.q,
                strides: sq,
            },
            HeadsView {
                data: &of.k,
                strides: sk,
            },
            HeadsView {
                data: &of.v,
                strides: sv,
            },
            HeadsViewMut {
                data: &mut out,
                strides: so,
            },
            &mut scratch,
        );
        results.push(out);
    }
    assert_eq!(results[0], results[1], "the result depends on the threads");
    for b in 0..batch {
        for h in 0..hq {
            for i in 0..c.q_len {
                let want = of.weighted(c, [b, h, i]);
                for (d, want) in want.into_iter().enumerate() {
                    let got = f64::from(results[0][b * so[0] + h * so[1] + i * so[2] + d]);
                    assert!(
                        (got - want).abs() < 2e-5,
                        "b {b} h {h} q {i} d {d} at {}: {got}, want {want}",
                        level.name()
                    );
                }
            }
        }
    }
}

#[test]
fn attention_agrees_with_f64() {
    let sizes = [
        ((1, 1), 1, 1, (1, 1)),
        ((4, 2), 1, 300, (64, 64)),
        ((8, 1), 1, 140, (33, 20)),
        ((3, 3), 5, 5, (16, 7)),
        ((2, 2), 130, 130, (32, 40)),
        ((4, 2), 70, 200, (24, 64)),
        ((2, 1), 9, 4, (8, 8)),
        ((1, 1), 3, 0, (8, 8)),
        ((1, 1), 0, 5, (8, 8)),
    ];
    let kinds = [
        Kind::None,
        Kind::Causal,
        Kind::Window(3),
        Kind::Keep,
        Kind::Bias,
    ];
    for &level in SimdLevel::available() {
        for (i, &(heads, q_len, kv_len, dims)) in sizes.iter().enumerate() {
            for (j, &kind) in kinds.iter().enumerate() {
                let softcap = ((i + j) % 3 == 0).then_some(5.0);
                check(
                    &Case {
                        heads,
                        q_len,
                        kv_len,
                        dims,
                        kind,
                        softcap,
                        bshd: (i + j) % 2 == 0,
                    },
                    level,
                );
            }
        }
    }
}
