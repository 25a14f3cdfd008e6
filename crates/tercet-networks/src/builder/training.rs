//! Training graphs of the model families: a scalar loss, with the trained weights as states.
//!
//! [`TrainingGraph::graph`] of a [`TrainingGraph`] has three kinds of leaves: the inputs of a
//! batch, frozen weights as parameters in their stored format, and trained weights as F32 states.
//! The outputs of the graph are `loss`, `loss_sum` and `tokens`. Trained weights are cast to the
//! arithmetic dtype at each use, so gradients and updates are always F32.
//!
//! ```
//! use tercet_networks::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
//! use tercet_networks::{DecoderSpec, DummyWeights, Weights};
//!
//! let config = serde_json::from_str(r#"{
//!     "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2,
//!     "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 300,
//!     "max_position_embeddings": 128, "rms_norm_eps": 1e-5
//! }"#)?;
//! let config = DecoderSpec::from_json(&config)?;
//! let weights = Weights::Dummy(DummyWeights::dense());
//! let options = DecoderTrainingOptions::new(2, 128, FineTuneMode::Lora(LoraOptions::new(8)));
//! let mut training = TrainingGraph::decoder(&config, &weights, &options)?;
//! assert_eq!(training.trainables.len(), 2 * 7 * 2);
//! let (name, _) = &training.trainables[0];
//! let node = training.graph.leaf(name).ok_or("it is a state")?;
//! let state = tercet::Value { node, port: 0 };
//! let gradient = training.graph.gradients(training.loss, &[state])?;
//! # assert_eq!(gradient.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | contents |
//! |---|---|
//! | `decoder.rs` | decoders: next-token prediction |
//! | `bert.rs` | encoders: classification, pairs of texts |
//! | `loss.rs` | cross-entropy |
//! | `states.rs` | conversion of the builder's graph to a graph with states |

mod bert;
mod decoder;
mod loss;
mod states;

use std::collections::BTreeMap;

use tercet::{CompileOptions, Device, Executable, Graph, Tensor, Value};

use super::ModelError;
use super::trainable::LoraSite;
pub use super::trainable::{LoraOptions, ScaledAdapter};
use crate::low_rank::{Adapter, AdapterError, LowRank};
pub use bert::{BertTask, BertTrainingOptions, ClassPooling};
pub use decoder::DecoderTrainingOptions;
pub use loss::IGNORED;
use states::StatefulGraph;

/// Selection of the trained weights.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet_networks::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
/// let targets = vec!["q_proj".to_string(), "v_proj".to_string()];
/// let mode = FineTuneMode::Lora(LoraOptions { targets, ..LoraOptions::new(8) });
/// let options = DecoderTrainingOptions::new(2, 16, mode);
/// let training = TrainingGraph::decoder(&spec, &weights, &options)?;
/// // Two matrices for each of two projections in each of two layers.
/// assert_eq!(training.trainables.len(), 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum FineTuneMode {
    /// Full fine-tuning of all weights in F32; quantized weights are dequantized.
    Full,
    /// LoRA: low-rank matrices on projections are trained. The base model stays in its stored
    /// format.
    Lora(LoraOptions),
}

/// A training graph and the initial values of its weights.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet_networks::training::{DecoderTrainingOptions, FineTuneMode, LoraOptions, TrainingGraph};
/// let options = DecoderTrainingOptions::new(2, 16, FineTuneMode::Lora(LoraOptions::new(8)));
/// let training = TrainingGraph::decoder(&spec, &weights, &options)?;
/// assert!(training.trained_numbers() > 0);
/// assert!(training.params.iter().all(|(name, _)| training.graph.leaf(name).is_some()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TrainingGraph {
    /// The graph with the outputs `loss`, `loss_sum` and `tokens`, for encoders also `correct`.
    pub graph: Graph,
    /// Name and tensor of each frozen parameter.
    pub params: Vec<(String, Tensor)>,
    /// Names and F32 initial values of the trained states.
    pub trainables: Vec<(String, Tensor)>,
    /// Loss to minimize, F32 `[]`: `loss_sum / max(tokens, 1)`.
    pub loss: Value,
    /// Sum of losses over all targets that are not ignored, F32 `[]`. The sums of several batches
    /// can be added.
    pub loss_sum: Value,
    /// Number of targets that are not ignored, F32 `[]`: tokens, texts or pairs.
    pub tokens: Value,
    tuned: TrainedStateKind,
}

/// Format of the trained states for export.
#[derive(Debug)]
enum TrainedStateKind {
    Full,
    Lora { sites: Vec<LoraSite>, alpha: f64 },
}

impl TrainingGraph {
    /// Completes a graph with states from its loss sum and its number of targets.
    fn new(forward: StatefulGraph, sums: [Value; 2]) -> Result<TrainingGraph, ModelError> {
        let StatefulGraph {
            mut graph,
            params,
            trainables,
            tuned,
        } = forward;
        let [loss, loss_sum, tokens] = loss::outputs(&mut graph, sums)?;
        Ok(TrainingGraph {
            graph,
            params,
            trainables,
            loss,
            loss_sum,
            tokens,
            tuned,
        })
    }

    /// Total bytes of the frozen weights and the initial trained weights.
    pub fn weight_bytes(&self) -> usize {
        let all = self.params.iter().chain(&self.trainables);
        all.map(|(_, t)| t.bytes().len()).sum()
    }

    /// Number of trained scalar parameters.
    pub fn trained_numbers(&self) -> usize {
        self.trainables.iter().map(|(_, t)| t.numel()).sum()
    }

    /// Compiles the graph without gradients, for evaluation. Parameters are set and states have
    /// their initial values.
    ///
    /// # Errors
    /// [`ModelError::Compile`] and [`ModelError::Run`] of the device.
    pub fn compile(
        &self,
        device: &Device,
        options: &CompileOptions,
    ) -> Result<Box<dyn Executable>, ModelError> {
        let mut exe = device.compile(&self.graph, options)?;
        for (name, tensor) in &self.params {
            exe.set_param(name, tensor.clone())?;
        }
        for (name, tensor) in &self.trainables {
            exe.write_state(name, tensor)?;
        }
        Ok(exe)
    }

    /// The trained adapter; `read` returns the contents of a state. Tensors that are trained whole,
    /// such as a classifier, are in [`Adapter::saved`].
    ///
    /// # Errors
    /// Errors of `read`, unchanged. [`ModelError::Unsupported`] for full fine-tuning.
    /// [`ModelError::Adapter`] for a state with an unexpected shape.
    pub fn adapter<E: From<ModelError>>(
        &self,
        mut read: impl FnMut(&str) -> Result<Tensor, E>,
    ) -> Result<Adapter, E> {
        let TrainedStateKind::Lora { sites, alpha } = &self.tuned else {
            let reason = "all weights were trained, so there is no adapter; save the model";
            return Err(ModelError::Unsupported(reason.to_string()).into());
        };
        let mut modules = BTreeMap::new();
        for site in sites {
            let (a, b) = (read(&site.a)?, site.rows.undo(&read(&site.b)?));
            let low = LowRank::new(&site.module, a, b, *alpha).map_err(ModelError::from)?;
            modules.insert(site.module.clone(), low);
        }
        let of_sites = |name: &str| sites.iter().any(|s| s.a == name || s.b == name);
        let mut saved = BTreeMap::new();
        for (name, _) in self.trainables.iter().filter(|(name, _)| !of_sites(name)) {
            saved.insert(name.clone(), read(name)?);
        }
        Ok(Adapter::new(modules).with_saved(saved))
    }

    /// The fully trained weights under the names of the model's files; `read` returns the contents
    /// of a state.
    ///
    /// # Errors
    /// Errors of `read`; [`ModelError::Adapter`] if an adapter is trained instead.
    pub fn weights<E: From<ModelError>>(
        &self,
        mut read: impl FnMut(&str) -> Result<Tensor, E>,
    ) -> Result<BTreeMap<String, Tensor>, E> {
        if let TrainedStateKind::Lora { .. } = self.tuned {
            let reason =
                "an adapter was trained, not the weights; save the adapter, or merge it into the model".to_string();
            return Err(ModelError::from(AdapterError::Unsupported(reason)).into());
        }
        let mut weights = BTreeMap::new();
        for (name, _) in &self.trainables {
            weights.insert(name.clone(), read(name)?);
        }
        Ok(weights)
    }
}
