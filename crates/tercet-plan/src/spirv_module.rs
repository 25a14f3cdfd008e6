//! SPIR-V modules, which programs contain in compressed form: they are a third of the size, and a GPU runtime
//! decompresses a module once for each pipeline, in a tenth of a millisecond.

use std::io::{self, Read as _};

use flate2::read::ZlibDecoder;

/// A SPIR-V module, compressed by the build script. Modules are equal if their code is equal.
///
/// ```
/// use tercet_plan::{KernelCode, kernels};
///
/// let code = kernels().find_map(|kernel| match kernel.code {
///     KernelCode::SpirV(module) => Some(module),
///     KernelCode::Wgsl(_) => None,
/// });
/// let words = code.map(|module| module.words()).transpose()?.unwrap_or_default();
/// assert_eq!(words[0], 0x0723_0203);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpirvModule(&'static [u8]);

impl SpirvModule {
    /// A module in the format of zlib.
    pub(crate) const fn from_zlib(bytes: &'static [u8]) -> SpirvModule {
        SpirvModule(bytes)
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

/// The module that the build script compressed, by its file name in `shaders/vulkan/spirv`.
macro_rules! spirv_module {
    ($file:expr) => {
        $crate::SpirvModule::from_zlib(include_bytes!(concat!(env!("OUT_DIR"), "/", $file)))
    };
}

pub(crate) use spirv_module;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelCode;

    #[test]
    fn modules_are_those_of_the_committed_files() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let folder = folder.join("../../shaders/vulkan/spirv");
        let (mut compressed, mut whole) = (0, 0);
        for kernel in crate::kernels() {
            let KernelCode::SpirV(module) = kernel.code else {
                continue;
            };
            let path = folder.join(format!("{}.spv", kernel.name));
            let expected = std::fs::read(&path).expect(kernel.name);
            let words = module.words().expect(kernel.name);
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert!(bytes == expected, "{} differs from its file", kernel.name);
            compressed += module.0.len();
            whole += expected.len();
        }
        assert!(whole > 1_000_000, "only {whole} bytes of modules");
        assert!(
            3 * compressed < whole + whole / 10,
            "{compressed} of {whole} bytes"
        );
    }

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
