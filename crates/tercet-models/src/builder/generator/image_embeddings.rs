//! Rows of pictures, which tokens behind the vocabulary stand for.

use tercet::{Executable, Tensor};

use super::super::ModelError;
use super::Generator;

/// The rows that tokens may stand for.
pub(super) struct Seen {
    /// At least one row: an input is never empty.
    rows: Tensor,
    /// How many are of pictures.
    pub(super) count: usize,
}

/// The input with the rows.
pub(in crate::builder) const PICTURES: &str = "pictures";

impl Seen {
    pub(super) fn bind(&self, exe: &mut dyn Executable) -> Result<(), ModelError> {
        let rows = exe.upload(&self.rows)?;
        Ok(exe.bind(PICTURES, &rows)?)
    }
}

impl Generator {
    /// From now on the token `vocab + i` is the row `i` of `rows`, of `width` numbers each.
    pub(in crate::builder) fn see(&mut self, width: usize, rows: &[f32]) -> Result<(), ModelError> {
        let count = rows.len() / width.max(1);
        let rows = match count {
            0 => Tensor::from_slice(&[1, width], &vec![0.0f32; width]),
            _ => Tensor::from_slice(&[count, width], rows),
        };
        let rows = rows.map_err(|e| ModelError::Unsupported(format!("rows of pictures: {e}")))?;
        let seen = Seen { rows, count };
        let exe = self.exe()?;
        seen.bind(&mut **exe)?;
        self.seen = Some(seen);
        Ok(())
    }

    /// Forgets the first token of this number or a greater one, and those behind it.
    pub(in crate::builder) fn forget_from(&mut self, token: u32) {
        if let Some(at) = self.tokens.iter().position(|own| *own >= token) {
            self.truncate(at);
        }
    }
}
