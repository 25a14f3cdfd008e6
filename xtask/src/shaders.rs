//! `cargo xtask shaders`: the GLSL kernels into the SPIR-V modules that are committed beside them.
//!
//! Every `shaders/vulkan/NAME.comp` becomes `shaders/vulkan/spirv/NAME.spv`; that folder holds
//! nothing else. `shaders/vulkan/digests.txt` says of each module what it was made from.
//! `--check` compares digests instead of writing and names every stale, missing and left-over
//! module; `--check --compile` compiles again and compares the modules.
//!
//! The compiler is C++ that takes minutes to build, so it is behind the cargo feature `glsl` of
//! this package: without it, what compiles runs itself again through cargo with the feature on.
//! `spirv-val` is that of the folder that [`lavapipe`](crate::lavapipe) fetches, because a
//! distribution's own is often older than cooperative matrices.

#[cfg(feature = "glsl")]
mod compile;
mod digests;
mod folder;

use crate::error::XtaskError;
use crate::{lavapipe, process};

use folder::ShaderFolder;

/// What to do with the modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShaderMode {
    /// Compile, write those that differ, remove those without a source.
    Write,
    /// Fail if any is missing, has no source, or was made from another one by its digest.
    Check,
    /// Compile, fail if any differs, is missing, or has no source.
    CheckCompiled,
}

/// Compiles every kernel unless digests are enough, writes or checks the modules, then validates them.
pub(crate) fn run(mode: ShaderMode) -> Result<(), XtaskError> {
    let folder = ShaderFolder::new(process::root().join("shaders").join("vulkan"));
    match mode {
        ShaderMode::Check => digests::check(&folder)?,
        ShaderMode::Write | ShaderMode::CheckCompiled => return compiled(&folder, mode),
    }
    validate(&folder)
}

#[cfg(feature = "glsl")]
fn compiled(folder: &ShaderFolder, mode: ShaderMode) -> Result<(), XtaskError> {
    let modules = compile::all(folder)?;
    if mode == ShaderMode::Write {
        folder.write(&modules)?;
        digests::write(folder)?;
    } else {
        folder.check(&modules)?;
        digests::check(folder)?;
    }
    validate(folder)
}

/// Runs this command again in a build that has the compiler.
#[cfg(not(feature = "glsl"))]
fn compiled(_folder: &ShaderFolder, mode: ShaderMode) -> Result<(), XtaskError> {
    if !process::works(std::process::Command::new("cmake").arg("--version")) {
        return Err(XtaskError::NoCmake);
    }
    let mut cargo = process::cargo();
    cargo.args(["run", "--quiet", "--package", "xtask"]);
    cargo.args(["--features", "glsl-from-source", "--", "shaders"]);
    if mode == ShaderMode::CheckCompiled {
        cargo.args(["--check", "--compile"]);
    }
    process::run(&mut cargo)
}

/// Runs `spirv-val` on every module, where there is one.
fn validate(folder: &ShaderFolder) -> Result<(), XtaskError> {
    let Some(newer) = lavapipe::present()? else {
        eprintln!(
            "modules not validated: `cargo xtask fetch lavapipe` brings a spirv-val for them"
        );
        return Ok(());
    };
    let names = folder.sources()?;
    for name in &names {
        let mut validator = newer.program("spirv-val");
        validator.args(["--target-env", "vulkan1.3"]);
        process::run(validator.arg(folder.module_path(name)))?;
    }
    println!("{} modules are valid", names.len());
    Ok(())
}
