//! BERT with pooler and classifier, built from Burn's modules. The model of
//! `tests/src/steps/models.rs` and `steps_torch.py`.

use burn::module::{Initializer, Module};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Embedding, EmbeddingConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::tensor::activation::gelu;
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{Bool, Device, Int, Tensor};

const WIDTH: usize = 768;
const HEADS: usize = 12;
const POSITIONS: usize = 512;
const TYPES: usize = 2;
const CLASSES: usize = 2;
const EPSILON: f64 = 1e-12;
/// Standard deviation of the initial weights.
const DEVIATION: f64 = 0.02;

/// The sizes of model and batch; smaller ones serve to try the program.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) layers: usize,
    pub(crate) rows: usize,
    pub(crate) length: usize,
    pub(crate) vocab: usize,
}

impl Size {
    pub(crate) const BASE: Size = Size {
        layers: 12,
        rows: 32,
        length: 128,
        vocab: 30522,
    };
}

#[derive(Module, Debug)]
struct Layer {
    q: Linear,
    k: Linear,
    v: Linear,
    out: Linear,
    up: Linear,
    down: Linear,
    norm_1: LayerNorm,
    norm_2: LayerNorm,
}

fn linear(inner: usize, out: usize, device: &Device) -> Linear {
    LinearConfig::new(inner, out).init(device)
}

fn norm(device: &Device) -> LayerNorm {
    let config = LayerNormConfig::new(WIDTH).with_epsilon(EPSILON);
    config.init(device)
}

fn table(rows: usize, device: &Device) -> Embedding {
    let drawn = Initializer::Normal {
        mean: 0.0,
        std: DEVIATION,
    };
    let config = EmbeddingConfig::new(rows, WIDTH).with_initializer(drawn);
    config.init(device)
}

impl Layer {
    fn new(device: &Device) -> Layer {
        let square = || linear(WIDTH, WIDTH, device);
        Layer {
            q: square(),
            k: square(),
            v: square(),
            out: square(),
            up: linear(WIDTH, 4 * WIDTH, device),
            down: linear(4 * WIDTH, WIDTH, device),
            norm_1: norm(device),
            norm_2: norm(device),
        }
    }

    fn forward(&self, x: Tensor<3>, masked: &Tensor<4, Bool>) -> Tensor<3> {
        let [rows, length, _] = x.dims();
        let heads = |part: &Linear| {
            let y = part.forward(x.clone());
            y.reshape([rows, length, HEADS, WIDTH / HEADS])
                .swap_dims(1, 2)
        };
        let (q, k, v) = (heads(&self.q), heads(&self.k), heads(&self.v));
        let options = AttentionModuleOptions::default();
        let y = attention(q, k, v, Some(masked.clone()), None, options);
        let y = y.swap_dims(1, 2).reshape([rows, length, WIDTH]);
        let x = self.norm_1.forward(x + self.out.forward(y));
        let y = self.down.forward(gelu(self.up.forward(x.clone())));
        self.norm_2.forward(x + y)
    }
}

#[derive(Module, Debug)]
pub(crate) struct Bert {
    words: Embedding,
    places: Embedding,
    types: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
    pooler: Linear,
    classifier: Linear,
}

/// The batch of a training step, on its device.
pub(crate) struct Batch {
    ids: Tensor<2, Int>,
    places: Tensor<2, Int>,
    types: Tensor<2, Int>,
    /// The masked keys, expanded to the shape that attention expects.
    masked: Tensor<4, Bool>,
    labels: Tensor<1, Int>,
}

/// Pseudo-random indices below `most`. Burn's own generator does not guarantee the upper limit.
fn indices(count: usize, most: usize) -> Vec<i32> {
    let mixed = |i: usize| (i as u32).wrapping_mul(2_654_435_761) >> 8;
    (0..count).map(|i| mixed(i) as i32 % most as i32).collect()
}

impl Batch {
    /// A batch of random tokens and labels.
    pub(crate) fn new(size: Size, device: &Device) -> Batch {
        let Size {
            rows,
            length,
            vocab,
            ..
        } = size;
        let ids: Tensor<1, Int> =
            Tensor::from_data(indices(rows * length, vocab).as_slice(), device);
        let masked: Tensor<4, Bool> = Tensor::full([rows, 1, 1, length], false, device);
        Batch {
            ids: ids.reshape([rows, length]),
            places: Tensor::arange(0..length as i64, device).reshape([1, length]),
            types: Tensor::zeros([rows, length], device),
            masked: masked.expand([rows, HEADS, length, length]),
            labels: Tensor::from_data(indices(rows, CLASSES).as_slice(), device),
        }
    }
}

impl Bert {
    pub(crate) fn new(size: Size, device: &Device) -> Bert {
        Bert {
            words: table(size.vocab, device),
            places: table(POSITIONS, device),
            types: table(TYPES, device),
            norm: norm(device),
            layers: (0..size.layers).map(|_| Layer::new(device)).collect(),
            pooler: linear(WIDTH, WIDTH, device),
            classifier: linear(WIDTH, CLASSES, device),
        }
    }

    /// The mean loss of a batch.
    pub(crate) fn loss(&self, batch: &Batch) -> Tensor<1> {
        let words = self.words.forward(batch.ids.clone());
        let places = self.places.forward(batch.places.clone());
        let types = self.types.forward(batch.types.clone());
        let mut x = self.norm.forward(words + places + types);
        for layer in &self.layers {
            x = layer.forward(x, &batch.masked);
        }
        let [rows, _, _] = x.dims();
        let first = x.slice([0..rows, 0..1]).reshape([rows, WIDTH]);
        let logits = self.classifier.forward(self.pooler.forward(first).tanh());
        let entropy = CrossEntropyLossConfig::new().init(&logits.device());
        entropy.forward(logits, batch.labels.clone())
    }
}
