//! How likely tokens are: natural logarithms of the softmax of a row of logits as the model gives them, before
//! temperature, penalties, biases and grammars.

use std::cmp::Ordering;

use tercet_models::{StreamDecoder, Tokenizer};

use crate::error::Refusal;

/// What stands for minus infinity, which JSON has no number for.
const LEAST: f64 = -9999.0;

/// A token as a text of its own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Spelled {
    pub(crate) text: String,
    /// None where the tokens of the model do not stand for bytes.
    pub(crate) bytes: Option<Vec<u8>>,
}

/// A token and how likely it and others were.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Scored {
    pub(crate) token: Spelled,
    pub(crate) logprob: f64,
    /// The likeliest tokens, in order.
    pub(crate) likeliest: Vec<(Spelled, f64)>,
    /// Where it begins in the text, in characters.
    pub(crate) offset: usize,
}

/// The tokens of a text that are not told yet.
pub(crate) struct Scores<'t> {
    tokenizer: &'t Tokenizer,
    likeliest: usize,
    stream: StreamDecoder<'t>,
    offset: usize,
    untold: Vec<Scored>,
}

impl<'t> Scores<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer, likeliest: usize) -> Scores<'t> {
        Scores {
            tokenizer,
            likeliest,
            stream: tokenizer.stream(),
            offset: 0,
            untold: Vec::new(),
        }
    }

    /// Adds a token that was chosen from a row of logits.
    pub(crate) fn push(&mut self, token: u32, logits: &[f32]) -> Result<(), Refusal> {
        let all = Logs::of(logits);
        let likeliest = all.likeliest(self.likeliest).into_iter();
        let likeliest = likeliest.map(|id| (self.spelled(id), all.log(id)));
        self.untold.push(Scored {
            token: self.spelled(token),
            logprob: all.log(token),
            likeliest: likeliest.collect(),
            offset: self.offset,
        });
        let text = self.stream.push(token);
        let text = text.map_err(|e| Refusal::failed(&e))?;
        self.offset += text.chars().count();
        Ok(())
    }

    pub(crate) fn take(&mut self) -> Vec<Scored> {
        std::mem::take(&mut self.untold)
    }

    fn spelled(&self, id: u32) -> Spelled {
        let named = || self.tokenizer.id_to_token(id).unwrap_or_default();
        match self.tokenizer.bytes(id) {
            Some((bytes, false)) => Spelled {
                text: String::from_utf8_lossy(&bytes).into_owned(),
                bytes: Some(bytes),
            },
            Some((_, true)) => Spelled {
                text: named(),
                bytes: Some(named().into_bytes()),
            },
            None => Spelled {
                text: named(),
                bytes: None,
            },
        }
    }
}

/// A row of logits, and what makes logarithms of probabilities of them.
struct Logs<'l> {
    logits: &'l [f32],
    most: f64,
    log_sum: f64,
}

impl Logs<'_> {
    fn of(logits: &[f32]) -> Logs<'_> {
        let known = || logits.iter().map(|x| f64::from(*x)).filter(|x| !x.is_nan());
        let most = known().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = known().map(|x| (x - most).exp()).sum::<f64>().ln();
        Logs {
            logits,
            most,
            log_sum,
        }
    }

    fn logit(&self, id: u32) -> f32 {
        let logit = self.logits.get(id as usize).copied();
        logit.filter(|x| !x.is_nan()).unwrap_or(f32::NEG_INFINITY)
    }

    fn log(&self, id: u32) -> f64 {
        let log = f64::from(self.logit(id)) - self.most - self.log_sum;
        // Of infinities, too, whose difference is no number.
        if log > LEAST { log.min(0.0) } else { LEAST }
    }

    /// The likeliest tokens, the first among equals first.
    fn likeliest(&self, count: usize) -> Vec<u32> {
        let by_logit = |a: &u32, b: &u32| {
            let greater = self.logit(*b).partial_cmp(&self.logit(*a));
            greater.unwrap_or(Ordering::Equal).then(a.cmp(b))
        };
        let mut ids: Vec<u32> = (0..self.logits.len() as u32).collect();
        if (1..ids.len()).contains(&count) {
            ids.select_nth_unstable_by(count - 1, by_logit);
        }
        ids.truncate(count);
        ids.sort_unstable_by(by_logit);
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_of_probabilities() {
        let logits = [1.0, f32::NAN, 3.0, 3.0, f32::NEG_INFINITY, 2.0];
        let logs = Logs::of(&logits);
        let known = [0u32, 2, 3, 5];
        let sum: f64 = known.iter().map(|id| logs.log(*id).exp()).sum();
        assert!((sum - 1.0).abs() < 1e-12, "{sum}");
        assert!((logs.log(2) - logs.log(5) - 1.0).abs() < 1e-12);
        assert_eq!([logs.log(1), logs.log(4), logs.log(99)], [LEAST; 3]);
        assert!(logs.likeliest(0).is_empty());
        assert_eq!(logs.likeliest(3), [2, 3, 5]);
        assert_eq!(logs.likeliest(99), [2, 3, 5, 0, 1, 4]);
        assert!(Logs::of(&[]).likeliest(2).is_empty());
        assert_eq!(Logs::of(&[f32::NEG_INFINITY]).log(0), LEAST);
    }
}
