//! `cargo xtask shaders`: the GLSL kernels into the SPIR-V modules that are committed beside them.
//!
//! Every `shaders/vulkan/NAME.comp` becomes `shaders/vulkan/spirv/NAME.spv`; that folder holds
//! nothing else. `--check` compares instead of writing and names every stale, missing and left-over
//! module.
//!
//! The compiler is C++ that takes minutes to build, so it is behind the cargo feature `shaderc` of
//! this package: without it, the command runs itself again through cargo with the feature on.
//! `spirv-val` is that of the folder that [`lavapipe`](crate::lavapipe) fetches, because a
//! distribution's own is often older than cooperative matrices.

#[cfg(feature = "shaderc")]
mod compile;
#[cfg(any(test, feature = "shaderc"))]
mod folder;

use crate::error::Error;
use crate::process;

/// What to do with the compiled modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Write those that differ, remove those without a source.
    Write,
    /// Fail if any differs, is missing, or has no source.
    Check,
}

/// Compiles every kernel, writes or checks the modules, then validates them.
#[cfg(feature = "shaderc")]
pub(crate) fn run(mode: Mode) -> Result<(), Error> {
    let folder = folder::Folder::new(process::root().join("shaders").join("vulkan"));
    let modules = compile::all(&folder)?;
    match mode {
        Mode::Write => folder.write(&modules)?,
        Mode::Check => folder.check(&modules)?,
    }
    let Some(newer) = crate::lavapipe::present()? else {
        eprintln!(
            "modules not validated: `cargo xtask fetch lavapipe` brings a spirv-val for them"
        );
        return Ok(());
    };
    for module in &modules {
        let mut validator = newer.program("spirv-val");
        validator.args(["--target-env", "vulkan1.3"]);
        process::run(validator.arg(folder.module_path(&module.name)))?;
    }
    println!("{} modules are valid", modules.len());
    Ok(())
}

/// Runs this command again in a build that has the compiler.
#[cfg(not(feature = "shaderc"))]
pub(crate) fn run(mode: Mode) -> Result<(), Error> {
    if !process::works(std::process::Command::new("cmake").arg("--version")) {
        return Err(Error::NoCmake);
    }
    let mut cargo = process::cargo();
    cargo.args(["run", "--quiet", "--package", "xtask"]);
    cargo.args(["--features", "shaderc", "--", "shaders"]);
    if mode == Mode::Check {
        cargo.arg("--check");
    }
    process::run(&mut cargo)
}
