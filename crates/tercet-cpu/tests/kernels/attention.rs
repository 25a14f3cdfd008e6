//! Attention compared with plain loops in f64, at every SIMD level of the machine.

use tercet_cpu::kernels::attention::{
    AttentionArgs, AttentionCotangents, AttentionGradArgs, AttentionKeyMask, HeadsView,
    HeadsViewMut, attention, attention_grad, attention_grad_scratch_len, attention_scratch_len,
    attention_with_lse,
};
use tercet_cpu::kernels::{KernelThreads, SimdLevel};

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

/// Operands of an attention call.
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
        // The first query of each batch entry has no visible keys.
        let keep = |(i, x): (usize, &f32)| u8::from(*x > 0.0 && i % cells.max(1) >= c.kv_len);
        let dice = noise(BATCH * cells, 4);
        Operands {
            q: noise(BATCH * hq * c.q_len * dk, 1),
            k: noise(BATCH * hk * c.kv_len * dk, 2),
            v: noise(BATCH * hk * c.kv_len * dv, 3),
            keep: dice.iter().enumerate().map(keep).collect(),
            bias: noise(hq * cells, 5),
            // The second batch entry has fewer valid keys.
            lens: [c.kv_len, c.kv_len.saturating_sub(3).max(c.kv_len.min(1))],
        }
    }

    fn mask(&self, c: &Case) -> AttentionKeyMask<'_> {
        let cells = c.q_len * c.kv_len;
        match c.kind {
            Kind::None => AttentionKeyMask::None,
            Kind::Causal => AttentionKeyMask::Causal,
            Kind::Window(w) => AttentionKeyMask::SlidingWindow(w),
            Kind::Keep => AttentionKeyMask::Keep(&self.keep, [cells, 0, c.kv_len, 1]),
            Kind::Bias => AttentionKeyMask::Bias(&self.bias, [0, cells, c.kv_len, 1]),
        }
    }

    /// Scores of the valid keys for query `i` of a head and batch entry, in f64.
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

    /// Attention result for query `i` of a head and batch entry, in f64.
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
    let a = AttentionArgs {
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
    for threads in [KernelThreads::Serial, KernelThreads::Pool] {
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
    assert_eq!(
        results[0], results[1],
        "the result depends on the number of threads"
    );
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
        // More keys than a single block holds.
        ((2, 1), 20, 600, (24, 40)),
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

/// Reference cotangents of queries, keys and values, in f64.
fn cotangents(c: &Case, of: &Operands, dy: &[f32]) -> [Vec<f64>; 3] {
    let ((hq, hk), (dk, dv)) = (c.heads, c.dims);
    let view = |heads, len, dim| strides(c.bshd, heads, len, dim);
    let (sq, sk) = (view(hq, c.q_len, dk), view(hk, c.kv_len, dk));
    let (sv, so) = (view(hk, c.kv_len, dv), view(hq, c.q_len, dv));
    let mut grads = [of.q.len(), of.k.len(), of.v.len()].map(|n| vec![0.0; n]);
    for (b, h, i) in (0..BATCH * hq * c.q_len).map(|n| {
        let (b, rest) = (n / (hq * c.q_len), n % (hq * c.q_len));
        (b, rest / c.q_len, rest % c.q_len)
    }) {
        let kh = h / (hq / hk);
        let at = |s: [usize; 3], head: usize, row: usize| b * s[0] + head * s[1] + row * s[2];
        let dy: Vec<f64> = dy[at(so, h, i)..][..dv]
            .iter()
            .map(|x| f64::from(*x))
            .collect();
        let y = of.weighted(c, [b, h, i]);
        let delta: f64 = y.iter().zip(&dy).map(|(y, dy)| y * dy).sum();
        let scores = of.scores(c, [b, h, i]);
        let sum: f64 = scores.iter().map(|s| s.exp()).sum();
        for (j, score) in scores.iter().enumerate().filter(|(_, s)| s.is_finite()) {
            let p = score.exp() / sum;
            let v = &of.v[at(sv, kh, j)..][..dv];
            let dp: f64 = dy.iter().zip(v).map(|(dy, v)| dy * f64::from(*v)).sum();
            let slope = c
                .softcap
                .map_or(1.0, |cap| 1.0 - (score / f64::from(cap)).powi(2));
            let ds = p * (dp - delta) * slope * f64::from(0.3f32);
            for d in 0..dk {
                grads[0][at(sq, h, i) + d] += ds * f64::from(of.k[at(sk, kh, j) + d]);
                grads[1][at(sk, kh, j) + d] += ds * f64::from(of.q[at(sq, h, i) + d]);
            }
            for (d, dy) in dy.iter().enumerate() {
                grads[2][at(sv, kh, j) + d] += p * dy;
            }
        }
    }
    grads
}

fn check_gradients(c: &Case, level: SimdLevel) {
    let ((hq, hk), (dk, dv)) = (c.heads, c.dims);
    let of = Operands::new(c);
    let a = AttentionArgs {
        batch: BATCH,
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
    let view = |heads, len, dim| strides(c.bshd, heads, len, dim);
    let (sq, sk) = (view(hq, c.q_len, dk), view(hk, c.kv_len, dk));
    let (sv, so) = (view(hk, c.kv_len, dv), view(hq, c.q_len, dv));
    let read = |data, strides| HeadsView { data, strides };
    let (q, k, v) = (read(&of.q, sq), read(&of.k, sk), read(&of.v, sv));
    let queries = BATCH * hq * c.q_len;
    let dy = noise(queries * dv, 6);
    let (mut y, mut lse) = (vec![9.0; queries * dv], vec![9.0; queries]);
    let mut scratch = vec![0.0; attention_scratch_len(level, KernelThreads::Pool, &a)];
    let out = HeadsViewMut {
        data: &mut y,
        strides: so,
    };
    attention_with_lse(
        level,
        KernelThreads::Pool,
        &a,
        q,
        k,
        v,
        out,
        Some(&mut lse),
        &mut scratch,
    );
    let delta = |n: usize| {
        let len = c.q_len.max(1);
        let (b, h, i) = (n / (hq * len), n / len % hq, n % len);
        let at = b * so[0] + h * so[1] + i * so[2];
        let pairs = y[at..at + dv].iter().zip(&dy[at..]);
        pairs.map(|(y, dy)| y * dy).sum()
    };
    let delta: Vec<f32> = (0..queries).map(delta).collect();
    let back = AttentionGradArgs {
        q,
        k,
        v,
        dy: read(&dy, so),
        lse: &lse,
        delta: &delta,
    };
    let run = |threads: KernelThreads, wanted: [bool; 2]| {
        let mut grads = [of.q.len(), of.k.len(), of.v.len()].map(|n| vec![9.0; n]);
        let [dq, dk, dv] = &mut grads;
        let write = |data, strides| HeadsViewMut { data, strides };
        let to = AttentionCotangents {
            queries: wanted[0].then(|| write(dq, sq)),
            keys: wanted[1].then(|| [write(dk, sk), write(dv, sv)]),
        };
        let mut scratch = vec![f32::NAN; attention_grad_scratch_len(level, threads, &a)];
        attention_grad(level, threads, &a, &back, to, &mut scratch);
        grads
    };
    let both = run(KernelThreads::Pool, [true, true]);
    assert_eq!(
        both,
        run(KernelThreads::Serial, [true, true]),
        "the result depends on the number of threads"
    );
    assert_eq!(both[0], run(KernelThreads::Pool, [true, false])[0]);
    assert_eq!(both[1..], run(KernelThreads::Pool, [false, true])[1..]);
    near(level, &both, &cotangents(c, &of, &dy));
}

/// Asserts that gradients equal those of a reference within tolerance.
fn near(level: SimdLevel, found: &[Vec<f32>; 3], wanted: &[Vec<f64>; 3]) {
    let pairs = found.iter().zip(wanted);
    for (name, (found, wanted)) in ["dq", "dk", "dv"].iter().zip(pairs) {
        for (i, (got, want)) in found.iter().zip(wanted).enumerate() {
            assert!(
                (f64::from(*got) - want).abs() < 1e-4 * want.abs().max(1.0),
                "{name} {i} at {}: {got}, want {want}",
                level.name()
            );
        }
    }
}

#[test]
fn gradients_of_attention_agree_with_f64() {
    let sizes = [
        ((1, 1), 1, 1, (1, 1)),
        ((4, 2), 1, 300, (64, 64)),
        ((3, 3), 5, 5, (16, 7)),
        ((2, 2), 130, 130, (32, 40)),
        ((4, 2), 70, 200, (24, 64)),
        ((2, 1), 9, 4, (8, 8)),
        ((1, 1), 200, 420, (33, 20)),
        ((1, 1), 3, 0, (8, 8)),
        ((1, 1), 0, 5, (8, 8)),
    ];
    for &level in SimdLevel::available() {
        for (i, &(heads, q_len, kv_len, dims)) in sizes.iter().enumerate() {
            let kinds = [
                Kind::None,
                Kind::Causal,
                Kind::Window(3),
                Kind::Window(90),
                Kind::Keep,
            ];
            for (j, &kind) in kinds.iter().enumerate() {
                let case = Case {
                    heads,
                    q_len,
                    kv_len,
                    dims,
                    kind,
                    softcap: ((i + j) % 3 == 0).then_some(5.0),
                    bshd: (i + j) % 2 == 0,
                };
                check_gradients(&case, level);
            }
        }
    }
}
