//! Heads that tell classes.

use tercet::Value;

use super::super::decoder::layer::activate;
use super::super::{Builder, ModelError};
use super::layer::Model;
use super::mean;
use crate::config::encoder::{EncoderNames, EncoderPart, EncoderSpec};

/// `x [rows, len, hidden]` to the logits of each text, `[rows, classes]`.
pub(super) fn text_logits(
    b: &mut Builder<'_>,
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
    let of = of(b, spec);
    let pooled = of.dense(b, pooled)?;
    of.classes(b, EncoderPart::Classifier, pooled, classes)
}

/// `x [rows, len, hidden]` to the logits of each token, `[rows, len, classes]`.
pub(super) fn token_logits(
    b: &mut Builder<'_>,
    spec: &EncoderSpec,
    x: Value,
    classes: usize,
) -> Result<Value, ModelError> {
    let of = of(b, spec);
    let x = match spec.head.dense_of_tokens {
        true => of.dense(b, x)?,
        false => x,
    };
    of.classes(b, EncoderPart::TokenClassifier, x, classes)
}

fn of<'s>(b: &Builder<'_>, spec: &'s EncoderSpec) -> Model<'s> {
    let names = EncoderNames::of(spec, b.weights);
    Model { spec, names }
}

impl Model<'_> {
    /// The layer before the classifier, where there is one.
    fn dense(&self, b: &mut Builder<'_>, x: Value) -> Result<Value, ModelError> {
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
        b: &mut Builder<'_>,
        part: EncoderPart,
        x: Value,
        classes: usize,
    ) -> Result<Value, ModelError> {
        let name = |suffix| self.names.tensor(part, 0, suffix);
        let shape = [classes, self.spec.hidden];
        b.linear(x, &name("weight"), Some(&name("bias")), shape)
    }
}
