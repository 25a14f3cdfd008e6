//! Host-side sampling of the next token.

use tercet::DType;
use tercet::random::RngState;

use super::super::ModelError;
use super::super::decoder::Sampling;
use super::super::sampling::{SamplingOptions, SamplingState};
use super::{Generator, not_the_output};
use tercet_text::constraint::Constraint;

/// Sampling configuration of a generator.
pub(super) struct Sampler {
    /// Sampling compiled into the graph.
    pub(super) compiled: Sampling,
    /// Random number stream of the graph's sampler.
    pub(super) stream: u32,
    /// Options that override the compiled sampling.
    pub(super) set: Option<SamplingOptions>,
    /// State that host-side sampling keeps between tokens, such as Mirostat's maximum surprise.
    pub(super) state: SamplingState,
}

impl Generator {
    /// Sets the sampling options from the next token on, without recompilation. If the options
    /// equal the compiled sampling, the device samples. Otherwise the logits are copied to the host
    /// for each token and the host samples with the same random numbers.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] for a value outside its range, or if the graph does not sample;
    /// [`ModelError::Token`] for a bias of a token outside the vocabulary.
    pub fn set_sampling(&mut self, options: &SamplingOptions) -> Result<(), ModelError> {
        options.check(self.vocab)?;
        let chooser = self.sampling.as_mut().ok_or_else(does_not_sample)?;
        chooser.set = (!options.is(&chooser.compiled)).then(|| options.clone());
        chooser.state = SamplingState::default();
        self.set_draft_sampling(options)
    }

    /// Sets or removes the constraint, from the next token on. The constraint receives each sampled
    /// token and treats it as part of the output. [`Generator::reset`] removes the constraint.
    ///
    /// # Errors
    /// [`ModelError::Unsupported`] if the graph does not sample.
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

    /// Sets the random number stream of host-side sampling, for this model and its draft model.
    pub(in crate::builder) fn draw_in(&mut self, stream: u32) {
        if let Some(chooser) = &mut self.sampling {
            chooser.stream = stream;
        }
        if let Some(draft) = self.draft_model() {
            draft.draw_in(stream);
        }
    }

    /// True if the host samples, because of a constraint or overriding options.
    pub(super) fn on_host(&self) -> bool {
        self.constraint.is_some() || self.sampling.as_ref().is_some_and(|c| c.set.is_some())
    }

    /// Samples a token on the host from the logits of the last run; `None` if the device samples.
    /// `random` is the random state of that run.
    pub(super) fn sampled_token(&mut self, random: RngState) -> Result<Option<u32>, ModelError> {
        let on_host = self.on_host();
        let Some(chooser) = self.sampling.as_mut().filter(|_| on_host) else {
            return Ok(None);
        };
        let Sampler {
            compiled,
            stream,
            state,
            ..
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
        let random = random.stream(compiled.seed, *stream);
        let units = [0, 1].map(|element| random.unit(DType::F32, element));
        let written = self.tokens.get(self.penalties_from..).unwrap_or(&[]);
        let chosen = match &chooser.set {
            Some(options) => options.sample(logits, (&self.tokens, written), units, state),
            None => {
                let options = SamplingOptions::from(*compiled);
                options.sample(logits, (&self.tokens, written), units, state)
            }
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
