//! The context length of a language model that fits the memory of a device.

use tercet::{DType, Device};

use crate::open::ModelFiles;
use tercet_networks::config::DecoderSpec;
use tercet_networks::{CacheFormat, DecoderOptions, ModelError};

/// Maximum context length in tokens that a command or [`LanguageModelOptions::context`] accepts, above
/// that of most models. A mistyped number would otherwise allocate huge tables and caches.
///
/// [`LanguageModelOptions::context`]: crate::LanguageModelOptions::context
pub const MAX_CONTEXT: usize = 1 << 20;

/// Maximum default context on a CPU. Prompts of that length take minutes on a CPU.
pub const MAX_DEFAULT_CPU_CONTEXT: usize = 8192;
/// Minimum default context: shorter ones are useless for conversations.
pub const MIN_DEFAULT_CONTEXT: usize = 512;
/// A default context is a multiple of this number of tokens, unless it is the trained one.
pub const CONTEXT_STEP: usize = 256;
/// Bytes that pipelines, staging buffers and small tensors take in addition to the estimated
/// memory.
const RESERVE_BYTES: u64 = 128 << 20;

/// A context length to determine for a model.
///
/// ```
/// use tercet_models::ContextRequest;
/// let request = ContextRequest { slots: 4, ..ContextRequest::default() };
/// assert_eq!((request.context, request.slots), (None, 4));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ContextRequest {
    /// Requested tokens of a sequence: `Some(0)` is the trained context, `None` is the default.
    pub context: Option<usize>,
    /// Sequences that the memory is divided between.
    pub slots: usize,
    /// Maximum tokens per run.
    pub chunk: usize,
    /// Float dtype of the arithmetic.
    pub dtype: DType,
    /// Storage format of the KV caches; `None` means `dtype`.
    pub cache: Option<CacheFormat>,
}

impl Default for ContextRequest {
    /// The default context of one sequence in F32, with chunks of 512 tokens.
    fn default() -> ContextRequest {
        ContextRequest {
            context: None,
            slots: 1,
            chunk: 512,
            dtype: DType::F32,
            cache: None,
        }
    }
}

/// The property that determined a context length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContextBound {
    /// The request.
    Request,
    /// The context length of training.
    Training,
    /// The memory of the device.
    Memory,
    /// [`MAX_DEFAULT_CPU_CONTEXT`].
    CpuDefault,
}

/// The context length of a language model on a device, and the memory estimate behind it.
///
/// ```
/// # let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/");
/// # let path = format!("{data}tiny-rust-llama/tiny-rust-llama-q8_0.gguf");
/// use tercet::Device;
/// use tercet_models::{ContextBound, ContextFit, ContextRequest, ModelFiles};
/// let files = ModelFiles::open(path)?;
/// let spec = files.decoder_spec()?;
/// let fit = ContextFit::new(&files, &spec, &Device::cpu(), &ContextRequest::default())?;
/// assert_eq!((fit.context, fit.bound), (spec.context, ContextBound::Training));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextFit {
    /// Tokens of a sequence.
    pub context: usize,
    /// Tokens of the training context.
    pub trained: usize,
    /// The property that determined `context`.
    pub bound: ContextBound,
    /// Free memory of the device in bytes, if known.
    pub free_bytes: Option<u64>,
    /// Bytes of the weights in the model's files.
    pub weight_bytes: u64,
    /// Bytes of the KV caches of all slots.
    pub cache_bytes: u64,
    /// Bytes of intermediate values, estimated.
    pub workspace_bytes: u64,
}

impl ContextFit {
    /// Determines the context length of a decoder. The default is the longest context whose caches
    /// fit beside the weights: at most the trained one, and on a CPU at most
    /// [`MAX_DEFAULT_CPU_CONTEXT`].
    ///
    /// # Errors
    /// [`ModelError::ContextMemory`] if the requested context does not fit, or if the default would
    /// be below [`MIN_DEFAULT_CONTEXT`] tokens.
    pub fn new(
        files: &ModelFiles,
        spec: &DecoderSpec,
        device: &Device,
        request: &ContextRequest,
    ) -> Result<ContextFit, ModelError> {
        let on_cpu = matches!(device.name(), "cpu" | "reference");
        let estimate = MemoryUse {
            spec,
            request,
            weight_bytes: files.weight_bytes(),
        };
        estimate.fit(device.free_memory_bytes(), on_cpu)
    }

    /// The estimate on one line, with units.
    pub fn describe(&self) -> String {
        let free = match self.free_bytes {
            Some(free) => format!("{} free", gib(free)),
            None => "the free memory is unknown".to_string(),
        };
        let ContextFit {
            context, trained, ..
        } = self;
        let why = match self.bound {
            ContextBound::Request => "as requested",
            ContextBound::Training => "as trained",
            ContextBound::Memory => "what fits the memory",
            ContextBound::CpuDefault => "the default maximum on a CPU",
        };
        format!(
            "context of {context} tokens, {why} (trained: {trained}; {free}: weights {}, caches {}, intermediate values {})",
            gib(self.weight_bytes),
            gib(self.cache_bytes),
            gib(self.workspace_bytes)
        )
    }
}

/// Bytes in GiB with two decimals.
fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / (1u64 << 30) as f64)
}

/// The memory of a model as a function of its context.
#[doc(hidden)]
pub struct MemoryUse<'a> {
    /// Specification of the model.
    pub spec: &'a DecoderSpec,
    /// The requested context and caches.
    pub request: &'a ContextRequest,
    /// Bytes of the weights in the model's files.
    pub weight_bytes: u64,
}

impl MemoryUse<'_> {
    fn options(&self, context: usize) -> DecoderOptions {
        DecoderOptions {
            context,
            chunk: self.request.chunk.min(context),
            dtype: self.request.dtype,
            cache: self.request.cache,
            ..DecoderOptions::new(self.spec)
        }
    }

    fn slots(&self) -> u64 {
        self.request.slots.max(1) as u64
    }

    /// Bytes of the KV caches of all slots, with the F32 copy that attention makes of a Q8_0 cache
    /// of one layer.
    fn cache_bytes(&self, context: usize) -> u64 {
        let options = self.options(context);
        let caches = options.cache_bytes(self.spec);
        let copy = match options.cache_format() {
            CacheFormat::Q8_0 => {
                let row = CacheFormat::Float(DType::F32).row_bytes(self.spec);
                (row as u64).saturating_mul(context as u64)
            }
            CacheFormat::Float(_) => 0,
        };
        caches.saturating_add(copy).saturating_mul(self.slots())
    }

    /// Bytes of intermediate values: activations of the largest run, and logits of all slots.
    fn workspace_bytes(&self, context: usize) -> u64 {
        let spec = self.spec;
        let of = |size: usize| size as u64;
        let attention = of(spec.heads).saturating_mul(of(spec.head_dim));
        let row = [
            of(spec.hidden) * 8,
            of(spec.ffn) * 3,
            attention.saturating_mul(3),
        ];
        let row = row.into_iter().fold(0, u64::saturating_add);
        let rows = of(self.request.chunk.min(context)).saturating_add(self.slots());
        let logits = self
            .slots()
            .saturating_mul(of(spec.vocab))
            .saturating_mul(4);
        let values = rows.saturating_mul(row).saturating_add(logits);
        values.saturating_mul(4).saturating_add(RESERVE_BYTES)
    }

    fn needed(&self, context: usize) -> u64 {
        let all = [self.cache_bytes(context), self.workspace_bytes(context)];
        all.into_iter().fold(self.weight_bytes, u64::saturating_add)
    }

    /// The context for this number of free bytes; `None` if it is unknown.
    ///
    /// # Errors
    /// Those of [`ContextFit::new`].
    pub fn fit(&self, free: Option<u64>, on_cpu: bool) -> Result<ContextFit, ModelError> {
        let trained = self.spec.context;
        let of = |context: usize, bound| ContextFit {
            context,
            trained,
            bound,
            free_bytes: free,
            weight_bytes: self.weight_bytes,
            cache_bytes: self.cache_bytes(context),
            workspace_bytes: self.workspace_bytes(context),
        };
        let missing = |context: usize, needed: u64, free: u64| ModelError::ContextMemory {
            context,
            slots: self.request.slots.max(1),
            needed,
            free,
            weights: self.weight_bytes,
        };
        if let Some(context) = self.request.context {
            let fit = of(
                if context == 0 { trained } else { context },
                ContextBound::Request,
            );
            // The CPU executor maps the weights of a file, so that they need no free memory.
            let needed = match on_cpu {
                true => self.needed(fit.context).saturating_sub(self.weight_bytes),
                false => self.needed(fit.context),
            };
            return match free {
                Some(free) if needed > free => Err(missing(fit.context, needed, free)),
                Some(_) | None => Ok(fit),
            };
        }
        let (most, bound) = match (on_cpu || free.is_none()) && trained > MAX_DEFAULT_CPU_CONTEXT {
            true => (MAX_DEFAULT_CPU_CONTEXT, ContextBound::CpuDefault),
            false => (trained, ContextBound::Training),
        };
        let Some(free) = free else {
            return Ok(of(most, bound));
        };
        if self.needed(most) <= free {
            return Ok(of(most, bound));
        }
        // The longest multiple of a step that fits; `needed` does not fall as the context grows.
        let (mut fits, mut fails) = (0, most.div_ceil(CONTEXT_STEP));
        while fails - fits > 1 {
            let middle = usize::midpoint(fits, fails);
            match self.needed(middle * CONTEXT_STEP) <= free {
                true => fits = middle,
                false => fails = middle,
            }
        }
        let least = MIN_DEFAULT_CONTEXT.min(most);
        match fits * CONTEXT_STEP {
            context if context >= least => Ok(of(context, ContextBound::Memory)),
            _ => Err(missing(least, self.needed(least), free)),
        }
    }
}
