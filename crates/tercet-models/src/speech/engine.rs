//! Compiled encoder and decoder graphs of a speech model.

use tercet::{DType, Executable, OutputSelection, Tensor};

use tercet_networks::ModelError;
use tercet_networks::hand_over;

/// Encoder and decoder of a speech model on a device.
pub(super) struct SpeechEngine {
    encoder: Box<dyn Executable>,
    decoder: Box<dyn Executable>,
    layers: usize,
    pub(super) vocab: usize,
    /// Maximum tokens of a text.
    pub(super) context: usize,
    inputs: [Tensor; 5],
    outputs: Vec<Tensor>,
}

/// Decoder inputs that change with every token.
const INPUTS: [&str; 5] = ["tokens", "positions", "start", "kv_len", "rows"];

impl SpeechEngine {
    /// Creates an engine for a decoder with `layers` layers, `vocab` tokens and texts of at most
    /// `context` tokens.
    pub(super) fn new(
        [encoder, decoder]: [Box<dyn Executable>; 2],
        layers: usize,
        [vocab, context]: [usize; 2],
    ) -> SpeechEngine {
        let empty = |shape: &[usize]| {
            Tensor::zeros(tercet::TensorType::new(DType::I32, shape))
                .expect("invariant: small shapes fit memory")
        };
        SpeechEngine {
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

    /// Encodes a window or audio chunk; later calls of `forward` attend to it.
    pub(super) fn listen(&mut self, inputs: &[(&str, &Tensor)]) -> Result<(), ModelError> {
        let decoder = &mut self.decoder;
        hand_over(
            &mut *self.encoder,
            inputs,
            self.layers,
            &mut |name, part| Ok(decoder.bind(name, part)?),
        )
    }

    /// Appends tokens at `position` and returns the logits at the token indices `rows_of`, `[rows,
    /// vocab]`.
    pub(super) fn forward(
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
        self.decoder.submit(&inputs, OutputSelection::All)?;
        self.decoder.wait(&mut self.outputs)?;
        let logits = self.outputs.first().map(Tensor::as_slice::<f32>);
        match logits {
            Some(Ok(logits)) => Ok(logits),
            Some(Err(e)) => Err(ModelError::Unsupported(format!("logits: {e}"))),
            None => Err(ModelError::Unsupported(
                "the decoder returned no logits".into(),
            )),
        }
    }
}
