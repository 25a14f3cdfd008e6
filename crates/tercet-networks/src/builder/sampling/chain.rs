//! Sampling by a chain of steps in the order that a caller chooses; each step reduces or changes
//! the candidate tokens.

use std::cmp::Ordering;

use super::SamplingOptions;

/// A step of sampling; [`SamplerStep::DEFAULT`] is their default order.
///
/// ```
/// use tercet_networks::SamplerStep;
/// let steps = SamplerStep::parse_all("penalties;top_k;temperature")?;
/// assert_eq!(steps, [SamplerStep::Penalties, SamplerStep::TopK, SamplerStep::Temperature]);
/// assert!(SamplerStep::parse_all("top_q").is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SamplerStep {
    /// Repetition, presence and frequency penalties.
    Penalties,
    /// The DRY penalty.
    Dry,
    /// Keeps logits within some standard deviations of the greatest.
    TopNSigma,
    /// Keeps the greatest logits.
    TopK,
    /// Divides the logits by the temperature, fixed or dynamic.
    Temperature,
    /// Keeps the tokens whose surprise is closest to the expected one.
    Typical,
    /// Keeps the most likely tokens up to a total probability.
    TopP,
    /// Keeps tokens that are likely enough relative to the most likely.
    MinP,
    /// Removes the most likely of several likely tokens, by chance.
    Xtc,
}

impl SamplerStep {
    /// The default order.
    pub const DEFAULT: [SamplerStep; 9] = [
        SamplerStep::Penalties,
        SamplerStep::Dry,
        SamplerStep::TopNSigma,
        SamplerStep::TopK,
        SamplerStep::Temperature,
        SamplerStep::Typical,
        SamplerStep::TopP,
        SamplerStep::MinP,
        SamplerStep::Xtc,
    ];

    /// The name of the step.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SamplerStep::Penalties => "penalties",
            SamplerStep::Dry => "dry",
            SamplerStep::TopNSigma => "top_n_sigma",
            SamplerStep::TopK => "top_k",
            SamplerStep::Temperature => "temperature",
            SamplerStep::Typical => "typ_p",
            SamplerStep::TopP => "top_p",
            SamplerStep::MinP => "min_p",
            SamplerStep::Xtc => "xtc",
        }
    }

    /// The step with this name, or with another name that llama.cpp accepts.
    #[must_use]
    pub fn from_name(name: &str) -> Option<SamplerStep> {
        let name = name.trim().replace('-', "_");
        let name = match name.as_str() {
            "nucleus" => "top_p",
            "typical" | "typical_p" | "typ" => "typ_p",
            "temp" => "temperature",
            "top_nsigma" => "top_n_sigma",
            other => other,
        };
        let mut all = SamplerStep::DEFAULT.into_iter();
        all.find(|step| step.name() == name)
    }

    /// Parses the names of steps, separated by semicolons.
    ///
    /// # Errors
    /// A description of the unknown name.
    pub fn parse_all(names: &str) -> Result<Vec<SamplerStep>, String> {
        let names = names.split(';').filter(|name| !name.trim().is_empty());
        let step = |name: &str| {
            SamplerStep::from_name(name).ok_or_else(|| {
                let known = SamplerStep::DEFAULT.map(SamplerStep::name).join(", ");
                let shown: String = name.trim().chars().take(64).collect();
                format!("unknown sampler `{shown}`; expected one of {known}")
            })
        };
        names.map(step).collect()
    }
}

/// Mirostat (Basu et al. 2021): keeps the surprise of the text near a target.
///
/// ```
/// use tercet_networks::{MirostatOptions, SamplingOptions};
/// let mirostat = Some(MirostatOptions { tau: 3.0, ..MirostatOptions::V2 });
/// let options = SamplingOptions { temperature: 1.0, mirostat, ..SamplingOptions::default() };
/// assert!(options.check(32_000).is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MirostatOptions {
    /// Whether the Zipf exponent of the token probabilities is estimated, as in version 1.
    pub estimates_exponent: bool,
    /// The target surprise of a token, in bits.
    pub tau: f64,
    /// The learning rate.
    pub eta: f64,
}

impl MirostatOptions {
    /// Version 1, with a target of 5 bits and the rate 0.1.
    pub const V1: MirostatOptions = MirostatOptions {
        estimates_exponent: true,
        tau: 5.0,
        eta: 0.1,
    };
    /// Version 2, with a target of 5 bits and the rate 0.1.
    pub const V2: MirostatOptions = MirostatOptions {
        estimates_exponent: false,
        ..MirostatOptions::V1
    };
}

/// Number of most likely tokens from which version 1 estimates the exponent.
const MIROSTAT_TOKENS: usize = 100;

/// What sampling remembers between the tokens of a text.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingState {
    /// Mirostat's maximum surprise of a token; `None` before the first token of a text.
    pub mu: Option<f64>,
}

/// The tokens that may still be sampled, with their logits.
struct Candidates {
    all: Vec<(u32, f64)>,
    /// Whether the tokens are sorted by descending logit, equal logits by token id.
    is_sorted: bool,
}

fn descending(a: &(u32, f64), b: &(u32, f64)) -> Ordering {
    let greater = b.1.partial_cmp(&a.1).unwrap_or(Ordering::Equal);
    greater.then(a.0.cmp(&b.0))
}

impl Candidates {
    /// All tokens with a logit above minus infinity.
    fn new(logits: &[f64]) -> Candidates {
        let all = (0..).zip(logits.iter().copied());
        Candidates {
            all: all.filter(|(_, x)| *x > f64::NEG_INFINITY).collect(),
            is_sorted: false,
        }
    }

    fn sort(&mut self) {
        if !self.is_sorted {
            self.all.sort_unstable_by(descending);
            self.is_sorted = true;
        }
    }

    fn max(&self) -> f64 {
        let logits = self.all.iter().map(|(_, logit)| *logit);
        logits.fold(f64::NEG_INFINITY, f64::max)
    }

    /// Probabilities of the candidates. Infinite logits share all.
    fn probabilities(&self) -> Vec<f64> {
        let max = self.max();
        let weight = |logit: f64| match logit == max {
            true => 1.0, // infinity less itself is NaN
            false => (logit - max).exp(),
        };
        let weights: Vec<f64> = self.all.iter().map(|(_, logit)| weight(*logit)).collect();
        let total: f64 = weights.iter().sum();
        weights.into_iter().map(|w| w / total).collect()
    }

    /// Keeps the `count` most likely tokens, at least one.
    fn keep(&mut self, count: usize) {
        let count = count.max(1);
        if !self.is_sorted && count < self.all.len() {
            self.all.select_nth_unstable_by(count - 1, descending);
        }
        self.all.truncate(count);
    }

    /// Draws a token; also returns its probability.
    fn draw(&mut self, unit: f64) -> Option<(u32, f64)> {
        self.sort();
        let probabilities = self.probabilities();
        let mut running = 0.0;
        let drawn = probabilities.iter().position(|p| {
            running += p;
            running > unit
        });
        let at = drawn.unwrap_or(self.all.len().checked_sub(1)?);
        Some((self.all[at].0, probabilities[at]))
    }

    fn divide(&mut self, temperature: f64) {
        match temperature > 0.0 {
            true => self.all.iter_mut().for_each(|(_, x)| *x /= temperature),
            false => self.keep(1),
        }
    }
}

/// The entropy of a distribution, in nats.
fn entropy(probabilities: &[f64]) -> f64 {
    let terms = probabilities.iter().filter(|p| **p > 0.0);
    terms.map(|p| -p * p.ln()).sum()
}

impl SamplerStep {
    /// Whether the step is a penalty, which changes logits and removes no token.
    pub(super) fn is_penalty(self) -> bool {
        matches!(self, SamplerStep::Penalties | SamplerStep::Dry)
    }
}

impl SamplingOptions {
    /// Samples a token by applying the steps in their order. `logits` already include the biases
    /// and the leading penalty steps ([`Self::changed`]). `units` are two random numbers in `[0,
    /// 1)`.
    pub(super) fn sample_by_steps(
        &self,
        logits: &[f64],
        (context, written): (&[u32], &[u32]),
        units: [f64; 2],
        state: &mut SamplingState,
    ) -> Option<u32> {
        let mut candidates = Candidates::new(logits);
        if candidates.all.is_empty() {
            return (!logits.is_empty()).then_some(0);
        }
        if let Some(mirostat) = self.mirostat {
            self.temper(&mut candidates);
            return mirostat.sample(candidates, logits.len(), units[0], state);
        }
        let steps = self.samplers.iter().skip_while(|step| step.is_penalty());
        for step in steps {
            match step {
                SamplerStep::Penalties | SamplerStep::Dry => {
                    self.penalize(*step, &mut candidates.all, context, written);
                    candidates.is_sorted = false;
                }
                SamplerStep::TopNSigma => self.keep_top_n_sigma(&mut candidates),
                SamplerStep::TopK if self.top_k == 0 => {}
                SamplerStep::TopK => candidates.keep(self.top_k),
                SamplerStep::Temperature => self.temper(&mut candidates),
                SamplerStep::Typical => self.keep_typical(&mut candidates),
                SamplerStep::TopP => self.keep_top_p(&mut candidates),
                SamplerStep::MinP => self.keep_min_p(&mut candidates),
                SamplerStep::Xtc => self.exclude_top(&mut candidates, units[1]),
            }
        }
        candidates.draw(units[0]).map(|(token, _)| token)
    }

    /// Divides by the temperature. A dynamic temperature depends on the entropy: it is lowest if
    /// one token is certain, and highest if all are equally likely.
    fn temper(&self, candidates: &mut Candidates) {
        let (range, count) = (self.dynatemp_range, candidates.all.len());
        if range <= 0.0 {
            return candidates.divide(self.temperature);
        }
        if count < 2 {
            return;
        }
        let uncertainty = entropy(&candidates.probabilities()) / (count as f64).ln();
        let least = (self.temperature - range).max(0.0);
        let most = self.temperature + range;
        candidates.divide(least + (most - least) * uncertainty.powf(self.dynatemp_exponent));
    }

    fn keep_top_n_sigma(&self, candidates: &mut Candidates) {
        if self.top_n_sigma <= 0.0 {
            return;
        }
        let count = candidates.all.len() as f64;
        let mean = candidates.all.iter().map(|(_, x)| x).sum::<f64>() / count;
        let squares = candidates.all.iter().map(|(_, x)| (x - mean) * (x - mean));
        let least = candidates.max() - self.top_n_sigma * (squares.sum::<f64>() / count).sqrt();
        // With an infinite logit the standard deviation is NaN; then the comparison is false and
        // all tokens remain.
        candidates
            .all
            .retain(|(_, x)| x.partial_cmp(&least) != Some(Ordering::Less));
    }

    fn keep_typical(&self, candidates: &mut Candidates) {
        if self.typical_p >= 1.0 {
            return;
        }
        candidates.sort();
        let probabilities = candidates.probabilities();
        let expected = entropy(&probabilities);
        let distance = |at: &usize| (-probabilities[*at].ln() - expected).abs();
        let mut order: Vec<usize> = (0..probabilities.len()).collect();
        order.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
        let mut running = 0.0;
        let reached = order.iter().position(|at| {
            running += probabilities[*at];
            running > self.typical_p
        });
        order.truncate(reached.map_or(order.len(), |at| at + 1));
        candidates.all = order.into_iter().map(|at| candidates.all[at]).collect();
        candidates.is_sorted = false;
    }

    fn keep_top_p(&self, candidates: &mut Candidates) {
        if self.top_p >= 1.0 {
            return;
        }
        candidates.sort();
        let mut running = 0.0;
        let reached = candidates.probabilities().iter().position(|p| {
            running += p;
            running >= self.top_p
        });
        candidates.keep(reached.map_or(candidates.all.len(), |at| at + 1));
    }

    fn keep_min_p(&self, candidates: &mut Candidates) {
        if self.min_p > 0.0 {
            let least = candidates.max() + self.min_p.ln();
            candidates
                .all
                .retain(|(_, x)| x.partial_cmp(&least) != Some(Ordering::Less));
        }
    }

    /// Of the tokens at or above the threshold, keeps only the least likely (XTC).
    fn exclude_top(&self, candidates: &mut Candidates, unit: f64) {
        let is_off = self.xtc_probability <= 0.0 || self.xtc_threshold > 0.5;
        if is_off || unit >= self.xtc_probability || candidates.all.len() < 2 {
            return;
        }
        candidates.sort();
        let probabilities = candidates.probabilities();
        let likely = probabilities.partition_point(|p| *p >= self.xtc_threshold);
        candidates.all.drain(..likely.saturating_sub(1));
    }
}

impl MirostatOptions {
    fn sample(
        &self,
        mut candidates: Candidates,
        vocab: usize,
        unit: f64,
        state: &mut SamplingState,
    ) -> Option<u32> {
        let mu = state.mu.unwrap_or(2.0 * self.tau);
        candidates.sort();
        let probabilities = candidates.probabilities();
        match self.estimates_exponent {
            true => {
                let count = exponent_count(&probabilities, vocab, mu);
                // The cast saturates; NaN becomes 0.
                candidates.keep(count as usize);
            }
            false => {
                let likely = probabilities.partition_point(|p| -p.log2() <= mu);
                candidates.keep(likely);
            }
        }
        let (token, probability) = candidates.draw(unit)?;
        state.mu = Some(mu - self.eta * (-probability.log2() - self.tau));
        Some(token)
    }
}

/// The number of tokens whose truncation gives the surprise `mu`, if token `i` has a probability
/// proportional to `i^-s`. The exponent `s` is estimated from the most likely tokens.
fn exponent_count(probabilities: &[f64], vocab: usize, mu: f64) -> f64 {
    let (mut products, mut squares) = (0.0, 0.0);
    let pairs = probabilities.windows(2).take(MIROSTAT_TOKENS - 1);
    for (i, pair) in pairs.enumerate() {
        let rank = ((i + 2) as f64 / (i + 1) as f64).ln();
        products += rank * (pair[0] / pair[1]).ln();
        squares += rank * rank;
    }
    let s = products / squares;
    let epsilon = s - 1.0;
    let power = epsilon * mu.exp2() / (1.0 - (vocab as f64).powf(-epsilon));
    power.powf(1.0 / s)
}
