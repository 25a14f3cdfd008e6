//! SPIR-V modules, which programs contain in compressed form: they are a third of the size, and a GPU runtime
//! decompresses a module once for each pipeline, in a tenth of a millisecond.

use std::io::{self, Read as _};

use flate2::read::ZlibDecoder;

/// A SPIR-V module, compressed by a build script. Modules are equal if their code is equal.
///
/// ```
/// use tercet_program::SpirvModule;
///
/// // The four bytes of one word, stored without compression.
/// static MODULE: SpirvModule =
///     SpirvModule::from_zlib(&[0x78, 1, 1, 4, 0, 0xfb, 0xff, 1, 2, 3, 4, 0, 0x18, 0, 0xb]);
/// assert_eq!(MODULE.words()?, [0x0403_0201]);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpirvModule(&'static [u8]);

impl SpirvModule {
    /// A module in the format of zlib.
    pub const fn from_zlib(bytes: &'static [u8]) -> SpirvModule {
        SpirvModule(bytes)
    }

    /// Size of the compressed module in bytes.
    pub const fn compressed_bytes(self) -> usize {
        self.0.len()
    }

    /// The 32-bit words of the module.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] or [`io::ErrorKind::InvalidData`] if the compressed bytes are damaged.
    pub fn words(self) -> io::Result<Vec<u32>> {
        let mut bytes = Vec::new();
        ZlibDecoder::new(self.0).read_to_end(&mut bytes)?;
        let words = bytes.chunks_exact(4);
        if !words.remainder().is_empty() {
            let problem = format!(
                "a SPIR-V module has {} bytes, expected a multiple of 4",
                bytes.len()
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
        }
        let word = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        Ok(words.map(word).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_modules_are_errors() {
        let damaged: [(&'static [u8], &str); 2] = [
            (b"no zlib", "corrupt"),
            // Three bytes, stored without compression.
            (
                &[0x78, 0x01, 0x01, 3, 0, 0xfc, 0xff, 1, 2, 3, 0, 13, 0, 7],
                "multiple of 4",
            ),
        ];
        for (bytes, expected) in damaged {
            let error = SpirvModule::from_zlib(bytes).words().unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
