//! Sampling options for the next token, changeable on a running [`super::Generator`] without
//! recompilation.
//!
//! If the options match the sampling of the compiled graph ([`super::Sampling`]), sampling runs on
//! the device and only the chosen token is copied back. All other options (penalties, biases,
//! `min_p`, another temperature) are sampled on the host from one row of logits. The host uses the
//! random number that the device would have drawn, so both paths choose the same token for the same
//! options.

use std::cmp::Ordering;
use std::collections::HashMap;

use super::{ModelError, Sampling};

/// Sampling options of the next token. [`Default`] is greedy decoding.
///
/// Order of application: penalties and logit biases, `top_k`, `temperature`, then the stricter of
/// `top_p` and `min_p`. Equal logits are ordered by token id.
///
/// ```
/// use tercet_models::SamplingOptions;
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
    /// Subtracted from the logit of each token that was generated at least once, see
    /// [`super::Generator::set_penalty_start`].
    pub presence_penalty: f64,
    /// Subtracted from the logit of a token once per generated occurrence.
    pub frequency_penalty: f64,
    /// Bias added to the logit of each listed token id; minus infinity bans the token.
    pub logit_bias: Vec<(u32, f32)>,
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

    /// True if a graph built with `compiled` chooses the same tokens.
    pub(super) fn is(&self, compiled: &Sampling) -> bool {
        let changes_logits = self.repetition_penalty != 1.0
            || self.presence_penalty != 0.0
            || self.frequency_penalty != 0.0
            || !self.logit_bias.is_empty();
        let greedy = self.temperature == 0.0 && compiled.temperature == 0.0;
        let same = self.temperature == compiled.temperature
            && self.top_k == compiled.top_k
            && self.top_p == compiled.top_p
            && self.min_p == 0.0;
        !changes_logits && (greedy || same)
    }

    /// Samples a token from one row of logits with the random number `unit` in `[0, 1)`; `None` if
    /// the row is empty. `context` is the whole sequence, `written` its generated part.
    pub(super) fn sample(
        &self,
        logits: &[f32],
        context: &[u32],
        written: &[u32],
        unit: f64,
    ) -> Option<u32> {
        let logits = self.changed(logits, context, written);
        let first = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
        let greatest = (0..logits.len()).reduce(first)?;
        let max = logits[greatest];
        if self.temperature == 0.0 || max == f64::NEG_INFINITY {
            return Some(greatest as u32);
        }
        let weight = |i: usize| match logits[i] == max {
            true => 1.0, // infinity less itself is NaN
            false => ((logits[i] - max) / self.temperature).exp(),
        };
        let mut order: Vec<usize> = (0..logits.len()).collect();
        // Without `top_p` the total of all weights is not needed. Tokens below `min_p` are then
        // dropped before the sort.
        if self.top_p == 1.0 {
            order.retain(|&i| weight(i) >= self.min_p);
        }
        let descending = |a: &usize, b: &usize| {
            let greater = logits[*b].partial_cmp(&logits[*a]);
            greater.unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        if (1..order.len()).contains(&self.top_k) {
            order.select_nth_unstable_by(self.top_k - 1, descending);
            order.truncate(self.top_k);
        }
        order.sort_unstable_by(descending);
        let mut running: Vec<f64> = order.iter().map(|&i| weight(i)).collect();
        let likely = running.partition_point(|&w| w >= self.min_p).max(1);
        for i in 1..running.len() {
            running[i] += running[i - 1];
        }
        let needed = self.top_p * running.last()?;
        let reached = running.iter().position(|&r| r >= needed);
        let kept = reached.map_or(order.len(), |i| i + 1).min(likely);
        let threshold = unit * running[kept - 1];
        let drawn = running[..kept].iter().position(|&r| r > threshold);
        Some(order[drawn.unwrap_or(kept - 1)] as u32)
    }

    /// Logits after penalties and biases. NaN becomes minus infinity.
    pub(super) fn changed(&self, logits: &[f32], context: &[u32], written: &[u32]) -> Vec<f64> {
        let number = |x: &f32| match x.is_nan() {
            true => f64::NEG_INFINITY,
            false => f64::from(*x),
        };
        let mut logits: Vec<f64> = logits.iter().map(number).collect();
        if self.repetition_penalty != 1.0 {
            let from = context.len().saturating_sub(self.repetition_window);
            for token in counts(&context[from..]).into_keys() {
                if let Some(x) = logits.get_mut(token as usize) {
                    *x = match *x > 0.0 {
                        true => *x / self.repetition_penalty,
                        false => *x * self.repetition_penalty,
                    };
                }
            }
        }
        if self.presence_penalty != 0.0 || self.frequency_penalty != 0.0 {
            for (token, n) in counts(written) {
                if let Some(x) = logits.get_mut(token as usize) {
                    *x -= self.presence_penalty + self.frequency_penalty * n as f64;
                }
            }
        }
        for &(token, bias) in &self.logit_bias {
            if let Some(x) = logits.get_mut(token as usize) {
                *x += f64::from(bias);
            }
        }
        // The sum of infinities of opposite signs is NaN.
        for x in logits.iter_mut().filter(|x| x.is_nan()) {
            *x = f64::NEG_INFINITY;
        }
        logits
    }
}

fn counts(tokens: &[u32]) -> HashMap<u32, usize> {
    let mut counts = HashMap::new();
    for &token in tokens {
        *counts.entry(token).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use tercet::ops::Sample;

    const LOGITS: [f32; 7] = [0.5, -1.0, 2.0, 1.5, 0.5, f32::NAN, 1.0];

    fn drawn(temperature: f64) -> SamplingOptions {
        SamplingOptions {
            temperature,
            ..SamplingOptions::default()
        }
    }

    #[test]
    fn without_what_only_the_host_does_tokens_are_those_of_the_operator() {
        let logits: Vec<f64> = LOGITS.iter().map(|x| f64::from(*x)).collect();
        for temperature in [0.0, 0.3, 1.0, 4.0] {
            for top_k in [0, 1, 3, 7, 99] {
                for top_p in [0.0, 0.5, 0.9, 1.0] {
                    let op = Sample {
                        top_k,
                        top_p: tercet::attr::FloatAttr(top_p),
                        temperature: tercet::attr::FloatAttr(temperature),
                        seed: 0,
                        stream: 0,
                    };
                    let options = SamplingOptions {
                        top_k,
                        top_p,
                        ..drawn(temperature)
                    };
                    for unit in (0..200).map(|i| f64::from(i) / 200.0) {
                        let want = op.sample_index(&logits, unit).map(|i| i as u32);
                        assert_eq!(
                            options.sample(&LOGITS, &[], &[], unit),
                            want,
                            "{op:?} {unit}"
                        );
                    }
                }
            }
        }
    }

    /// All tokens that sampling can return with these options.
    fn possible(options: &SamplingOptions) -> Vec<u32> {
        let units = (0..1000).map(|i| f64::from(i) / 1000.0);
        let mut tokens: Vec<u32> = units
            .filter_map(|unit| options.sample(&LOGITS, &[], &[], unit))
            .collect();
        tokens.sort_unstable();
        tokens.dedup();
        tokens
    }

    #[test]
    fn min_p_keeps_what_is_likely_beside_the_likeliest() {
        let with = |min_p, top_p| SamplingOptions {
            min_p,
            top_p,
            ..drawn(1.0)
        };
        // Weights relative to token 2: exp(-0.5) = 0.61, exp(-1) = 0.37, exp(-1.5) = 0.22 twice,
        // exp(-3) = 0.05.
        assert_eq!(possible(&with(0.0, 1.0)), [0, 1, 2, 3, 4, 6]);
        assert_eq!(possible(&with(0.5, 1.0)), [2, 3]);
        assert_eq!(possible(&with(0.3, 1.0)), [2, 3, 6]);
        assert_eq!(possible(&with(0.3, 0.999)), [2, 3, 6]);
        assert_eq!(possible(&with(1.0, 1.0)), [2]);
        assert_eq!(possible(&with(0.3, 0.5)), [2, 3]);
    }

    #[test]
    fn penalties_and_biases_change_logits() {
        let check = |options: &SamplingOptions, context: &[u32], written: &[u32], want| {
            assert_eq!(options.sample(&LOGITS, context, written, 0.0), Some(want));
        };
        let base = SamplingOptions::default();
        check(&base, &[2], &[2], 2);
        let repetition = SamplingOptions {
            repetition_penalty: 2.0,
            repetition_window: 2,
            ..base.clone()
        };
        check(&repetition, &[2], &[], 3);
        check(&repetition, &[2, 9, 9], &[], 2); // outside the window; 9 is outside the logits
        let presence = SamplingOptions {
            presence_penalty: 0.6,
            ..base.clone()
        };
        check(&presence, &[2, 2], &[], 2); // not written
        check(&presence, &[], &[2, 2], 3);
        let frequency = SamplingOptions {
            frequency_penalty: 0.3,
            ..base.clone()
        };
        check(&frequency, &[], &[2], 2);
        check(&frequency, &[], &[2, 2], 3);
        let bias = SamplingOptions {
            logit_bias: vec![(2, f32::NEG_INFINITY), (1, 9.0)],
            ..base
        };
        check(&bias, &[], &[], 1);
    }

    #[test]
    fn what_is_out_of_range_is_refused_by_name() {
        let refused = |options: SamplingOptions, name: &str| {
            let e = options.check(7).unwrap_err().to_string();
            assert!(e.contains(name), "{e}");
        };
        refused(drawn(f64::NAN), "temperature");
        refused(drawn(-1.0), "temperature");
        let base = SamplingOptions::default();
        let with = |f: &dyn Fn(&mut SamplingOptions)| {
            let mut options = base.clone();
            f(&mut options);
            options
        };
        refused(with(&|o| o.min_p = 1.5), "min_p");
        refused(with(&|o| o.repetition_penalty = 0.0), "repetition_penalty");
        refused(
            with(&|o| o.frequency_penalty = f64::INFINITY),
            "frequency_penalty",
        );
        refused(with(&|o| o.logit_bias = vec![(7, 0.0)]), "token 7");
        refused(with(&|o| o.logit_bias = vec![(1, f32::NAN)]), "token 1");
        assert!(base.check(7).is_ok());
    }
}
