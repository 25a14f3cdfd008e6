//! Compresses the SPIR-V modules, so that programs contain a third of their bytes.

use std::io::Write as _;
use std::path::PathBuf;
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::ZlibEncoder;

fn main() -> io::Result<()> {
    let folder = |name| env::var_os(name).map(PathBuf::from).unwrap_or_default();
    let modules = folder("CARGO_MANIFEST_DIR").join("shaders/vulkan/spirv");
    println!("cargo::rerun-if-changed={}", modules.display());
    println!("cargo::rerun-if-changed=build.rs");
    for entry in fs::read_dir(&modules)? {
        let path = entry?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&fs::read(&path)?)?;
        fs::write(folder("OUT_DIR").join(name), encoder.finish()?)?;
    }
    Ok(())
}
