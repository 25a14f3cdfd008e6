//! Selection of the next tokens of one sequence: sampling options, their state, random numbers and
//! the constraint. One row of logits gives the next token; several rows verify a draft.

use std::borrow::Cow;

use tercet::DType;
use tercet::random::RngState;
use tercet_text::constraint::Constraint;

use super::ModelError;
use super::decoder::Sampling;
use super::sampling::{SamplingOptions, SamplingState};

/// Sampling of one sequence.
pub(crate) struct TokenSampler {
    /// Sampling compiled into the graph.
    pub(super) compiled: Sampling,
    /// Random number stream of the graph's sampler.
    pub(super) stream: u32,
    /// Options that override the compiled sampling.
    options: Option<SamplingOptions>,
    /// State between tokens, such as Mirostat's maximum surprise.
    state: SamplingState,
    /// Receives each token, and masks the logits of the next one.
    pub(super) constraint: Option<Box<dyn Constraint>>,
}

/// The tokens of a sequence up to a row of logits.
#[derive(Clone, Copy)]
pub(crate) struct SampledText<'a> {
    pub(super) tokens: &'a [u32],
    /// First token that presence and frequency penalties count.
    pub(super) penalties_from: usize,
}

/// Rows of logits of a run over a token and its draft.
pub(crate) struct DraftRows<'a> {
    /// `[rows, vocab]`.
    pub(super) logits: &'a [f32],
    pub(super) vocab: usize,
    /// Number of tokens of the run, the last tokens of the sequence.
    pub(super) run_len: usize,
    /// Minimum lead of a greedy token, relative to the range of the logits ([`near_tie`]).
    pub(super) near_tie: f32,
}

/// Tokens that the rows of a draft run decide.
pub(crate) struct VerifiedTokens {
    /// All tokens but the last equal the draft.
    pub(super) tokens: Vec<u32>,
    /// False if the next token is a near tie, which a run of one row decides.
    pub(super) is_decided: bool,
    /// Error of the constraint at the next token.
    pub(super) error: Option<ModelError>,
}

/// Minimum lead of the top logit for a multi-row run to decide, relative to the range of the
/// logits. The minimum is about a hundred times the rounding difference between multi-row and
/// one-row runs. `dtype` is the less precise dtype of the arithmetic and the caches.
pub(super) fn near_tie(dtype: DType) -> f32 {
    match dtype {
        DType::F16 => 2e-2,
        DType::BF16 => 1e-1,
        _ => 1e-3,
    }
}

impl TokenSampler {
    /// Sampling as compiled into the graph.
    pub(super) fn new(compiled: Sampling, stream: u32) -> TokenSampler {
        TokenSampler {
            compiled,
            stream,
            options: None,
            state: SamplingState::default(),
            constraint: None,
        }
    }

    /// Sets the options of the next tokens. If they equal the compiled sampling, the device samples.
    pub(super) fn set_options(&mut self, options: &SamplingOptions) {
        self.options = (!options.is(&self.compiled)).then(|| options.clone());
        self.restart();
    }

    /// Options that override the compiled sampling.
    pub(super) fn overriding(&self) -> Option<&SamplingOptions> {
        self.options.as_ref()
    }

    /// Options in force.
    pub(super) fn options(&self) -> Cow<'_, SamplingOptions> {
        options_of(&self.options, self.compiled)
    }

    /// Resets the state between tokens.
    pub(super) fn restart(&mut self) {
        self.state = SamplingState::default();
    }

    /// True if the host samples, because of a constraint or overriding options.
    pub(super) fn is_on_host(&self) -> bool {
        self.constraint.is_some() || self.options.is_some()
    }

    /// Samples the token after `text` from its row of logits; `None` if the row is empty. `random` is
    /// the random state of the run.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        text: SampledText<'_>,
        random: RngState,
    ) -> Result<Option<u32>, ModelError> {
        let units = self.units(random);
        let logits = masked(&mut self.constraint, logits)?;
        let options = options_of(&self.options, self.compiled);
        let texts = (text.tokens, text.written());
        let chosen = options.sample(&logits, texts, units, &mut self.state);
        if let (Some(constraint), Some(token)) = (&mut self.constraint, chosen) {
            constraint.take(token)?;
        }
        Ok(chosen)
    }

    /// Samples from each row of a draft run, up to the first token that differs from the draft.
    /// `text` ends with the tokens of the run, and `random` is the random state of the first row.
    pub(super) fn verify(
        &mut self,
        rows: &DraftRows<'_>,
        text: SampledText<'_>,
        random: RngState,
    ) -> VerifiedTokens {
        let mut verified = VerifiedTokens {
            tokens: Vec::with_capacity(rows.run_len),
            is_decided: !rows.logits.is_empty(),
            error: None,
        };
        let first = text.tokens.len() - rows.run_len;
        for (i, row) in rows.logits.chunks_exact(rows.vocab).enumerate() {
            let seen = SampledText {
                tokens: &text.tokens[..=first + i],
                ..text
            };
            let random = RngState {
                counter: random.counter.wrapping_add(i as u64),
                ..random
            };
            match self.decide(row, seen, random, rows.near_tie) {
                Ok(Some(token)) => {
                    verified.tokens.push(token);
                    if text.tokens.get(first + i + 1) != Some(&token) {
                        break;
                    }
                }
                Ok(None) => {
                    verified.is_decided = false;
                    break;
                }
                Err(e) => {
                    verified.error = Some(e);
                    break;
                }
            }
        }
        verified
    }

    /// The token after `text` by a row of a draft run; `None` for a near tie.
    fn decide(
        &mut self,
        raw: &[f32],
        text: SampledText<'_>,
        random: RngState,
        near_tie: f32,
    ) -> Result<Option<u32>, ModelError> {
        let options = options_of(&self.options, self.compiled);
        if !options.is_greedy() {
            return self.choose(raw, text, random);
        }
        let row = masked(&mut self.constraint, raw)?;
        let leader = match self.options.is_some() {
            true => {
                let changed = options.changed(&row, text.tokens, text.written());
                leader(changed.iter().map(|x| *x as f32))
            }
            false => leader(row.iter().copied()),
        };
        let least = f64::from(near_tie) * spread(raw);
        let Some((token, _)) = leader.filter(|(_, lead)| *lead > least) else {
            return Ok(None);
        };
        if let Some(constraint) = &mut self.constraint {
            constraint.take(token)?;
        }
        Ok(Some(token))
    }

    fn units(&self, random: RngState) -> [f64; 2] {
        let random = random.stream(self.compiled.seed, self.stream);
        [0, 1].map(|element| random.unit(DType::F32, element))
    }
}

impl<'a> SampledText<'a> {
    fn written(self) -> &'a [u32] {
        self.tokens.get(self.penalties_from..).unwrap_or(&[])
    }
}

/// The options in force.
fn options_of(set: &Option<SamplingOptions>, compiled: Sampling) -> Cow<'_, SamplingOptions> {
    match set {
        Some(options) => Cow::Borrowed(options),
        None => Cow::Owned(SamplingOptions::from(compiled)),
    }
}

/// The logits with those that the constraint forbids at negative infinity.
fn masked<'a>(
    constraint: &mut Option<Box<dyn Constraint>>,
    logits: &'a [f32],
) -> Result<Cow<'a, [f32]>, ModelError> {
    let Some(constraint) = constraint else {
        return Ok(Cow::Borrowed(logits));
    };
    let mut allowed = logits.to_vec();
    constraint.mask(&mut allowed)?;
    Ok(Cow::Owned(allowed))
}

/// First token with the greatest logit, and its lead over the second greatest; `None` if the
/// greatest is not finite.
pub fn leader(logits: impl Iterator<Item = f32>) -> Option<(u32, f64)> {
    let (mut at, mut best, mut next) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (i, x) in logits.enumerate() {
        if x > best {
            (at, best, next) = (i, x, best);
        } else if x > next {
            next = x;
        }
    }
    let lead = f64::from(best) - f64::from(next);
    best.is_finite().then_some((at as u32, lead))
}

/// Difference between the greatest and the least finite logit.
pub fn spread(logits: &[f32]) -> f64 {
    let finite = logits.iter().filter(|x| x.is_finite());
    let (least, most) = finite.fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), x| {
        (a.min(*x), b.max(*x))
    });
    f64::from(most) - f64::from(least)
}
