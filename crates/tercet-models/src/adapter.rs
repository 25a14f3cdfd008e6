//! Low-rank adapters (Hu and others, "LoRA: Low-rank adaptation of large language models", 2021): a projection
//! `y = W x` becomes `y = W x + (alpha / rank) B (A x)`.
//!
//! An [`Adapter`] is the same whatever it was read from: its modules have the names of a Hugging Face folder
//! (`model.layers.0.self_attn.q_proj`), without a task's prefix `bert.`, and the rows of `B` are in that folder's order
//! ([`RopeLayout::Halves`](crate::RopeLayout::Halves)); what reads and writes GGUF files, and what applies an adapter to
//! one, permutes them.
//!
//! | file | does |
//! |---|---|
//! | `peft.rs`, `peft_config.rs` | folders of PEFT: `adapter_config.json` and `adapter_model.safetensors` |
//! | `gguf.rs` | adapters of llama.cpp |
//! | `rows.rs` | the two orders of the rows that rotary embedding turns |
//! | `merge.rs` | a model and its adapters as a model |

mod error;
mod gguf;
mod merge;
mod peft;
mod peft_config;
pub(crate) mod rows;

use std::collections::BTreeMap;
use std::path::Path;

use tercet::Tensor;

use crate::gguf::clip;
pub use error::AdapterError;
pub use merge::merge;

/// What PEFT calls the two matrices.
const SIDES: [&str; 2] = ["lora_A", "lora_B"];

/// The two matrices of one projection, and `alpha`.
#[derive(Clone, Debug)]
pub struct LowRank {
    a: Tensor,
    b: Tensor,
    alpha: f64,
}

impl LowRank {
    /// `a [rank, inputs]` and `b [outputs, rank]`, floats of at most 32 bits. `module` is for errors.
    ///
    /// # Errors
    /// [`AdapterError::Shape`], [`AdapterError::Rank`], [`AdapterError::DType`], [`AdapterError::Number`].
    pub fn new(module: &str, a: Tensor, b: Tensor, alpha: f64) -> Result<LowRank, AdapterError> {
        LowRank::of(module, SIDES, a, b, alpha)
    }

    /// As [`LowRank::new`], of a file that calls the matrices so.
    fn of(
        module: &str,
        sides: [&str; 2],
        a: Tensor,
        b: Tensor,
        alpha: f64,
    ) -> Result<LowRank, AdapterError> {
        for (side, tensor) in sides.into_iter().zip([&a, &b]) {
            let name = || format!("{}.{side}", clip(module));
            if !tensor.dtype().is_float() || tensor.dtype() == tercet::DType::F64 {
                let (tensor, found) = (name(), tensor.dtype());
                return Err(AdapterError::DType { tensor, found });
            }
            if tensor.shape().len() != 2 || tensor.shape().contains(&0) {
                return Err(AdapterError::Shape {
                    tensor: name(),
                    found: tensor.shape().to_vec(),
                    expected: "a matrix that is not empty".to_string(),
                });
            }
        }
        if a.shape()[0] != b.shape()[1] {
            return Err(AdapterError::Rank {
                tensor: format!("{}.{}", clip(module), sides[1]),
                found: b.shape()[1],
                expected: a.shape()[0],
            });
        }
        if !alpha.is_finite() {
            let (what, found) = (format!("alpha of `{}`", clip(module)), alpha);
            return Err(AdapterError::Number { what, found });
        }
        Ok(LowRank { a, b, alpha })
    }

    /// `A`, `[rank, inputs]`.
    pub fn a(&self) -> &Tensor {
        &self.a
    }

    /// `B`, `[outputs, rank]`.
    pub fn b(&self) -> &Tensor {
        &self.b
    }

    /// The rank.
    pub fn rank(&self) -> usize {
        self.a.shape()[0]
    }

    /// The numerator of the factor.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// What `B A` is multiplied by: `alpha / rank`.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank() as f64
    }

    /// The shape of the projection, `[outputs, inputs]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.b.shape()[0], self.a.shape()[1]]
    }

    /// Refuses another shape than the model's.
    pub(crate) fn expect_shape(&self, module: &str, shape: [usize; 2]) -> Result<(), AdapterError> {
        self.expect_shape_of(module, SIDES, shape)
    }

    fn expect_shape_of(
        &self,
        module: &str,
        [side_a, side_b]: [&str; 2],
        [rows, cols]: [usize; 2],
    ) -> Result<(), AdapterError> {
        let fits = |side: &str, found: &Tensor, fits: bool, expected: String| match fits {
            true => Ok(()),
            false => Err(AdapterError::Shape {
                tensor: format!("{}.{side}", clip(module)),
                found: found.shape().to_vec(),
                expected,
            }),
        };
        let rank = self.rank();
        let of_a = self.a.shape()[1] == cols;
        fits(
            side_a,
            &self.a,
            of_a,
            format!("[{rank}, {cols}] for this model"),
        )?;
        let of_b = self.b.shape()[0] == rows;
        fits(
            side_b,
            &self.b,
            of_b,
            format!("[{rows}, {rank}] for this model"),
        )
    }
}

/// An adapter: low-rank matrices by module, and what was trained whole beside them.
#[derive(Clone, Debug, Default)]
pub struct Adapter {
    modules: BTreeMap<String, LowRank>,
    saved: BTreeMap<String, Tensor>,
    base: Option<String>,
}

impl Adapter {
    /// An adapter of these modules.
    pub fn new(modules: BTreeMap<String, LowRank>) -> Adapter {
        Adapter {
            modules,
            ..Adapter::default()
        }
    }

    /// Puts tensors beside it that were trained whole, such as a classifier's, by their names.
    #[must_use]
    pub fn with_saved(self, saved: BTreeMap<String, Tensor>) -> Adapter {
        Adapter { saved, ..self }
    }

    /// Names the model that it was trained for.
    #[must_use]
    pub fn with_base(self, base: impl Into<String>) -> Adapter {
        let base = Some(base.into());
        Adapter { base, ..self }
    }

    /// The matrices by module.
    pub fn modules(&self) -> &BTreeMap<String, LowRank> {
        &self.modules
    }

    /// What was trained whole, by name.
    pub fn saved(&self) -> &BTreeMap<String, Tensor> {
        &self.saved
    }

    /// The name of the model that it was trained for, if it says.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Reads a folder of PEFT, or a GGUF adapter: of one that was made with `general.architecture` `llama`,
    /// `config` says how rows of `q` and `k` are permuted.
    ///
    /// # Errors
    /// [`AdapterError`] of [`Adapter::from_peft`] or [`Adapter::from_gguf`].
    pub fn open(
        path: impl AsRef<Path>,
        config: &crate::DecoderSpec,
    ) -> Result<Adapter, AdapterError> {
        let path = path.as_ref();
        match path.is_dir() {
            true => Adapter::from_peft(path),
            false => Adapter::from_gguf(path, config),
        }
    }
}
