//! Builds the command for a target, with the features that it has there.

use std::path::PathBuf;

use super::GLIBC;
use super::cross::{self, CrossTools};
use crate::error::XtaskError;
use crate::process;
use crate::python::target_dir;
use crate::test::SELECTION;

/// The features of static programs, which cannot load the drivers of GPUs.
const STATIC_FEATURES: &str = "audio,grammar,hub,serve,splat";

/// Whether a target is built by Zig: for an old C library, without one, or for another processor.
pub(super) fn needs_zig(target: &str) -> bool {
    cfg!(target_os = "linux") && target.contains("-linux-")
}

/// Builds a program, which is `tercet` or `tercet-parity`, and returns its path. With cargo's own linker, a program for
/// this machine shares the build of the tests.
pub(super) fn program(
    target: &str,
    is_own: bool,
    tools: Option<&CrossTools>,
    name: &'static str,
) -> Result<PathBuf, XtaskError> {
    cross::add_target(target)?;
    let is_foreign = cfg!(not(windows)) && target.ends_with("-windows-gnu");
    if is_foreign {
        cross::require_mingw()?;
    }
    let mut cargo = process::cargo();
    cargo.args(arguments(target, name));
    if !is_own || tools.is_some() {
        cargo.args(["--target", target]);
    }
    if let Some(tools) = tools {
        tools.enable(&mut cargo, zig_triple(target).as_deref())?;
    }
    process::run(&mut cargo)?;
    let name = match target.contains("-windows-") {
        true => format!("{name}.exe"),
        false => name.to_string(),
    };
    let folder = match is_own && tools.is_none() {
        true => target_dir(),
        false => target_dir().join(target),
    };
    Ok(folder.join("release").join(name))
}

/// Builds the C library for a target, and returns its folder. It shares the build of the program.
pub(super) fn library(target: &str, tools: &CrossTools) -> Result<PathBuf, XtaskError> {
    let mut cargo = process::cargo();
    cargo.args(["build", "--locked", "--release", "--package", "tercet-c"]);
    cargo.args(["--all-features", "--target", target]);
    tools.enable(&mut cargo, zig_triple(target).as_deref())?;
    process::run(&mut cargo)?;
    Ok(target_dir().join(target).join("release"))
}

/// The target with the version of glibc, as cargo-zigbuild expects it; `None` if Zig does not build it.
pub(super) fn zig_triple(target: &str) -> Option<String> {
    needs_zig(target).then(|| match target.ends_with("-linux-gnu") {
        true => format!("{target}.{GLIBC}"),
        false => target.to_string(),
    })
}

/// The arguments of cargo. Programs with all features share the build of the wheel, which has the features of the
/// whole workspace.
fn arguments(target: &str, name: &'static str) -> Vec<&'static str> {
    let mut arguments = vec!["build", "--locked", "--bin", name];
    match target.ends_with("-musl") {
        true => arguments.extend([
            "--release",
            "--package",
            "tercet-cli",
            "--no-default-features",
            "--features",
            STATIC_FEATURES,
        ]),
        false => arguments.extend(SELECTION),
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn zig_gets_the_version_of_glibc() {
        let triple = zig_triple("aarch64-unknown-linux-gnu");
        assert_eq!(triple.as_deref(), Some("aarch64-unknown-linux-gnu.2.28"));
        let musl = "x86_64-unknown-linux-musl";
        assert_eq!(zig_triple(musl).as_deref(), Some(musl));
        assert_eq!(zig_triple("x86_64-pc-windows-gnu"), None);
    }

    #[test]
    fn programs_with_a_shared_c_library_have_all_features() {
        assert!(arguments("aarch64-unknown-linux-gnu", "tercet").contains(&"--all-features"));
    }

    #[test]
    fn static_programs_have_no_gpu_executor() {
        let text = arguments("x86_64-unknown-linux-musl", "tercet").join(" ");
        assert!(text.contains("--no-default-features"), "{text}");
        assert!(!text.contains("vulkan") && !text.contains("wgpu"), "{text}");
    }
}
