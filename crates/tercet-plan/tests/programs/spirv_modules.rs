//! The SPIR-V modules that the build script compresses.

use tercet_plan::{KernelCode, kernels};

#[test]
fn modules_are_those_of_the_committed_files() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = folder.join("shaders/vulkan/spirv");
    let (mut compressed, mut whole) = (0, 0);
    for kernel in kernels() {
        let KernelCode::SpirV(module) = kernel.code else {
            continue;
        };
        let path = folder.join(format!("{}.spv", kernel.name));
        let expected = std::fs::read(&path).expect(kernel.name);
        let words = module.words().expect(kernel.name);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        assert!(bytes == expected, "{} differs from its file", kernel.name);
        compressed += module.compressed_bytes();
        whole += expected.len();
    }
    assert!(whole > 1_000_000, "only {whole} bytes of modules");
    assert!(
        3 * compressed < whole + whole / 10,
        "{compressed} of {whole} bytes"
    );
}
