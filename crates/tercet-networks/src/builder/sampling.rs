//! Sampling options for the next token, changeable on a running [`super::Generator`] without
//! recompilation.
//!
//! If the options match the sampling of the compiled graph ([`super::Sampling`]), sampling runs on
//! the device and only the chosen token is copied back. All other options (penalties, biases,
//! `min_p`, another temperature) are sampled on the host from one row of logits. The host uses the
//! random number that the device would have drawn, so both paths choose the same token for the same
//! options.

pub(crate) mod chain;
mod dry;

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

pub(in crate::builder) use chain::SamplingState;
pub use chain::{MirostatOptions, SamplerStep};
pub use dry::{DRY_BREAKERS, DryBreakers, DryOptions};

use super::{ModelError, Sampling};

/// Sampling options of the next token. [`Default`] is greedy decoding.
///
/// Biases apply first, then the steps of `samplers` in their order; Mirostat replaces all steps but the
/// temperature and the penalties before it. With a temperature of 0, penalties apply and the greatest
/// logit is chosen. Equal logits are ordered by token id.
///
/// ```
/// use tercet_networks::SamplingOptions;
/// let options = SamplingOptions { temperature: 0.7, min_p: 0.05, ..SamplingOptions::default() };
/// assert!(options.check(32_000).is_ok());
/// assert!(SamplingOptions { top_p: 2.0, ..options }.check(32_000).is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SamplingOptions {
    /// Divisor of the logits; 0 selects greedy decoding.
    pub temperature: f64,
    /// Keeps only the `k` greatest logits; 0 keeps all.
    pub top_k: usize,
    /// Keeps the smallest set of tokens with at least this total probability; 1 keeps all.
    pub top_p: f64,
    /// Minimum probability relative to the most likely token, 0 to 1 (Nguyen et al. 2024); 0 keeps
    /// all.
    pub min_p: f64,
    /// Repetition penalty (Keskar et al. 2019): divides positive logits of tokens in the context
    /// and multiplies negative ones. 1 disables it.
    pub repetition_penalty: f64,
    /// Number of last context tokens that `repetition_penalty` covers.
    pub repetition_window: usize,
    /// Presence penalty: subtracted from the logit of each token that was generated at least once,
    /// see [`super::Generator::set_penalty_start`].
    pub presence_penalty: f64,
    /// Frequency penalty: subtracted from the logit of a token once per generated occurrence.
    pub frequency_penalty: f64,
    /// Bias added to the logit of each listed token id; minus infinity bans the token.
    pub logit_bias: Vec<(u32, f32)>,
    /// Number of standard deviations below the greatest logit that remain (Tang et al. 2024); 0 keeps
    /// all.
    pub top_n_sigma: f64,
    /// Locally typical sampling (Meister et al. 2022): keeps this total probability of the tokens whose
    /// surprise is closest to the entropy; 1 keeps all.
    pub typical_p: f64,
    /// Probability with which XTC applies to a token; 0 disables it.
    pub xtc_probability: f64,
    /// Probability from which on XTC excludes all tokens but the least likely of them; above 0.5 it
    /// has no effect.
    pub xtc_threshold: f64,
    /// Range of the dynamic temperature around `temperature`; 0 disables it.
    pub dynatemp_range: f64,
    /// Exponent of the normalized entropy in the dynamic temperature.
    pub dynatemp_exponent: f64,
    /// Penalty of repetitions.
    pub dry: DryOptions,
    /// Mirostat sampling.
    pub mirostat: Option<MirostatOptions>,
    /// The sampling steps to apply, in this order.
    pub samplers: Vec<SamplerStep>,
    /// Number of generated tokens before which the tokens of `ends` are banned. The ban does not
    /// apply if every other token is banned, as at the end of a grammar.
    pub min_tokens: usize,
    /// The tokens that end the text, for `min_tokens`.
    pub ends: Vec<u32>,
}

impl Default for SamplingOptions {
    fn default() -> SamplingOptions {
        SamplingOptions::from(Sampling::GREEDY)
    }
}

impl From<Sampling> for SamplingOptions {
    fn from(s: Sampling) -> SamplingOptions {
        SamplingOptions {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: 0.0,
            repetition_penalty: 1.0,
            repetition_window: usize::MAX,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            top_n_sigma: 0.0,
            typical_p: 1.0,
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            dry: DryOptions::default(),
            mirostat: None,
            samplers: SamplerStep::DEFAULT.to_vec(),
            min_tokens: 0,
            ends: Vec::new(),
        }
    }
}

impl SamplingOptions {
    /// Checks that all values are within their ranges and all token ids within a vocabulary of this
    /// size.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] with the name of the option, [`ModelError::Token`].
    pub fn check(&self, vocab: usize) -> Result<(), ModelError> {
        let ranges = [
            ("temperature", self.temperature, 0.0, f64::MAX),
            ("top_p", self.top_p, 0.0, 1.0),
            ("min_p", self.min_p, 0.0, 1.0),
            (
                "repetition_penalty",
                self.repetition_penalty,
                f64::MIN_POSITIVE,
                f64::MAX,
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                f64::MIN,
                f64::MAX,
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                f64::MIN,
                f64::MAX,
            ),
            ("top_n_sigma", self.top_n_sigma, 0.0, f64::MAX),
            ("typical_p", self.typical_p, 0.0, 1.0),
            ("xtc_probability", self.xtc_probability, 0.0, 1.0),
            ("xtc_threshold", self.xtc_threshold, 0.0, 1.0),
            ("dynatemp_range", self.dynatemp_range, 0.0, f64::MAX),
            ("dynatemp_exponent", self.dynatemp_exponent, 0.0, f64::MAX),
            ("dry.multiplier", self.dry.multiplier, 0.0, f64::MAX),
            ("dry.base", self.dry.base, 1.0, f64::MAX),
            (
                "mirostat.tau",
                self.mirostat.map_or(0.0, |m| m.tau),
                0.0,
                f64::MAX,
            ),
            (
                "mirostat.eta",
                self.mirostat.map_or(0.0, |m| m.eta),
                0.0,
                f64::MAX,
            ),
        ];
        for (name, value, lo, hi) in ranges {
            if !(lo..=hi).contains(&value) {
                return Err(ModelError::Unsupported(format!(
                    "sampling option {name} is {value}; expected a finite number from {lo:e} to {hi:e}"
                )));
            }
        }
        for &(token, bias) in &self.logit_bias {
            if token as usize >= vocab {
                return Err(ModelError::Token { token, vocab });
            }
            if bias.is_nan() || bias == f32::INFINITY {
                return Err(ModelError::Unsupported(format!(
                    "logit bias of token {token} is {bias}; expected a finite number or -inf"
                )));
            }
        }
        Ok(())
    }

    /// True if these options choose the same tokens as a graph that was built with the options
    /// `compiled`.
    pub(super) fn is(&self, compiled: &Sampling) -> bool {
        let changes_logits = self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty()
            || self.min_tokens > 0
            || self.dry.is_on();
        let has_temperature = self.samplers.contains(&SamplerStep::Temperature);
        let is_greedy = self.temperature == 0.0 && has_temperature;
        let greedy = is_greedy && compiled.temperature == 0.0;
        let same = self.temperature == compiled.temperature
            && self.top_k == compiled.top_k
            && self.top_p == compiled.top_p
            && self.min_p == 0.0
            && !self.has_steps();
        !changes_logits && (greedy || same)
    }

    /// Whether options are set that only [`Self::sample_by_steps`] implements.
    fn has_steps(&self) -> bool {
        self.samplers != SamplerStep::DEFAULT
            || self.mirostat.is_some()
            || self.top_n_sigma > 0.0
            || self.typical_p < 1.0
            || self.xtc_probability > 0.0
            || self.dynatemp_range > 0.0
    }

    /// Whether the greatest logit is always chosen.
    pub(super) fn is_greedy(&self) -> bool {
        let has_temperature = self.samplers.contains(&SamplerStep::Temperature);
        self.temperature == 0.0 && (has_temperature || self.mirostat.is_some())
    }

    /// Samples a token from one row of logits with two random numbers in `[0, 1)`; `None` if the row is
    /// empty. `context` is the whole sequence, `written` its generated part.
    #[doc(hidden)]
    pub fn sample(
        &self,
        logits: &[f32],
        (context, written): (&[u32], &[u32]),
        units: [f64; 2],
        state: &mut SamplingState,
    ) -> Option<u32> {
        if self.is_greedy() {
            return self.greatest(logits, context, written);
        }
        let logits = self.changed(logits, context, written);
        if self.has_steps() {
            return self.sample_by_steps(&logits, (context, written), units, state);
        }
        let unit = units[0];
        let first = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
        let greatest = (0..logits.len()).reduce(first)?;
        let max = logits[greatest];
        if max == f64::NEG_INFINITY {
            return Some(greatest as u32);
        }
        let weight = |i: usize| match logits[i] == max {
            true => 1.0, // infinity less itself is NaN
            false => ((logits[i] - max) / self.temperature).exp(),
        };
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        // Without `top_p` the total of all weights is not needed to find the least likely token that
        // may be drawn. Tokens below `min_p` are then dropped at once.
        if self.top_p == 1.0 && self.min_p > 0.0 {
            order.retain(|&i| weight(i as usize) >= self.min_p);
        }
        let descending = |a: &u32, b: &u32| {
            let greater = logits[*b as usize].partial_cmp(&logits[*a as usize]);
            greater.unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        if (1..order.len()).contains(&self.top_k) {
            order.select_nth_unstable_by(self.top_k - 1, descending);
            order.truncate(self.top_k);
        }
        self.draw(order, descending, |&i| weight(i as usize), unit)
    }

    /// Samples one of the tokens in `order` in proportion to its weight. The maximum weight is 1.
    ///
    /// The function sorts only the tokens that can be drawn, because sorting a large vocabulary
    /// takes longer than all other work here. The most likely tokens have nearly all weight.
    fn draw(
        &self,
        mut order: Vec<u32>,
        descending: impl Fn(&u32, &u32) -> Ordering,
        weight: impl Fn(&u32) -> f64,
        unit: f64,
    ) -> Option<u32> {
        /// Number of the most probable tokens that are sorted. If these do not suffice, all are sorted: the
        /// distribution is flat then, and more steps would cost more than they save.
        const SORTED: usize = 1024;
        let count = order.len();
        let sum = (count > SORTED).then(|| order.iter().map(&weight).sum::<f64>());
        let mut running: Vec<f64> = Vec::new();
        // Number of tokens that are at least as likely as `min_p` says, once known.
        let mut likely = None;
        let mut end = SORTED.min(count);
        loop {
            let begin = running.len();
            if end < count {
                order[begin..].select_nth_unstable_by(end - 1 - begin, &descending);
            }
            order[begin..end].sort_unstable_by(&descending);
            for token in &order[begin..end] {
                let own = weight(token);
                if own < self.min_p && likely.is_none() {
                    likely = Some(running.len().max(1));
                }
                running.push(running.last().copied().unwrap_or(0.0) + own);
            }
            let total = sum.or(running.last().copied())?;
            let needed = self.top_p * total;
            let reached = match self.top_p == 1.0 {
                true => None,
                false => running.iter().position(|&r| r >= needed).map(|i| i + 1),
            };
            let known = [reached, likely, (end == count).then_some(count)];
            let kept = known.into_iter().flatten().min();
            let threshold = unit * kept.map_or(total, |kept| running[kept - 1]);
            // A threshold below an unknown end is only known without `top_p`.
            if kept.is_some() || self.top_p == 1.0 {
                let tokens = kept.unwrap_or(end);
                let drawn = running[..tokens].iter().position(|&r| r > threshold);
                if let Some(drawn) = drawn.or(kept.map(|kept| kept - 1)) {
                    return Some(order[drawn]);
                }
            }
            end = count;
        }
    }

    /// The first token with the greatest logit after penalties and biases. Only the logits that change are computed
    /// in F64: a vocabulary has some hundred thousand.
    fn greatest(&self, logits: &[f32], context: &[u32], written: &[u32]) -> Option<u32> {
        if logits.is_empty() {
            return None;
        }
        let changed = self.changed_logits(logits, context, written);
        let ends: &[u32] = match written.len() < self.min_tokens {
            true => &self.ends,
            false => &[],
        };
        let mut others = logits.to_vec();
        for token in changed.keys().chain(ends) {
            if let Some(x) = others.get_mut(*token as usize) {
                *x = f32::NEG_INFINITY;
            }
        }
        let max = others
            .iter()
            .fold(f32::NEG_INFINITY, |max, x| match *x > max {
                true => *x,
                false => max,
            });
        let at = others.iter().position(|x| *x == max).unwrap_or(0);
        let greater = |best: (u32, f64), (token, x): (u32, f64)| {
            let is_first = x == best.1 && token < best.0;
            if x > best.1 || is_first {
                (token, x)
            } else {
                best
            }
        };
        let allowed = changed.iter().filter(|(token, _)| !ends.contains(token));
        let allowed = allowed.map(|(token, x)| (*token, *x));
        let mut best = allowed.fold((at as u32, f64::from(max)), greater);
        // If all others are banned, ends are not.
        if best.1 == f64::NEG_INFINITY {
            let all = (0..).zip(logits).map(|(token, x)| {
                let own = changed.get(&token).copied();
                (token, own.unwrap_or_else(|| number(*x)))
            });
            best = all.fold((0, f64::NEG_INFINITY), greater);
        }
        Some(best.0)
    }

    /// Logits after penalties and biases. NaN becomes minus infinity.
    pub(super) fn changed(&self, logits: &[f32], context: &[u32], written: &[u32]) -> Vec<f64> {
        let changed = self.changed_logits(logits, context, written);
        let mut logits: Vec<f64> = logits.iter().copied().map(number).collect();
        for (token, x) in changed {
            logits[token as usize] = x;
        }
        if written.len() < self.min_tokens {
            self.ban_ends(&mut logits);
        }
        logits
    }

    /// The logits that penalties and biases change, by token.
    fn changed_logits(
        &self,
        logits: &[f32],
        context: &[u32],
        written: &[u32],
    ) -> HashMap<u32, f64> {
        let mut changed: HashMap<u32, f64> = HashMap::new();
        let mut change = |token: u32, new: &dyn Fn(f64) -> f64| {
            if let Some(x) = logits.get(token as usize) {
                let x = changed.entry(token).or_insert_with(|| number(*x));
                *x = new(*x);
            }
        };
        let is_greedy = self.is_greedy();
        let steps = self.samplers.iter();
        let before = steps.take_while(|step| is_greedy || step.is_penalty());
        for step in before.filter(|step| step.is_penalty()) {
            for (token, own) in self.penalties(*step, context, written) {
                change(token, &|x| own.apply(x));
            }
        }
        for &(token, bias) in &self.logit_bias {
            change(token, &|x| x + f64::from(bias));
        }
        // A logit of infinity plus a bias of the opposite infinity is NaN.
        for x in changed.values_mut().filter(|x| x.is_nan()) {
            *x = f64::NEG_INFINITY;
        }
        changed
    }

    /// Bans the tokens that end the text, unless all others are banned already.
    fn ban_ends(&self, logits: &mut [f64]) {
        let ends: HashSet<u32> = self.ends.iter().copied().collect();
        let mut others = (0..).zip(logits.iter());
        if others.any(|(token, x)| *x > f64::NEG_INFINITY && !ends.contains(&token)) {
            for token in ends {
                if let Some(x) = logits.get_mut(token as usize) {
                    *x = f64::NEG_INFINITY;
                }
            }
        }
    }

    /// The change that the penalty `step` makes to the logit of each token.
    fn penalties(
        &self,
        step: SamplerStep,
        context: &[u32],
        written: &[u32],
    ) -> HashMap<u32, LogitChange> {
        let mut changes: HashMap<u32, LogitChange> = HashMap::new();
        if step == SamplerStep::Dry {
            for (token, penalty) in self.dry.penalties(context) {
                changes.entry(token).or_default().less += penalty;
            }
            return changes;
        }
        if self.repetition_penalty != 1.0 {
            let from = context.len().saturating_sub(self.repetition_window);
            for token in counts(&context[from..]).into_keys() {
                changes.entry(token).or_default().repetition = self.repetition_penalty;
            }
        }
        if self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 {
            for (token, n) in counts(written) {
                let penalty = self.presence_penalty + self.frequency_penalty * n as f64;
                changes.entry(token).or_default().less += penalty;
            }
        }
        changes
    }

    /// Applies the penalty `step` to the logits of the candidates.
    fn penalize(
        &self,
        step: SamplerStep,
        candidates: &mut [(u32, f64)],
        context: &[u32],
        written: &[u32],
    ) {
        let changes = self.penalties(step, context, written);
        for (token, x) in candidates {
            if let Some(change) = changes.get(token) {
                *x = change.apply(*x);
            }
        }
    }
}

/// A logit as F64. NaN becomes minus infinity.
fn number(x: f32) -> f64 {
    match x.is_nan() {
        true => f64::NEG_INFINITY,
        false => f64::from(x),
    }
}

/// The change of a logit by penalties.
struct LogitChange {
    /// Factor that divides a positive logit and multiplies a negative one.
    repetition: f64,
    /// Subtracted after that.
    less: f64,
}

impl Default for LogitChange {
    fn default() -> LogitChange {
        LogitChange {
            repetition: 1.0,
            less: 0.0,
        }
    }
}

impl LogitChange {
    fn apply(&self, x: f64) -> f64 {
        let x = match x > 0.0 {
            true => x / self.repetition,
            false => x * self.repetition,
        };
        x - self.less
    }
}

fn counts(tokens: &[u32]) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    for &token in tokens {
        *counts.entry(token).or_insert(0) += 1;
    }
    counts
}
