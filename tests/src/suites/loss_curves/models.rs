//! Training graphs of models from `tercet-models`.

use serde_json::json;
use tercet::Tensor;
use tercet_models::training::{
    BertTask, BertTrainingOptions, ClassPooling, DecoderTrainingOptions, FineTuneMode, IGNORED,
    LoraOptions, TrainingGraph,
};
use tercet_models::{DecoderSpec, DummyWeights, EncoderSpec, Weights};

use super::formula::{indices, integers, weight};
use super::{BoxError, CurveNet, i32s};

const VOCAB: u64 = 29;
const LLAMA: [usize; 2] = [2, 8];
/// The number of tokens per BERT text, including padding.
const LEN: usize = 6;

/// A training graph whose weights are computed by the formula.
fn net(training: TrainingGraph, inputs: fn(usize) -> Vec<(&'static str, Tensor)>) -> CurveNet {
    let by_formula = |list: Vec<(String, Tensor)>| -> Vec<(String, Tensor)> {
        let list = list.into_iter().map(|(name, tensor)| {
            let first = weight(&name, tensor.shape());
            (name, first)
        });
        list.collect()
    };
    CurveNet {
        graph: training.graph,
        loss: training.loss,
        trained: by_formula(training.trainables),
        params: by_formula(training.params),
        states: Vec::new(),
        inputs,
    }
}

pub(super) fn llama() -> Result<CurveNet, BoxError> {
    llama_with(FineTuneMode::Full)
}

pub(super) fn llama_lora() -> Result<CurveNet, BoxError> {
    llama_with(FineTuneMode::Lora(LoraOptions::new(2)))
}

fn llama_with(tuning: FineTuneMode) -> Result<CurveNet, BoxError> {
    let config = json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24, "vocab_size": VOCAB,
        "max_position_embeddings": 16, "rms_norm_eps": 1e-5
    });
    let config = DecoderSpec::from_json(config.as_object().expect("an object"))?;
    let [batch, len] = LLAMA;
    let options = DecoderTrainingOptions::new(batch, len, tuning);
    let training =
        TrainingGraph::decoder(&config, &Weights::Dummy(DummyWeights::dense()), &options)?;
    Ok(net(training, |step| {
        let mut labels = integers(&format!("labels.{step}"), VOCAB, &LLAMA);
        [7, 15].iter().for_each(|at| labels[*at] = IGNORED);
        let segments = [0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1];
        let positions = [0, 1, 2, 3, 4, 0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 4];
        vec![
            ("tokens", indices(&format!("tokens.{step}"), VOCAB, &LLAMA)),
            ("positions", i32s(&LLAMA, &positions)),
            ("segments", i32s(&LLAMA, &segments)),
            ("labels", i32s(&LLAMA, &labels)),
        ]
    }))
}

pub(super) fn bert_classes() -> Result<CurveNet, BoxError> {
    let task = BertTask::Classes {
        classes: 3,
        pooling: ClassPooling::Pooler,
    };
    Ok(net(bert(task)?, |step| {
        let mut inputs = texts(step, 4);
        inputs.push(("labels", indices(&format!("labels.{step}"), 3, &[4])));
        inputs
    }))
}

pub(super) fn bert_pairs() -> Result<CurveNet, BoxError> {
    let task = BertTask::Pairs {
        temperature: 0.5,
        negatives: 0,
    };
    Ok(net(bert(task)?, |step| texts(step, 8)))
}

fn bert(task: BertTask) -> Result<TrainingGraph, BoxError> {
    let config = json!({
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": 16, "num_hidden_layers": 2,
        "num_attention_heads": 4, "intermediate_size": 24, "vocab_size": VOCAB,
        "max_position_embeddings": 8, "type_vocab_size": 2, "position_embedding_type": "absolute"
    });
    let config = EncoderSpec::from_json(config.as_object().expect("an object"))?;
    let options = BertTrainingOptions::new(4, LEN, FineTuneMode::Full, task);
    let weights = Weights::Dummy(DummyWeights::dense());
    Ok(TrainingGraph::bert(&config, &weights, &options)?)
}

/// A batch of texts; text `b` has 3 to 6 tokens in turn.
fn texts(step: usize, rows: usize) -> Vec<(&'static str, Tensor)> {
    let shape = [rows, LEN];
    let mask = (0..rows * LEN).map(|i| i % LEN < 3 + i / LEN % 4);
    let mask: Vec<bool> = mask.collect();
    vec![
        ("ids", indices(&format!("ids.{step}"), VOCAB, &shape)),
        ("type_ids", indices(&format!("types.{step}"), 2, &shape)),
        ("mask", Tensor::from_bools(&shape, &mask).expect("as many")),
    ]
}
