//! The Debian packages that the GPU tests and the GLSL compiler need.

use std::process::Command;

use crate::process;

/// A Vulkan loader with a software device, and what checks programs: the validation layers,
/// `spirv-val`.
const VULKAN: &[&str] = &[
    "libvulkan1",
    "mesa-vulkan-drivers",
    "vulkan-validationlayers",
    "spirv-tools",
];

/// What builds the compiler of `cargo xtask shaders`.
const SHADER_COMPILER: &[&str] = &["cmake", "g++"];

/// Installs what is missing where that needs no question: on Debian, as root. Elsewhere, and where
/// installing fails, a line says what is missing; tests without a device then report themselves
/// as ignored, or fail where the device is required.
pub(crate) fn prepare(with_shader_compiler: bool) {
    let Some(missing) = missing(with_shader_compiler) else {
        return;
    };
    if missing.is_empty() {
        return;
    }
    let names = missing.join(" ");
    if !process::can_install() {
        eprintln!("for the GPU tests, install: apt-get install {names}");
        return;
    }
    eprintln!("installing {names}");
    if let Err(error) = process::apt_install(&missing) {
        eprintln!("{error}: going on without");
    }
}

/// The packages that are not installed; `None` on another system than Debian.
fn missing(with_shader_compiler: bool) -> Option<Vec<&'static str>> {
    if !process::works(Command::new("dpkg-query").arg("--version")) {
        return None;
    }
    let extra = if with_shader_compiler {
        SHADER_COMPILER
    } else {
        &[]
    };
    let wanted = VULKAN.iter().chain(extra);
    Some(wanted.copied().filter(|name| !installed(name)).collect())
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["--show", "--showformat", "${db:Status-Status}", package])
        .output()
        .is_ok_and(|output| output.stdout == b"installed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_package_is_not_installed() {
        assert!(!installed("no-such-package-here"));
        if let Some(missing) = missing(true) {
            assert!(missing.iter().all(|name| !installed(name)));
        }
    }
}
