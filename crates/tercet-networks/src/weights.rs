//! The weights of a model from any source, by name.

use tercet::{DType, Device, Scheme, TensorType};
use tercet_ir::fill::{InputFill, random_blocks};

use tercet_files::SafeDtype;
use tercet_files::folder_weights::HfWeights;
use tercet_files::gguf::{GgmlType, Gguf};

/// The weights of a model file or folder. Tensors are views of the memory-mapped files.
///
/// ```
/// # let header = br#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
/// # let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 8]].concat();
/// use tercet_files::{HfWeights, MappedFile};
/// use tercet_networks::Weights;
/// let weights = Weights::Hf(HfWeights::parse(MappedFile::from_vec(bytes))?);
/// assert!(weights.has("x"));
/// assert_eq!(weights.get("x")?.shape(), [2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub enum Weights {
    /// Weights of a GGUF file.
    Gguf(Gguf),
    /// Weights of a Hugging Face folder.
    Hf(HfWeights),
    /// Dummy weights in a chosen storage format, for benchmarks of any model size without a file.
    Dummy(DummyWeights),
}

impl Weights {
    /// True if a tensor of this name exists.
    pub fn has(&self, name: &str) -> bool {
        match self {
            Weights::Gguf(gguf) => gguf.has_tensor(name),
            Weights::Hf(weights) => weights.find_as_read(name).is_some() || weights.is_packed(name),
            // Dummy weights use the names of a bare encoder, without the `bert.` prefix.
            Weights::Dummy(_) => !name.starts_with("bert."),
        }
    }

    /// The float dtype in which training steps are fastest on the device. F32 if the device does not
    /// multiply 16-bit floats faster, or if most bytes of the weights are F32, as
    /// [`MatmulPrecision::Auto`](crate::MatmulPrecision::Auto) does. BF16 if most bytes are BF16,
    /// because F16 has a smaller range. Otherwise F16, or BF16 if the device has no F16.
    ///
    /// ```
    /// use tercet::{DType, Device, Scheme};
    /// use tercet_networks::{DummyWeights, Weights};
    /// let weights = Weights::Dummy(DummyWeights::packed(Scheme::F16));
    /// assert_eq!(weights.training_dtype(&Device::cpu()), DType::F32);
    /// ```
    pub fn training_dtype(&self, device: &Device) -> DType {
        self.dtype_of_training(&device.fast_matmul_dtypes())
    }

    /// The same for a device on which matmuls in the dtypes `faster` are faster than in F32.
    #[doc(hidden)]
    pub fn dtype_of_training(&self, faster: &[DType]) -> DType {
        let [all, wide, bf16] = self.bytes_by_float();
        let has = |dtype: &DType| faster.contains(dtype);
        let order: &[DType] = match () {
            () if 2 * wide > all => &[],
            () if 2 * bf16 > all => &[DType::BF16],
            () => &[DType::F16, DType::BF16],
        };
        order.iter().copied().find(has).unwrap_or(DType::F32)
    }

    /// Bytes of all tensors, of those in F32 or wider, and of those in BF16.
    fn bytes_by_float(&self) -> [u64; 3] {
        let mut sums = [0; 3];
        let mut add = |bytes: usize, is_wide: bool, is_bf16: bool| {
            for (sum, counts) in sums.iter_mut().zip([true, is_wide, is_bf16]) {
                *sum += if counts { bytes as u64 } else { 0 };
            }
        };
        match self {
            Weights::Gguf(gguf) => {
                for tensor in gguf.tensors() {
                    let ty = tensor.ggml_type();
                    let is_wide = matches!(ty, GgmlType::F32 | GgmlType::F64);
                    add(tensor.range().len(), is_wide, ty == GgmlType::BF16);
                }
            }
            Weights::Hf(weights) => {
                for (_, tensor) in weights.tensors() {
                    let dtype = tensor.dtype();
                    let is_wide = matches!(dtype, SafeDtype::F32 | SafeDtype::F64);
                    add(tensor.range().len(), is_wide, dtype == SafeDtype::BF16);
                }
            }
            Weights::Dummy(dummy) => {
                let is_bf16 = dummy.scheme == Some(Scheme::BF16);
                add(1, dummy.scheme.is_none(), is_bf16);
            }
        }
        sums
    }

    /// Whether a folder stores this weight as several tensors of a quantized matrix.
    pub(crate) fn is_packed(&self, name: &str) -> bool {
        matches!(self, Weights::Hf(weights) if weights.is_packed(name))
    }
}

/// Number of random blocks in the pattern that tensors are filled with; longer tensors repeat the
/// pattern.
pub(crate) const PATTERN_BLOCKS: usize = 4099;

/// Bound of the uniform random values. The bound is typical of trained matrices, so activations in
/// F16 do not overflow.
const WIDTH: f64 = 0.05;
const DENSE: InputFill = InputFill::Uniform(-WIDTH, WIDTH);

/// Dummy weights that depend only on a tensor's name and shape. Matrices are random, gains are ones
/// and biases are zeros.
///
/// ```
/// # let dims = tercet_networks::DecoderDims {
/// #     hidden: 64, layers: 2, heads: 4, kv_heads: 2, head_dim: 16, ffn: 96, vocab: 300,
/// #     context: 128,
/// # };
/// # let spec = tercet_networks::DecoderSpec::llama(dims);
/// # let weights = tercet_networks::Weights::Dummy(tercet_networks::DummyWeights::dense());
/// use tercet::Scheme;
/// use tercet_networks::{Decoder, DecoderOptions, DummyWeights, Weights};
/// let packed = Weights::Dummy(DummyWeights::packed(Scheme::Q8_0));
/// let dense = Weights::Dummy(DummyWeights::dense());
/// let packed = Decoder::build(&spec, &packed, DecoderOptions::new(&spec))?;
/// let dense = Decoder::build(&spec, &dense, DecoderOptions::new(&spec))?;
/// assert!(packed.model.param_bytes() < dense.model.param_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct DummyWeights {
    /// Storage format of the matrices; `None` means F32.
    pub(crate) scheme: Option<Scheme>,
    pub(crate) pattern: Vec<u8>,
}

impl DummyWeights {
    /// Dummy weights with F32 matrices.
    pub fn dense() -> DummyWeights {
        let ty = TensorType::new(DType::F32, &[PATTERN_BLOCKS]);
        DummyWeights {
            scheme: None,
            pattern: DENSE.tensor("made up", ty).bytes().to_vec(),
        }
    }

    /// Dummy weights with matrices in this storage format. A matrix is F16 if its row length is not
    /// a multiple of the block size.
    pub fn packed(scheme: Scheme) -> DummyWeights {
        let bytes = scheme.block_bytes() * PATTERN_BLOCKS;
        let storage = scheme.storage();
        let pattern = if storage.is_float() {
            let ty = TensorType::new(storage, &[bytes / storage.size_bytes()]);
            DENSE.tensor("made up", ty).bytes().to_vec()
        } else {
            random_blocks("made up", scheme, bytes, WIDTH)
        };
        DummyWeights {
            scheme: Some(scheme),
            pattern,
        }
    }
}
