//! Which token follows, where the graph did not choose it.

use tercet::DType;
use tercet::random::Random;

use super::super::ModelError;
use super::super::decoder::Sampling;
use super::super::sampling::SamplingOptions;
use super::{Generator, not_the_output};
use crate::constraint::Constraint;

/// How tokens are chosen.
pub(super) struct Chooser {
    /// By the graph.
    pub(super) compiled: Sampling,
    /// The stream of the graph's random numbers.
    pub(super) stream: u32,
    /// What was set in its place.
    pub(super) set: Option<SamplingOptions>,
}

impl Generator {
    /// Chooses tokens in this way from the next one on; nothing is compiled. What the graph was built with is chosen on
    /// the device; anything else from the logits, which are then read back for each token, by the same random numbers.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a number outside its range, and where the graph does not sample;
    /// [`ModelError::Token`] for a bias of a token outside the vocabulary.
    pub fn set_sampling(&mut self, options: &SamplingOptions) -> Result<(), ModelError> {
        options.check(self.vocab)?;
        let chooser = self.sampling.as_mut().ok_or_else(does_not_sample)?;
        chooser.set = (!options.is(&chooser.compiled)).then(|| options.clone());
        self.set_draft_sampling(options)
    }

    /// Chooses only tokens that a constraint allows, from the next one on, or any again. Each token that is chosen is told
    /// to the constraint, which takes it for the next one of the text; [`Generator::reset`] takes the constraint away.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] where the graph does not sample.
    pub fn set_constraint(
        &mut self,
        constraint: Option<Box<dyn Constraint>>,
    ) -> Result<(), ModelError> {
        if constraint.is_some() && self.sampling.is_none() {
            return Err(does_not_sample());
        }
        self.constraint = constraint;
        Ok(())
    }

    /// Tokens that are not chosen by the graph are drawn in this stream of random numbers from now on, by a draft model as well.
    pub(in crate::builder) fn draw_in(&mut self, stream: u32) {
        if let Some(chooser) = &mut self.sampling {
            chooser.stream = stream;
        }
        if let Some(draft) = self.draft_model() {
            draft.draw_in(stream);
        }
    }

    /// Whether tokens are chosen in a way that the graph was not built with.
    pub(super) fn on_host(&self) -> bool {
        self.constraint.is_some() || self.sampling.as_ref().is_some_and(|c| c.set.is_some())
    }

    /// The token that was chosen from the logits of the last run, where the graph did not choose it; `random` is what
    /// that run drew with.
    pub(super) fn chosen(&mut self, random: Random) -> Result<Option<u32>, ModelError> {
        let on_host = self.on_host();
        let Some(chooser) = self.sampling.as_ref().filter(|_| on_host) else {
            return Ok(None);
        };
        let Chooser {
            compiled, stream, ..
        } = chooser;
        let Some(logits) = self.outputs.first() else {
            return Ok(None);
        };
        let logits = logits.as_slice::<f32>();
        let logits = logits.map_err(|e| not_the_output("logits", &e))?;
        let mut allowed = Vec::new();
        let logits = match &mut self.constraint {
            Some(constraint) => {
                allowed.extend_from_slice(logits);
                constraint.mask(&mut allowed)?;
                allowed.as_slice()
            }
            None => logits,
        };
        let unit = random.stream(compiled.seed, *stream).unit(DType::F32, 0);
        let written = self.tokens.get(self.penalties_from..).unwrap_or(&[]);
        let chosen = match &chooser.set {
            Some(options) => options.choose(logits, &self.tokens, written, unit),
            None => SamplingOptions::from(*compiled).choose(logits, &self.tokens, written, unit),
        };
        if let (Some(constraint), Some(token)) = (&mut self.constraint, chosen) {
            constraint.take(token)?;
        }
        Ok(chosen)
    }
}

pub(super) fn does_not_sample() -> ModelError {
    let reason = "the graph of the model does not sample; build it with sampling options";
    ModelError::Unsupported(reason.into())
}
