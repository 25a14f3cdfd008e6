//! Image embeddings addressed by token ids above the vocabulary.

use tercet::{Executable, Tensor};

use super::super::ModelError;
use super::Generator;

/// Embedding rows that image tokens refer to.
pub(super) struct ImageEmbeddings {
    /// Embedding rows; at least one, because an input cannot be empty.
    rows: Tensor,
    /// Number of valid image rows.
    pub(super) count: usize,
}

/// Name of the graph input with the embedding rows.
pub(in crate::builder) const PICTURES: &str = "pictures";

impl ImageEmbeddings {
    pub(super) fn bind(&self, exe: &mut dyn Executable) -> Result<(), ModelError> {
        let rows = exe.upload(&self.rows)?;
        Ok(exe.bind(PICTURES, &rows)?)
    }
}

impl Generator {
    /// Sets the image embeddings: token id `vocab + i` refers to row `i` of `rows`, with `width`
    /// elements per row.
    pub(in crate::builder) fn set_image_embeddings(
        &mut self,
        width: usize,
        rows: &[f32],
    ) -> Result<(), ModelError> {
        let count = rows.len() / width.max(1);
        let rows = match count {
            0 => Tensor::from_slice(&[1, width], &vec![0.0f32; width]),
            _ => Tensor::from_slice(&[count, width], rows),
        };
        let rows = rows.map_err(|e| ModelError::Unsupported(format!("image embeddings: {e}")))?;
        let seen = ImageEmbeddings { rows, count };
        let exe = self.exe()?;
        seen.bind(&mut **exe)?;
        self.image_embeddings = Some(seen);
        Ok(())
    }

    /// Truncates the cache at the first token whose id is `token` or greater.
    pub(in crate::builder) fn truncate_from(&mut self, token: u32) {
        if let Some(at) = self.tokens.iter().position(|own| *own >= token) {
            self.truncate(at);
        }
    }
}
