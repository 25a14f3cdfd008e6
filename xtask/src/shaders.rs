//! `cargo xtask shaders`: compiles the GLSL kernels to the SPIR-V modules that are committed next
//! to them.
//!
//! Every `shaders/vulkan/NAME.comp` of `tercet-plan` becomes `shaders/vulkan/spirv/NAME.spv`; that folder contains
//! nothing else. `shaders/vulkan/digests.txt` records the sources of each module. `--check`
//! compares digests instead of writing, and names every stale, missing and extra module. `--check
//! --compile` compiles again and compares the modules.
//!
//! The compiler is C++ and takes minutes to build, so it requires the cargo feature `glsl` of this
//! package. If the feature is off, compilation restarts the command through cargo with the feature
//! on. `spirv-val` comes from the folder that [`lavapipe`](crate::lavapipe) fetches, because the
//! `spirv-val` of a distribution is often too old for cooperative matrices.

#[cfg(feature = "glsl")]
mod compile;
mod digests;
mod folder;

use crate::error::XtaskError;
use crate::{lavapipe, process};

use folder::ShaderFolder;

/// The action of `cargo xtask shaders` on the modules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShaderMode {
    /// Compile, write the changed modules, and remove those without a source.
    Write,
    /// Fail if a module is missing, has no source, or has a digest of other sources.
    Check,
    /// Compile, and fail if a module differs, is missing, or has no source.
    CheckCompiled,
}

/// Compiles the kernels if needed, writes or checks the modules, then validates them.
pub(crate) fn run(mode: ShaderMode) -> Result<(), XtaskError> {
    let folder = ShaderFolder::new(process::root().join("crates/tercet-plan/shaders/vulkan"));
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

/// Restarts this command in a build that has the compiler.
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

/// Runs `spirv-val` on every module, if it is available.
fn validate(folder: &ShaderFolder) -> Result<(), XtaskError> {
    let Some(newer) = lavapipe::present()? else {
        eprintln!("modules not validated; `cargo xtask fetch lavapipe` installs spirv-val");
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
