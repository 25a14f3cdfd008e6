//! Compresses the SPIR-V modules, so that programs contain a third of their bytes, and copies the WGSL shaders without
//! comments and indentation, so that programs contain two thirds of theirs.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use flate2::Compression;
use flate2::write::ZlibEncoder;

include!("build/shader_text.rs");

fn main() -> io::Result<()> {
    let folder = |name| env::var_os(name).map(PathBuf::from).unwrap_or_default();
    let shaders = folder("CARGO_MANIFEST_DIR").join("shaders");
    println!("cargo::rerun-if-changed={}", shaders.display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build/shader_text.rs");
    let target = folder("OUT_DIR");
    for entry in fs::read_dir(shaders.join("vulkan/spirv"))? {
        let path = entry?.path();
        let Some(name) = path.file_name() else {
            continue;
        };
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&fs::read(&path)?)?;
        fs::write(target.join(name), encoder.finish()?)?;
    }
    copy_shaders(&shaders.join("portable"), &target.join("portable"))
}

/// Copies the shaders of a folder and its folders.
fn copy_shaders(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().unwrap_or_default());
        match path.is_dir() {
            true => copy_shaders(&path, &target)?,
            false => fs::write(target, shipped_text(&fs::read_to_string(&path)?))?,
        }
    }
    Ok(())
}
