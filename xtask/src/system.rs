//! The Debian packages that the GPU tests and the GLSL compiler need.

use std::process::Command;

use crate::process;

/// The Vulkan loader, a software device, the validation layers and `spirv-val`.
const VULKAN: &[&str] = &[
    "libvulkan1",
    "mesa-vulkan-drivers",
    "vulkan-validationlayers",
    "spirv-tools",
];

/// The build tools of the GLSL compiler.
const SHADER_COMPILER: &[&str] = &["cmake", "g++"];

/// Installs missing packages if that needs no prompt (on Debian, as root). Otherwise, or if the
/// installation fails, prints the missing packages. Tests without a device are then ignored, or
/// fail if the device is required.
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
        eprintln!("{error}; continuing without these packages");
    }
}

/// The packages that are not installed; `None` on systems other than Debian.
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
