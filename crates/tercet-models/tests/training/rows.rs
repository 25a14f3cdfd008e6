//! Token batches, and the results of training graphs for them.

use tercet::{CompileOptions, DType, Device, Executable, Tensor};
use tercet_models::training::{DecoderTrainingOptions, FineTuneMode, IGNORED, TrainingGraph};
use tercet_models::{DecoderOptions, DecoderSpec, ModelFiles};

/// Two arbitrary token sequences in the small model's vocabulary.
pub(crate) const TEXTS: [&[i32]; 2] = [
    &[11, 502, 77, 1903, 4, 4, 96, 1200, 33],
    &[640, 5, 1999, 21, 300, 77],
];

/// The folder of the small model, or a file in it.
pub(crate) fn model(file: &str) -> ModelFiles {
    ModelFiles::open(crate::common::data("tiny-rust-llama").join(file)).unwrap()
}

pub(crate) const FOLDER: &str = "";
pub(crate) const PACKED: &str = "tiny-rust-llama-q8_0.gguf";
pub(crate) const HALVES: &str = "tiny-rust-llama-f16.gguf";

/// The inputs of one batch, `[rows, len]`.
pub(crate) struct Rows {
    pub(crate) shape: [usize; 2],
    pub(crate) tokens: Vec<i32>,
    pub(crate) positions: Vec<i32>,
    pub(crate) segments: Vec<i32>,
    pub(crate) labels: Vec<i32>,
}

impl Rows {
    /// Packs each row with the given texts, followed by padding.
    pub(crate) fn of(rows: &[&[&[i32]]], len: usize) -> Rows {
        let mut made = Rows {
            shape: [rows.len(), len],
            tokens: Vec::new(),
            positions: Vec::new(),
            segments: Vec::new(),
            labels: Vec::new(),
        };
        for row in rows {
            let before = made.tokens.len();
            for (segment, text) in row.iter().enumerate() {
                made.tokens.extend(*text);
                made.positions.extend(0..text.len() as i32);
                made.segments.extend(text.iter().map(|_| segment as i32));
                made.labels.extend(&text[1..]);
                made.labels.push(IGNORED);
            }
            let filled = made.tokens.len() - before;
            assert!(filled <= len);
            made.tokens.extend(vec![0; len - filled]);
            made.positions.extend(0..(len - filled) as i32);
            made.segments.extend(vec![-1; len - filled]);
            made.labels.extend(vec![IGNORED; len - filled]);
        }
        made
    }

    pub(crate) fn tensors(&self) -> [(&'static str, Tensor); 4] {
        let tensor = |values: &[i32]| Tensor::from_slice(&self.shape, values).unwrap();
        [
            ("tokens", tensor(&self.tokens)),
            ("positions", tensor(&self.positions)),
            ("segments", tensor(&self.segments)),
            ("labels", tensor(&self.labels)),
        ]
    }
}

/// `loss`, `loss_sum` and `tokens`, or the error of the run.
pub(crate) fn try_losses(exe: &mut dyn Executable, rows: &Rows) -> Result<[f32; 3], String> {
    let tensors = rows.tensors();
    let known = |name: &str| exe.signature().inputs.iter().any(|port| port.name == name);
    let inputs: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (*n, t)).collect();
    let inputs: Vec<_> = inputs.into_iter().filter(|(name, _)| known(name)).collect();
    let outputs = exe.run_outputs(&inputs, &["loss", "loss_sum", "tokens"]);
    let outputs = outputs.map_err(|e| format!("{e}: {:?}", std::error::Error::source(&e)))?;
    Ok([0, 1, 2].map(|i| outputs[i].as_slice::<f32>().unwrap()[0]))
}

pub(crate) fn losses(training: &TrainingGraph, rows: &Rows) -> [f32; 3] {
    let mut exe = training
        .compile(&Device::cpu(), &CompileOptions::new())
        .unwrap();
    try_losses(&mut *exe, rows).unwrap()
}

/// A training graph for batches of this shape.
pub(crate) fn training(
    files: &ModelFiles,
    [batch, len]: [usize; 2],
    tuning: FineTuneMode,
) -> TrainingGraph {
    let options = DecoderTrainingOptions::new(batch, len, tuning);
    TrainingGraph::decoder(&files.decoder_spec().unwrap(), &files.weights(), &options).unwrap()
}

/// The logits after each of these tokens, from the generating graph.
pub(crate) fn logits(
    files: &ModelFiles,
    options: impl FnOnce(&DecoderSpec) -> DecoderOptions,
    tokens: &[i32],
) -> Vec<Vec<f32>> {
    let llama = files.decoder(options).unwrap();
    let mut generator = llama.generator(&Device::cpu()).unwrap();
    let step = |token: &i32| generator.forward(&[*token as u32]).unwrap().logits.to_vec();
    tokens.iter().map(step).collect()
}

/// The sum of `-log p` of the tokens after the first, in F64.
pub(crate) fn cross_entropy(logits: &[Vec<f32>], tokens: &[i32]) -> f64 {
    let of = |(row, next): (&Vec<f32>, &i32)| {
        let most = row.iter().fold(f32::MIN, |m, x| m.max(*x));
        let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
        sum.ln() - f64::from(row[*next as usize] - most)
    };
    logits.iter().zip(&tokens[1..]).map(of).sum()
}

/// Whether two numbers agree within `tolerance`, relative to the second.
pub(crate) fn near(got: f64, want: f64, tolerance: f64) -> bool {
    (got - want).abs() <= tolerance * want.abs()
}

/// An F32 tensor with these values.
pub(crate) fn floats(shape: &[usize], of: impl Fn(usize) -> f32) -> Tensor {
    let values: Vec<f32> = (0..shape.iter().product()).map(of).collect();
    let tensor = Tensor::from_slice(shape, &values).unwrap();
    assert_eq!(tensor.dtype(), DType::F32);
    tensor
}
