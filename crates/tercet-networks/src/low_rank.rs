//! Low-rank adapters (Hu et al., "LoRA: Low-rank adaptation of large language models", 2021): a
//! projection `y = W x` becomes `y = W x + (alpha / rank) B (A x)`.
//!
//! An [`Adapter`] is independent of its file format. The modules of an adapter have Hugging Face
//! names (`model.layers.0.self_attn.q_proj`) without the task prefix `bert.`. The rows of `B` are
//! in Hugging Face order ([`RopeLayout::Halves`](crate::RopeLayout::Halves)). Readers and writers
//! of GGUF adapters, and their application to GGUF models, permute these rows.
//!
//! | file | contents |
//! |---|---|
//! | `peft.rs`, `peft_config.rs` | PEFT folders: `adapter_config.json` and `adapter_model.safetensors` |
//! | `gguf.rs` | llama.cpp adapters |

mod error;
mod gguf;
mod peft;
mod peft_config;

use std::collections::BTreeMap;
use std::path::Path;

use tercet::Tensor;

pub use error::AdapterError;
use tercet_files::clip;

/// Name components of the two matrices in PEFT files.
const SIDES: [&str; 2] = ["lora_A", "lora_B"];

/// Low-rank matrices and `alpha` of one projection.
///
/// ```
/// use tercet::Tensor;
/// use tercet_networks::LowRank;
/// let a = Tensor::from_slice(&[2, 3], &[0.5f32; 6])?;
/// let b = Tensor::from_slice(&[4, 2], &[0f32; 8])?;
/// let low_rank = LowRank::new("q_proj", a, b, 4.0)?;
/// assert_eq!((low_rank.rank(), low_rank.scale(), low_rank.shape()), (2, 2.0, [4, 3]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LowRank {
    a: Tensor,
    b: Tensor,
    alpha: f64,
}

impl LowRank {
    /// Creates the matrices of a projection: `a [rank, inputs]` and `b [outputs, rank]`, floats of
    /// at most 32 bits. `module` is the name for error messages.
    ///
    /// # Errors
    /// [`AdapterError::Shape`], [`AdapterError::Rank`], [`AdapterError::DType`],
    /// [`AdapterError::Number`].
    pub fn new(module: &str, a: Tensor, b: Tensor, alpha: f64) -> Result<LowRank, AdapterError> {
        LowRank::from_named_sides(module, SIDES, a, b, alpha)
    }

    /// As [`LowRank::new`], with the file's matrix names for error messages.
    fn from_named_sides(
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
                    expected: "a non-empty matrix".to_string(),
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

    /// Matrix `A`, `[rank, inputs]`.
    pub fn a(&self) -> &Tensor {
        &self.a
    }

    /// Matrix `B`, `[outputs, rank]`.
    pub fn b(&self) -> &Tensor {
        &self.b
    }

    /// Rank of the matrices.
    pub fn rank(&self) -> usize {
        self.a.shape()[0]
    }

    /// Numerator of the scale.
    pub fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Scale of `B A`: `alpha / rank`.
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank() as f64
    }

    /// Shape of the projection, `[outputs, inputs]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.b.shape()[0], self.a.shape()[1]]
    }

    /// Checks the shape of the projection.
    ///
    /// # Errors
    /// [`AdapterError`] if the shape differs from the model's projection.
    pub fn expect_shape(&self, module: &str, shape: [usize; 2]) -> Result<(), AdapterError> {
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

/// An adapter: low-rank matrices per module, and tensors that were fully trained with it.
///
/// ```
/// # let a = tercet::Tensor::from_slice(&[2, 3], &[0.5f32; 6])?;
/// # let b = tercet::Tensor::from_slice(&[4, 2], &[0f32; 8])?;
/// use std::collections::BTreeMap;
/// use tercet_networks::{Adapter, LowRank};
/// let low_rank = LowRank::new("q_proj", a, b, 4.0)?;
/// let modules = BTreeMap::from([("layers.0.self_attn.q_proj".to_string(), low_rank)]);
/// let adapter = Adapter::new(modules).with_base("tiny-llama");
/// assert_eq!((adapter.modules().len(), adapter.base()), (1, Some("tiny-llama")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Adapter {
    modules: BTreeMap<String, LowRank>,
    saved: BTreeMap<String, Tensor>,
    base: Option<String>,
}

impl Adapter {
    /// Creates an adapter from its modules.
    pub fn new(modules: BTreeMap<String, LowRank>) -> Adapter {
        Adapter {
            modules,
            ..Adapter::default()
        }
    }

    /// Adds fully trained tensors by name, such as those of a classifier.
    #[must_use]
    pub fn with_saved(self, saved: BTreeMap<String, Tensor>) -> Adapter {
        Adapter { saved, ..self }
    }

    /// Sets the name of the base model.
    #[must_use]
    pub fn with_base(self, base: impl Into<String>) -> Adapter {
        let base = Some(base.into());
        Adapter { base, ..self }
    }

    /// Low-rank matrices by module name.
    pub fn modules(&self) -> &BTreeMap<String, LowRank> {
        &self.modules
    }

    /// Fully trained tensors by name.
    pub fn saved(&self) -> &BTreeMap<String, Tensor> {
        &self.saved
    }

    /// Name of the base model, if the file contains it.
    pub fn base(&self) -> Option<&str> {
        self.base.as_deref()
    }

    /// Reads a PEFT folder or a GGUF adapter. For a GGUF adapter `config` defines the row order of
    /// `q` and `k`.
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

/// True if the module's name is `name` or ends with the component `name`.
#[doc(hidden)]
pub fn matches_module(module: &str, name: &str) -> bool {
    let head = module.strip_suffix(name);
    head.is_some_and(|head| head.is_empty() || head.ends_with('.'))
}

/// The error for a module of an adapter that the model lacks.
#[must_use]
pub fn unknown_target(adapter: &Adapter, module: &str) -> AdapterError {
    let hint = adapter.base().map(|base| format!(" (`{}`)", clip(base)));
    AdapterError::UnknownTarget {
        module: clip(module),
        hint: hint.unwrap_or_default(),
    }
}
