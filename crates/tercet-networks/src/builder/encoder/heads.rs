//! Classification heads of encoders.

use tercet::Value;

use super::super::decoder::layer::activate;
use super::super::{ModelBuilder, ModelError};
use super::layer::EncoderContext;
use super::mean;
use crate::config::encoder::{EncoderNames, EncoderPart, EncoderSpec};

/// Logits of each text, `[rows, classes]`, from hidden states `x [rows, len, hidden]`.
pub(super) fn text_logits(
    b: &mut ModelBuilder<'_>,
    spec: &EncoderSpec,
    x: Value,
    mask: Value,
    classes: usize,
) -> Result<Value, ModelError> {
    let pooled = match spec.head.mean {
        true => mean(&mut b.graph, x, mask)?,
        false => {
            let first = b.graph.narrow(x, 1, 0, 1)?;
            b.graph.squeeze(first, 1)?
        }
    };
    let of = encoder_context(b, spec);
    let pooled = of.dense(b, pooled)?;
    of.classes(b, EncoderPart::Classifier, pooled, classes)
}

/// Logits of each token, `[rows, len, classes]`, from hidden states `x [rows, len, hidden]`.
pub(super) fn token_logits(
    b: &mut ModelBuilder<'_>,
    spec: &EncoderSpec,
    x: Value,
    classes: usize,
) -> Result<Value, ModelError> {
    let of = encoder_context(b, spec);
    let x = match spec.head.dense_of_tokens {
        true => of.dense(b, x)?,
        false => x,
    };
    of.classes(b, EncoderPart::TokenClassifier, x, classes)
}

fn encoder_context<'s>(b: &ModelBuilder<'_>, spec: &'s EncoderSpec) -> EncoderContext<'s> {
    let names = EncoderNames::new(spec, b.weights);
    EncoderContext { spec, names }
}

impl EncoderContext<'_> {
    /// Dense layer before the classifier, if the model has one.
    fn dense(&self, b: &mut ModelBuilder<'_>, x: Value) -> Result<Value, ModelError> {
        let Some(activation) = self.spec.head.dense else {
            return Ok(x);
        };
        let y = self.linear(b, EncoderPart::HeadDense, 0, x)?;
        let y = activate(b, activation, y)?;
        match self.spec.head.norm {
            true => self.norm(b, EncoderPart::HeadNorm, 0, y),
            false => Ok(y),
        }
    }

    fn classes(
        &self,
        b: &mut ModelBuilder<'_>,
        part: EncoderPart,
        x: Value,
        classes: usize,
    ) -> Result<Value, ModelError> {
        let name = |suffix| self.names.tensor(part, 0, suffix);
        let shape = [classes, self.spec.hidden];
        b.linear(x, &name("weight"), Some(&name("bias")), shape)
    }
}
