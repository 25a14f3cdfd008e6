//! Training steps of models from `tercet-models`.

use serde_json::json;
use tercet::{DType, Scheme, Tensor, TensorType, fill::InputFill};
use tercet_models::training::{
    BertTask, BertTrainingOptions, ClassPooling, DecoderTrainingOptions, FineTuneMode, LoraOptions,
    TrainingGraph,
};
use tercet_models::{DecoderSpec, DummyWeights, EncoderSpec, Weights};

use super::{BoxError, StepNet, StepScale, pattern};

const CLASSES: usize = 2;

/// Pseudo-random integers below `most`, such as token ids.
pub(super) fn indices(name: &str, shape: &[usize], most: usize) -> Result<Tensor, BoxError> {
    let ty = TensorType::new(DType::F32, shape);
    let drawn = pattern(name, &ty, &InputFill::Uniform(0.0, most as f64))?;
    let whole = drawn.to_f64s().into_iter();
    let whole: Vec<i32> = whole.map(|x| (x as i32).min(most as i32 - 1)).collect();
    Ok(Tensor::from_slice(shape, &whole)?)
}

fn net(training: TrainingGraph, batch: Vec<(&'static str, Tensor)>, count: usize) -> StepNet {
    StepNet {
        graph: training.graph,
        loss: training.loss,
        params: training.params,
        trained: training.trainables,
        states: Vec::new(),
        batch,
        count,
        unit: "tokens",
    }
}

/// BERT-base with a pooler and a classifier; all weights are trained.
pub(super) fn bert(size: StepScale, dtype: DType) -> Result<StepNet, BoxError> {
    let (hidden, layers, heads, vocab, shape) = match size {
        StepScale::Whole => (768, 12, 12, 30522, [32, 128]),
        StepScale::Small => (32, 2, 2, 60, [4, 16]),
    };
    let config = json!({
        "model_type": "bert", "hidden_act": "gelu", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "intermediate_size": 4 * hidden, "vocab_size": vocab,
        "max_position_embeddings": 512, "type_vocab_size": 2, "position_embedding_type": "absolute"
    });
    let config = EncoderSpec::from_json(config.as_object().ok_or("an object")?)?;
    let [rows, len] = shape;
    let task = BertTask::Classes {
        classes: CLASSES,
        pooling: ClassPooling::Pooler,
    };
    let mut options = BertTrainingOptions::new(rows, len, FineTuneMode::Full, task);
    options.dtype = dtype;
    let weights = Weights::Dummy(DummyWeights::dense());
    let training = TrainingGraph::bert(&config, &weights, &options)?;
    let batch = vec![
        ("ids", indices("ids", &shape, vocab)?),
        ("type_ids", indices("types", &shape, 2)?),
        ("mask", Tensor::from_bools(&shape, &vec![true; rows * len])?),
        ("labels", indices("labels", &[rows], CLASSES)?),
    ];
    Ok(net(training, batch, rows * len))
}

/// A 1.1B llama with frozen weights in the given storage format and LoRA adapters; each row holds
/// one sequence.
pub(super) fn llama_lora(
    size: StepScale,
    dtype: DType,
    scheme: Scheme,
) -> Result<StepNet, BoxError> {
    let (hidden, ffn, layers, heads, groups, vocab, shape, rank) = match size {
        StepScale::Whole => (2048, 5632, 22, 32, 4, 32000, [4, 512], 16),
        StepScale::Small => (256, 256, 1, 4, 2, 60, [2, 8], 4),
    };
    let config = json!({
        "model_type": "llama", "hidden_act": "silu", "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": groups, "intermediate_size": ffn,
        "vocab_size": vocab, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5
    });
    let config = DecoderSpec::from_json(config.as_object().ok_or("an object")?)?;
    let [rows, len] = shape;
    let tuning = FineTuneMode::Lora(LoraOptions::new(rank));
    let options = DecoderTrainingOptions {
        dtype,
        packed: false,
        ..DecoderTrainingOptions::new(rows, len, tuning)
    };
    let weights = Weights::Dummy(DummyWeights::packed(scheme));
    let training = TrainingGraph::decoder(&config, &weights, &options)?;
    let positions: Vec<i32> = (0..rows * len).map(|i| (i % len) as i32).collect();
    let batch = vec![
        ("tokens", indices("tokens", &shape, vocab)?),
        ("positions", Tensor::from_slice(&shape, &positions)?),
        ("labels", indices("labels", &shape, vocab)?),
    ];
    Ok(net(training, batch, rows * len))
}
