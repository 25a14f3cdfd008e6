//! Input precision of matmuls with 16-bit or quantized weights.
//!
//! The F32 graph is the same for every setting. [`CompileOptions::matmul_precision`] allows an executor to
//! round matmul inputs if that is faster, which applies to runs with many rows such as prefill.
//! Single-token decode, residuals, norms, softmax, sums and logits stay in F32.

use std::fmt;

use tercet::ops::Op;
use tercet::{CompileOptions, DType, Device, Executable, Graph, Scheme};

use super::super::{ModelError, ModelGraph};

/// Precision of F32 matmul inputs with 16-bit or quantized weights.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::DType;
/// use tercet_networks::{DecoderOptions, MatmulPrecision};
/// let rounded = MatmulPrecision::Fixed(DType::F16);
/// let options = DecoderOptions { matmul_precision: rounded, ..DecoderOptions::new(&spec) };
/// assert_ne!(options.matmul_precision, MatmulPrecision::default());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MatmulPrecision {
    /// No rounding: inputs stay in F32.
    #[default]
    Full,
    /// Rounds to the dtype that is fastest on the device for these weights, F16 or BF16, if there
    /// is one. If a prompt overflows F16, the model is recompiled in BF16 or F32
    /// ([`Generator::fallback_message`](crate::Generator::fallback_message)).
    Auto,
    /// Rounds to this dtype, F16 or BF16, if that is faster on the device. Overflow is handled as
    /// with [`MatmulPrecision::Auto`].
    Fixed(DType),
}

impl MatmulPrecision {
    /// Rounding dtype for this graph on the device; `None` if inputs stay in F32.
    pub(crate) fn resolve(self, graph: &Graph, device: &Device) -> Option<DType> {
        self.choose_dtype(
            graph,
            [
                &device.fast_matmul_dtypes(),
                &device.fast_quant_matmul_dtypes(),
            ],
        )
    }

    /// Rounding dtype for this graph. `faster` and `packed` list the dtypes that are faster than
    /// F32 with float weights and with quantized weights.
    #[doc(hidden)]
    pub fn choose_dtype(self, graph: &Graph, [faster, packed]: [&[DType]; 2]) -> Option<DType> {
        let has = |dtype: DType| faster.contains(&dtype).then_some(dtype);
        let has_packed = |dtype: DType| packed.contains(&dtype).then_some(dtype);
        match self {
            MatmulPrecision::Full => None,
            MatmulPrecision::Fixed(dtype) => Some(dtype),
            MatmulPrecision::Auto => match StoredWeightBytes::new(graph) {
                StoredWeightBytes { all: 0, .. } => None,
                StoredWeightBytes { all, bf16, .. } if 2 * bf16 > all => has(DType::BF16),
                // BF16 weights are not converted to F16.
                StoredWeightBytes { packed: 0, .. } => has(DType::F16).or(has(DType::BF16)),
                StoredWeightBytes { .. } => (has(DType::F16).or(has(DType::BF16)))
                    .or(has_packed(DType::F16))
                    .or(has_packed(DType::BF16)),
            },
        }
    }
}

/// Bytes of weights that matmuls read in their stored format.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct StoredWeightBytes {
    all: usize,
    bf16: usize,
    packed: usize,
}

impl StoredWeightBytes {
    fn new(graph: &Graph) -> StoredWeightBytes {
        let mut stored = StoredWeightBytes::default();
        for (_, node) in graph.nodes() {
            let Op::DequantMatMul(op) = &node.op else {
                continue;
            };
            let ty = graph.ty(node.inputs[1]);
            let sizes = ty.shape.iter().map(|dim| dim.known().unwrap_or(0));
            let bytes = sizes.fold(ty.dtype.size_bytes(), usize::saturating_mul);
            stored.all = stored.all.saturating_add(bytes);
            if op.scheme == Scheme::BF16 {
                stored.bf16 = stored.bf16.saturating_add(bytes);
            }
            if op.scheme.storage() == DType::U8 {
                stored.packed = stored.packed.saturating_add(bytes);
            }
        }
        stored
    }
}

/// A model with rounded matmul inputs, and everything to recompile it in a wider dtype.
pub(crate) struct OverflowFallback {
    /// Dtype of the rounding.
    to: DType,
    device: Device,
    options: CompileOptions,
    model: ModelGraph,
}

impl OverflowFallback {
    pub(crate) fn new(
        to: DType,
        device: &Device,
        options: CompileOptions,
        model: &ModelGraph,
    ) -> OverflowFallback {
        let model = ModelGraph {
            graph: model.graph.clone(),
            // Cloned tensors share their memory.
            params: model.params.clone(),
        };
        OverflowFallback {
            to,
            device: device.clone(),
            options,
            model,
        }
    }

    /// Recompiles the model after an overflow: in BF16 if that is faster than F32 and not the
    /// current dtype, otherwise in F32.
    pub(crate) fn widen(self) -> Result<WidenedModel, ModelError> {
        let faster = self.device.fast_matmul_dtypes();
        let next = Some(DType::BF16).filter(|bf16| self.to != *bf16 && faster.contains(bf16));
        let options = self.options.with_matmul_precision(next);
        let exe = self.model.compile(&self.device, &options)?;
        let moved = PrecisionFallback {
            from: self.to,
            to: next.unwrap_or(DType::F32),
        };
        let again = next.map(|to| OverflowFallback {
            to,
            device: self.device,
            options,
            model: self.model,
        });
        Ok(WidenedModel {
            exe,
            fallback: moved,
            next_fallback: again,
        })
    }
}

/// A model recompiled in a wider dtype.
pub(crate) struct WidenedModel {
    pub(crate) exe: Box<dyn Executable>,
    /// Old and new dtype.
    pub(crate) fallback: PrecisionFallback,
    /// Fallback for a further overflow; `None` in F32.
    pub(crate) next_fallback: Option<OverflowFallback>,
}

/// A change of matmul precision after an overflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PrecisionFallback {
    from: DType,
    to: DType,
}

impl PrecisionFallback {
    /// Matmul precision for compiling further models of the same file.
    pub(crate) fn matmul_precision(self) -> MatmulPrecision {
        match self.to {
            DType::F32 => MatmulPrecision::Full,
            narrow => MatmulPrecision::Fixed(narrow),
        }
    }
}

impl fmt::Display for PrecisionFallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PrecisionFallback { from, to } = self;
        write!(
            f,
            "the prompt leaves the range of {from} in matmul inputs; the model continues in {to}"
        )
    }
}
