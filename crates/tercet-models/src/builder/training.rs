//! Training graphs of the model families: a scalar loss, and the weights to train as states.
//!
//! A [`Training`] is what a training step is made of: [`Training::graph`] has the inputs of a batch, frozen weights as
//! parameters in the form that the file has them in, trained ones as F32 states, and the outputs `loss`, `loss_sum` and
//! `tokens`. Trained weights are cast to the dtype of the arithmetic where they are used, so that gradients and updates
//! are F32 in any case.
//!
//! ```
//! use tercet_models::training::{DecoderTrainingOptions, LoraOptions, Training, Tuning};
//! use tercet_models::{DecoderSpec, MadeUp, Weights};
//!
//! let config = serde_json::from_str(r#"{
//!     "model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "num_hidden_layers": 2,
//!     "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 300,
//!     "max_position_embeddings": 128, "rms_norm_eps": 1e-5
//! }"#)?;
//! let config = DecoderSpec::from_json(&config)?;
//! let weights = Weights::MadeUp(MadeUp::dense());
//! let options = DecoderTrainingOptions::new(2, 128, Tuning::Lora(LoraOptions::new(8)));
//! let mut training = Training::decoder(&config, &weights, &options)?;
//! assert_eq!(training.trainables.len(), 2 * 7 * 2);
//! let (name, _) = &training.trainables[0];
//! let node = training.graph.leaf(name).ok_or("it is a state")?;
//! let state = tercet::Value { node, port: 0 };
//! let gradient = training.graph.gradients(training.loss, &[state])?;
//! # assert_eq!(gradient.len(), 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `llama.rs` | decoders of the llama family: the next token |
//! | `bert.rs` | BERT encoders: classes, pairs of texts |
//! | `loss.rs` | cross-entropy |
//! | `states.rs` | from the builder's graph to one with states |

mod bert;
mod decoder;
mod loss;
mod states;

use std::collections::BTreeMap;

use tercet::{CompileOptions, Device, Executable, Graph, Tensor, Value};

use super::ModelError;
use super::tuned::LoraSite;
pub use super::tuned::{LoraOptions, ScaledAdapter};
use crate::adapter::{Adapter, AdapterError, LowRank};
pub use bert::{BertTask, BertTrainingOptions, ClassPooling};
pub use decoder::DecoderTrainingOptions;
pub use loss::IGNORED;
use states::Forward;

/// What of a model is trained.
#[derive(Clone, Debug, PartialEq)]
pub enum Tuning {
    /// All weights, in F32; packed ones are unpacked.
    Full,
    /// Matrices of low rank beside projections. The model itself stays as it is, in the form that its file has.
    Lora(LoraOptions),
}

/// A training graph and what its weights start as.
#[derive(Debug)]
pub struct Training {
    /// The graph. Its outputs are `loss`, `loss_sum` and `tokens`; of encoders, `correct` as well.
    pub graph: Graph,
    /// The tensor of each parameter, by name: what is frozen.
    pub params: Vec<(String, Tensor)>,
    /// The trained states and what they start as, F32.
    pub trainables: Vec<(String, Tensor)>,
    /// What is to be minimized, F32 `[]`: `loss_sum / max(tokens, 1)`.
    pub loss: Value,
    /// The sum over targets that are not ignored, F32 `[]`; adds up over batches.
    pub loss_sum: Value,
    /// The number of targets that are not ignored, F32 `[]`: tokens, texts or pairs.
    pub tokens: Value,
    tuned: Tuned,
}

/// What trained states are when they leave.
#[derive(Debug)]
enum Tuned {
    Full,
    Lora { sites: Vec<LoraSite>, alpha: f64 },
}

impl Training {
    /// Of a graph with states and two of its values: the sum over targets, and their number.
    fn of(forward: Forward, sums: [Value; 2]) -> Result<Training, ModelError> {
        let Forward {
            mut graph,
            params,
            trainables,
            tuned,
        } = forward;
        let [loss, loss_sum, tokens] = loss::outputs(&mut graph, sums)?;
        Ok(Training {
            graph,
            params,
            trainables,
            loss,
            loss_sum,
            tokens,
            tuned,
        })
    }

    /// Bytes of all frozen weights and of what trained ones start as.
    pub fn weight_bytes(&self) -> usize {
        let all = self.params.iter().chain(&self.trainables);
        all.map(|(_, t)| t.bytes().len()).sum()
    }

    /// Numbers that are trained.
    pub fn trained_numbers(&self) -> usize {
        self.trainables.iter().map(|(_, t)| t.numel()).sum()
    }

    /// Compiles the graph as it is, to evaluate it: parameters are set, states are what they start as.
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

    /// The adapter that was trained; `read` gives the contents of a state. What is trained whole beside it, such as a
    /// classifier, is among [`Adapter::saved`].
    ///
    /// # Errors
    /// Those of `read`, as they are; [`ModelError::Unsupported`] where all weights are trained, and
    /// [`ModelError::Adapter`] for states of another shape.
    pub fn adapter<E: From<ModelError>>(
        &self,
        mut read: impl FnMut(&str) -> Result<Tensor, E>,
    ) -> Result<Adapter, E> {
        let Tuned::Lora { sites, alpha } = &self.tuned else {
            let reason = "all weights were trained; there is no adapter, save the model";
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

    /// The weights that were trained whole, by the names that the model's files have; `read` gives the contents of a
    /// state.
    ///
    /// # Errors
    /// Those of `read`; [`ModelError::Adapter`] where an adapter is trained.
    pub fn weights<E: From<ModelError>>(
        &self,
        mut read: impl FnMut(&str) -> Result<Tensor, E>,
    ) -> Result<BTreeMap<String, Tensor>, E> {
        if let Tuned::Lora { .. } = self.tuned {
            let reason =
                "an adapter was trained; save that, or merge it into the model".to_string();
            return Err(ModelError::from(AdapterError::Unsupported(reason)).into());
        }
        let mut weights = BTreeMap::new();
        for (name, _) in &self.trainables {
            weights.insert(name.clone(), read(name)?);
        }
        Ok(weights)
    }
}
