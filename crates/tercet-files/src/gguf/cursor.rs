//! A bounds-checked reader over the bytes of a GGUF file. Every error has the offset and the
//! expected item.

use super::error::GgufError;

/// A read position in the bytes of a file. The cursor never reads, and never reserves memory for,
/// data beyond the end.
pub(super) struct GgufCursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> GgufCursor<'a> {
    pub(super) fn new(bytes: &'a [u8], pos: usize) -> Self {
        Self { bytes, pos }
    }

    pub(super) fn offset(&self) -> u64 {
        self.pos as u64
    }

    pub(super) fn pos(&self) -> usize {
        self.pos
    }

    pub(super) fn remaining_len(&self) -> u64 {
        (self.bytes.len() - self.pos) as u64
    }

    /// The bytes after the position.
    pub(super) fn remaining(&self) -> &'a [u8] {
        &self.bytes[self.pos..]
    }

    /// Reads the next `len` bytes. `what` is evaluated only for the error.
    pub(super) fn take(
        &mut self,
        len: u64,
        what: impl FnOnce() -> String,
    ) -> Result<&'a [u8], GgufError> {
        let left = self.remaining_len();
        if len > left {
            return Err(GgufError::Truncated {
                what: what(),
                offset: self.offset(),
                need: len,
                left,
            });
        }
        // `len <= left`, so it fits usize.
        let end = self.pos + len as usize;
        let taken = &self.bytes[self.pos..end];
        self.pos = end;
        Ok(taken)
    }

    fn array<const N: usize>(
        &mut self,
        what: impl FnOnce() -> String,
    ) -> Result<[u8; N], GgufError> {
        let bytes = self.take(N as u64, what)?;
        let mut array = [0; N];
        array.copy_from_slice(bytes);
        Ok(array)
    }

    pub(super) fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32, GgufError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64, GgufError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// Reads a count of items that take at least `min_bytes` each. A count above `limit`, or above
    /// the remaining bytes, is an error before any memory is reserved.
    pub(super) fn count(
        &mut self,
        min_bytes: u64,
        limit: u64,
        what: impl Fn() -> String,
    ) -> Result<u64, GgufError> {
        let offset = self.offset();
        let count = self.u64(&what)?;
        let max = (self.remaining_len() / min_bytes).min(limit);
        if count > max {
            return Err(GgufError::CountTooLarge {
                what: what(),
                offset,
                count,
                max,
            });
        }
        Ok(count)
    }

    /// Reads a string: a 64-bit length, then UTF-8 without a terminator.
    pub(super) fn string(&mut self, what: impl Fn() -> String) -> Result<&'a str, GgufError> {
        let len = self.u64(|| format!("the length of {}", what()))?;
        let offset = self.offset();
        let bytes = self.take(len, &what)?;
        std::str::from_utf8(bytes).map_err(|error| GgufError::InvalidUtf8 {
            what: what(),
            offset,
            bad: offset + error.valid_up_to() as u64,
        })
    }
}
