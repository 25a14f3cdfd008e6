//! A whole training step: BERT with a pooler and two classes, all weights trained by AdamW in F32, as `training_bert_f32` of our bench.

use std::time::{Duration, Instant};

use burn::module::Module;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::nn::transformer::{
    TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams, ModuleOptimizer};
use burn::tensor::{Bool, Device, Distribution, Int, Tensor};

/// Until Burn has chosen its kernels and the card has left its idle clock.
const WARM: Duration = Duration::from_secs(2);
const LEAST_WARM: usize = 5;
const STEPS: usize = 12;
const EPS: f64 = 1e-12;
const CLASSES: usize = 2;
const POSITIONS: usize = 512;
const RATE: f64 = 1e-5;

/// The sizes of a model and its batch.
pub struct Size {
    width: usize,
    layers: usize,
    heads: usize,
    vocab: usize,
    rows: usize,
    len: usize,
}

impl Size {
    /// BERT-base, 32 texts of 128 tokens.
    pub const WHOLE: Size = Size {
        width: 768,
        layers: 12,
        heads: 12,
        vocab: 30522,
        rows: 32,
        len: 128,
    };
    /// What any machine trains within seconds.
    pub const SMALL: Size = Size {
        width: 32,
        layers: 2,
        heads: 2,
        vocab: 60,
        rows: 4,
        len: 16,
    };
}

#[derive(Module, Debug)]
struct Bert {
    words: Embedding,
    places: Embedding,
    types: Embedding,
    norm: LayerNorm,
    encoder: TransformerEncoder,
    pooler: Linear,
    classifier: Linear,
}

struct Batch {
    ids: Tensor<2, Int>,
    places: Tensor<2, Int>,
    types: Tensor<2, Int>,
    /// True where a text has ended.
    padding: Tensor<2, Bool>,
    labels: Tensor<1, Int>,
}

impl Bert {
    fn new(size: &Size, device: &Device) -> Bert {
        let table = |rows| EmbeddingConfig::new(rows, size.width).init(device);
        let encoder =
            TransformerEncoderConfig::new(size.width, 4 * size.width, size.heads, size.layers);
        Bert {
            words: table(size.vocab),
            places: table(POSITIONS),
            types: table(2),
            norm: LayerNormConfig::new(size.width)
                .with_epsilon(EPS)
                .init(device),
            encoder: encoder
                .with_dropout(0.0)
                .with_layer_norm_eps(EPS)
                .init(device),
            pooler: LinearConfig::new(size.width, size.width).init(device),
            classifier: LinearConfig::new(size.width, CLASSES).init(device),
        }
    }

    fn loss(&self, batch: &Batch, entropy: &CrossEntropyLoss) -> Tensor<1> {
        let x = self.words.forward(batch.ids.clone())
            + self.places.forward(batch.places.clone())
            + self.types.forward(batch.types.clone());
        let x = TransformerEncoderInput::new(self.norm.forward(x)).mask_pad(batch.padding.clone());
        let x = self.encoder.forward(x);
        let [rows, _, width] = x.dims();
        let first = x.slice([0..rows, 0..1, 0..width]).reshape([rows, width]);
        let logits = self.classifier.forward(self.pooler.forward(first).tanh());
        entropy.forward(logits, batch.labels.clone())
    }
}

/// One step; the loss is read back, as trainings do.
fn step(
    model: Bert,
    optimizer: &mut ModuleOptimizer,
    batch: &Batch,
    entropy: &CrossEntropyLoss,
) -> (Bert, f32) {
    let loss = model.loss(batch, entropy);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    let model = optimizer.step(RATE, model, gradients);
    (model, loss.into_scalar())
}

/// Prints the median time of a step, in microseconds.
///
/// # Panics
/// If the loss is not finite, or stays as it was: then nothing was trained.
pub fn bert(device: &Device, size: &Size, name: &str) {
    let device = device.clone().autodiff();
    let numbers = |shape: [usize; 2], most: usize| {
        let drawn = Distribution::Uniform(0.0, most as f64);
        Tensor::<2>::random(shape, drawn, &device).int()
    };
    let shape = [size.rows, size.len];
    let places = Tensor::<1, Int>::arange(0..size.len as i64, &device);
    let batch = Batch {
        ids: numbers(shape, size.vocab),
        places: places.unsqueeze::<2>().expand(shape),
        types: numbers(shape, 2),
        padding: numbers(shape, 2).equal_elem(7),
        labels: numbers([size.rows, 1], CLASSES).reshape([size.rows]),
    };
    let entropy = CrossEntropyLossConfig::new().init(&device);
    let mut optimizer = AdamWConfig::new().init();
    let (mut model, before) = step(Bert::new(size, &device), &mut optimizer, &batch, &entropy);
    let (begin, mut warm, mut last) = (Instant::now(), 0, before);
    while begin.elapsed() < WARM || warm < LEAST_WARM {
        (model, last) = step(model, &mut optimizer, &batch, &entropy);
        warm += 1;
    }
    assert!(
        last.is_finite() && last < before,
        "{name}: the loss went from {before} to {last}"
    );
    let mut times = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let start = Instant::now();
        (model, _) = step(model, &mut optimizer, &batch, &entropy);
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    println!("{name} {:.1}", times[STEPS / 2] * 1e6);
}
