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
    cargo.args(arguments(target, tools.is_some(), name));
    if !is_own || tools.is_some() {
        cargo.args(["--target", &triple(target, tools.is_some())]);
    }
    if let Some(tools) = tools {
        tools.enable(&mut cargo);
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
    let has_zig = needs_zig(target);
    let mut cargo = process::cargo();
    cargo.arg(if has_zig { "zigbuild" } else { "build" });
    cargo.args(["--locked", "--release", "--package", "tercet-c"]);
    cargo.args(["--all-features", "--target", &triple(target, has_zig)]);
    tools.enable(&mut cargo);
    process::run(&mut cargo)?;
    Ok(target_dir().join(target).join("release"))
}

/// The target as cargo or cargo-zigbuild expects it, which takes the version of glibc.
fn triple(target: &str, has_zig: bool) -> String {
    match has_zig && target.ends_with("-linux-gnu") {
        true => format!("{target}.{GLIBC}"),
        false => target.to_string(),
    }
}

/// The arguments of cargo. Programs with all features share the build of the wheel, which has the features of the
/// whole workspace.
fn arguments(target: &str, has_zig: bool, name: &'static str) -> Vec<&'static str> {
    let subcommand = if has_zig { "zigbuild" } else { "build" };
    let mut arguments = vec![subcommand, "--locked", "--bin", name];
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
    fn builds_name_their_target_and_glibc() {
        let target = "aarch64-unknown-linux-gnu";
        assert_eq!(triple(target, true), "aarch64-unknown-linux-gnu.2.28");
        assert_eq!(triple(target, false), target);
        let (zig, own) = (
            arguments(target, true, "tercet"),
            arguments(target, false, "tercet"),
        );
        assert_eq!((zig[0], own[0]), ("zigbuild", "build"));
        assert!(zig.contains(&"--all-features"));
    }

    #[test]
    fn static_programs_have_no_gpu_executor() {
        let target = "x86_64-unknown-linux-musl";
        assert_eq!(triple(target, true), target);
        let text = arguments(target, true, "tercet").join(" ");
        assert!(text.contains("--no-default-features"), "{text}");
        assert!(!text.contains("vulkan") && !text.contains("wgpu"), "{text}");
    }
}
