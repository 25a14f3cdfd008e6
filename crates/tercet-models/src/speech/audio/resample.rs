//! Sample rate conversion with a polyphase windowed-sinc filter.
//!
//! The ratio of the two rates is a fraction. Each of the `up` phases has its filter taps, computed
//! once in F64. Sample positions are integers, so they stay exact for audio of any length.

use std::f64::consts::PI;

/// Zero crossings of the sinc on each side, at the lower of the two rates.
const CROSSINGS: usize = 64;
/// Shape parameter of the Kaiser window (Kaiser 1974): 90 dB attenuation at the end of the
/// transition band.
const BETA: f64 = 9.0;
/// Middle of the transition band, as a fraction of the lower Nyquist frequency; the band ends at
/// that frequency.
const MIDDLE: f64 = 0.955;

/// Streaming sample rate converter.
#[doc(hidden)]
pub struct Resampler {
    /// Number of phases: `up` output samples per `down` input samples.
    up: usize,
    down: usize,
    /// Taps on each side of an output position.
    half: usize,
    /// Filter taps, `[up, 2 half]`.
    taps: Vec<f32>,
    /// Input samples that are still needed; `half - 1` of them precede the current position.
    pending: Vec<f32>,
    /// Phase of the next output sample.
    phase: usize,
    /// Number of input samples so far. The next field is the number of output samples.
    read: u64,
    produced: u64,
}

impl Resampler {
    /// A converter between two rates in Hz.
    pub fn new(from: usize, to: usize) -> Resampler {
        let common = gcd(from, to);
        let (up, down) = (to / common, from / common);
        let lower = (up as f64 / down as f64).min(1.0);
        let (half, taps) = match up == down {
            // Equal rates: the filter is the identity.
            true => (1, vec![1.0, 0.0]),
            false => {
                let half = (CROSSINGS as f64 / lower).ceil() as usize;
                (half, taps(up, half, lower * MIDDLE))
            }
        };
        Resampler {
            up,
            down,
            half,
            taps,
            pending: vec![0.0; half - 1],
            phase: 0,
            read: 0,
            produced: 0,
        }
    }

    /// Consumes samples and appends all output samples that they determine.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) {
        self.read += samples.len() as u64;
        self.pending.extend_from_slice(samples);
        self.write(out, u64::MAX);
    }

    /// Appends the last output samples, up to the end of the input.
    pub fn finish(&mut self, out: &mut Vec<f32>) {
        let (up, down) = (self.up as u64, self.down as u64);
        let all = (self.read * up).div_ceil(down);
        let end = self.pending.len() + 2 * self.half;
        self.pending.resize(end, 0.0);
        self.write(out, all);
    }

    fn write(&mut self, out: &mut Vec<f32>, most: u64) {
        let width = 2 * self.half;
        let mut at = 0;
        while self.produced < most && at + width <= self.pending.len() {
            let taps = &self.taps[self.phase * width..][..width];
            let samples = &self.pending[at..][..width];
            out.push(dot(taps, samples));
            self.produced += 1;
            self.phase += self.down;
            at += self.phase / self.up;
            self.phase %= self.up;
        }
        self.pending.drain(..at.min(self.pending.len()));
    }
}

/// Dot product with independent accumulators, so that the additions do not form one dependency
/// chain.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 8;
    let mut sums = [0.0f32; LANES];
    let (a, b) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = a
        .remainder()
        .iter()
        .zip(b.remainder())
        .map(|(a, b)| a * b)
        .sum();
    for (a, b) in a.zip(b) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Filter taps of all phases, normalized to sum 1; `cutoff` is a fraction of the input's Nyquist
/// frequency.
fn taps(up: usize, half: usize, cutoff: f64) -> Vec<f32> {
    let mut all = Vec::with_capacity(up * 2 * half);
    for phase in 0..up {
        let place = half as f64 - 1.0 + phase as f64 / up as f64;
        let weight = |k: usize| {
            let t = k as f64 - place;
            let x = PI * cutoff * t;
            let sinc = if x == 0.0 { 1.0 } else { x.sin() / x };
            let edge = (1.0 - (t / half as f64).powi(2)).max(0.0);
            sinc * bessel(BETA * edge.sqrt())
        };
        let own: Vec<f64> = (0..2 * half).map(weight).collect();
        let sum: f64 = own.iter().sum();
        all.extend(own.iter().map(|w| (w / sum) as f32));
    }
    all
}

/// Modified Bessel function of order zero, by its power series.
fn bessel(x: f64) -> f64 {
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..60 {
        term *= (x / (2.0 * f64::from(k))).powi(2);
        sum += term;
        if term < 1e-17 * sum {
            break;
        }
    }
    sum
}

fn gcd(a: usize, b: usize) -> usize {
    match b {
        0 => a,
        _ => gcd(b, a % b),
    }
}
