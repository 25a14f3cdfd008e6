//! The two row orders of Q and K projections, see [`RopeLayout`].

use tercet::{DType, Tensor};

use crate::config::{DecoderSpec, QkvRows, RopeLayout};

/// Order of a projection's rows in a model file.
///
/// ```
/// use tercet::Tensor;
/// use tercet_networks::config::decoder::rows::ProjectionRowOrder;
/// let order = ProjectionRowOrder::Pairs { head_dim: 4, rope_dims: 4 };
/// let rows = order.apply(&Tensor::from_slice(&[4, 1], &[0f32, 1.0, 2.0, 3.0])?);
/// assert_eq!(rows.as_slice::<f32>()?, [0.0, 2.0, 1.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "the fields are named by the descriptions above them"
)]
pub enum ProjectionRowOrder {
    /// Order of Hugging Face folders.
    Plain,
    /// Interleaved rotary pairs: the first `rope_dims` of every `head_dim` rows are permuted so
    /// that the two rows of a pair are adjacent.
    Pairs { head_dim: usize, rope_dims: usize },
    /// Fused QKV with all Q heads first, then K, then V. Hugging Face folders instead group the
    /// rows by key head: `queries` Q heads, then K and V, each with `head_dim` rows.
    Apart { head_dim: usize, queries: usize },
}

impl ProjectionRowOrder {
    /// Row order of the model's Q and K projections.
    pub(crate) fn for_heads(config: &DecoderSpec) -> ProjectionRowOrder {
        let in_folders = config.family.get().rope_in_folders;
        match (in_folders, config.rope_layout) {
            (RopeLayout::Halves, RopeLayout::Halves) | (RopeLayout::Pairs, _) => {
                ProjectionRowOrder::Plain
            }
            (RopeLayout::Halves, RopeLayout::Pairs) => ProjectionRowOrder::Pairs {
                head_dim: config.head_dim,
                rope_dims: config.rope_dims,
            },
        }
    }

    /// Row order of the model's fused QKV projection.
    pub(crate) fn for_fused(config: &DecoderSpec) -> ProjectionRowOrder {
        let by_part = config.storage.qkv_rows == QkvRows::ByPart;
        match config.family.get().qkv_by_group_in_folders && by_part {
            true => ProjectionRowOrder::Apart {
                head_dim: config.head_dim,
                queries: config.heads / config.kv_heads,
            },
            false => ProjectionRowOrder::Plain,
        }
    }

    /// Hugging Face row index of row `own` in this order; the projection has `rows` rows.
    fn hf(self, own: usize, rows: usize) -> usize {
        match self {
            ProjectionRowOrder::Plain => own,
            ProjectionRowOrder::Pairs {
                head_dim,
                rope_dims,
            } => {
                let (head, at) = (own - own % head_dim, own % head_dim);
                match at < rope_dims {
                    true => head + at % 2 * (rope_dims / 2) + at / 2,
                    false => own,
                }
            }
            ProjectionRowOrder::Apart { head_dim, queries } => {
                let groups = (rows / (queries + 2) / head_dim).max(1);
                let (block, at) = (own / head_dim, own % head_dim);
                let heads = groups * queries;
                let (group, place) = match block.checked_sub(heads) {
                    None => (block / queries, block % queries),
                    Some(block) => (block % groups, queries + block / groups),
                };
                (group * (queries + 2) + place) * head_dim + at
            }
        }
    }

    /// Permutes `[rows, ..]` from Hugging Face order to this order.
    #[must_use]
    pub fn apply(self, plain: &Tensor) -> Tensor {
        self.moved(plain, |own, hf| (own, hf))
    }

    /// Permutes `[rows, ..]` from this order to Hugging Face order.
    #[doc(hidden)]
    pub fn undo(self, own: &Tensor) -> Tensor {
        self.moved(own, |own, hf| (hf, own))
    }

    /// Permutes rows: `place` maps a row's index in this order and its Hugging Face index to the
    /// destination and source index.
    fn moved(self, from: &Tensor, place: impl Fn(usize, usize) -> (usize, usize)) -> Tensor {
        let (false, [rows, ..]) = (self == ProjectionRowOrder::Plain, from.shape()) else {
            return from.clone();
        };
        let (rows, size) = (*rows, from.bytes().len() / (*rows).max(1));
        let mut to = from.clone();
        let bytes = to.bytes_mut();
        for own in 0..rows {
            let hf = self.hf(own, rows);
            if hf < rows {
                let (write, read) = place(own, hf);
                bytes[write * size..][..size].copy_from_slice(&from.bytes()[read * size..][..size]);
            }
        }
        to
    }
}

/// Converts a tensor to F32.
///
/// # Errors
/// [`tercet::TensorError`] if memory is exhausted.
pub fn to_f32(tensor: &Tensor) -> Result<Tensor, tercet::TensorError> {
    if tensor.dtype() == DType::F32 {
        return Ok(tensor.clone());
    }
    let ty = tercet::TensorType::new(DType::F32, tensor.shape());
    Tensor::from_f64s(ty, &tensor.to_f64s())
}
