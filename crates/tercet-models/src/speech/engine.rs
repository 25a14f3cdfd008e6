//! The compiled graphs: a window, tokens.

use tercet::{DType, Executable, Tensor, Wanted};

use crate::builder::ModelError;
use crate::builder::cross::hand_over;

/// Encoder and decoder of a model on a device.
pub(super) struct Engine {
    encoder: Box<dyn Executable>,
    decoder: Box<dyn Executable>,
    layers: usize,
    pub(super) vocab: usize,
    /// Tokens of the longest text.
    pub(super) context: usize,
    inputs: [Tensor; 5],
    outputs: Vec<Tensor>,
}

/// The inputs of the decoder that change with every token.
const INPUTS: [&str; 5] = ["tokens", "positions", "start", "kv_len", "rows"];

impl Engine {
    /// Of so many layers, that writes texts of at most `context` tokens of a vocabulary.
    pub(super) fn new(
        [encoder, decoder]: [Box<dyn Executable>; 2],
        layers: usize,
        [vocab, context]: [usize; 2],
    ) -> Engine {
        let empty = |shape: &[usize]| {
            Tensor::zeros(tercet::TensorType::new(DType::I32, shape))
                .expect("invariant: small shapes fit memory")
        };
        Engine {
            encoder,
            decoder,
            layers,
            vocab,
            context,
            inputs: [
                empty(&[0]),
                empty(&[0]),
                empty(&[4]),
                empty(&[]),
                empty(&[1]),
            ],
            outputs: Vec::new(),
        }
    }

    /// Gives the encoder a window or a piece; texts that are written from now on are about it.
    pub(super) fn listen(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(), ModelError> {
        let decoder = &mut self.decoder;
        hand_over(
            &mut *self.encoder,
            inputs,
            self.layers,
            &mut |name, part| Ok(decoder.bind(name, part)?),
        )
    }

    /// Writes tokens at `position` and gives the logits after those at `rows`, places in `tokens`, `[rows, vocab]`.
    pub(super) fn feed(
        &mut self,
        tokens: &[u32],
        position: usize,
        rows_of: &[usize],
    ) -> Result<&[f32], ModelError> {
        let n = tokens.len();
        if n == 0 {
            return Err(ModelError::NoTokens);
        }
        if position + n > self.context {
            return Err(ModelError::Context {
                tokens: position + n,
                context: self.context,
            });
        }
        let [ids, positions, start, kv_len, rows] = &mut self.inputs;
        let write = |t: &mut Tensor, shape: &[usize], f: &dyn Fn(usize) -> usize| {
            t.reset_to(DType::I32, shape)
                .expect("invariant: small shapes fit memory");
            let slots = t
                .as_slice_mut::<i32>()
                .expect("invariant: the inputs are I32");
            slots
                .iter_mut()
                .enumerate()
                .for_each(|(i, x)| *x = f(i) as i32);
        };
        write(ids, &[n], &|i| tokens[i] as usize);
        write(positions, &[n], &|i| position + i);
        write(start, &[4], &|i| if i == 1 { position } else { 0 });
        write(kv_len, &[], &|_| position + n);
        write(rows, &[rows_of.len()], &|i| rows_of[i]);
        let inputs: [(&str, &Tensor); 5] = std::array::from_fn(|i| (INPUTS[i], &self.inputs[i]));
        self.decoder.submit(&inputs, Wanted::All)?;
        self.decoder.wait(&mut self.outputs)?;
        let logits = self.outputs.first().map(Tensor::as_slice::<f32>);
        match logits {
            Some(Ok(logits)) => Ok(logits),
            Some(Err(e)) => Err(ModelError::Unsupported(format!("logits: {e}"))),
            None => Err(ModelError::Unsupported(
                "the decoder gives no logits".into(),
            )),
        }
    }
}
