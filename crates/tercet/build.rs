//! Passes the compiler version and build settings to the library as environment variables.

use std::env::var;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = var("RUSTC").unwrap_or_else(|_| "rustc".to_string());
    let version = Command::new(rustc).arg("--version").output();
    let version = version
        .ok()
        .and_then(|out| String::from_utf8(out.stdout).ok());
    let version = version.as_deref().map_or("an unknown compiler", str::trim);
    println!("cargo::rustc-env=TERCET_COMPILER={version}");
    for name in ["TARGET", "PROFILE", "OPT_LEVEL"] {
        let value = var(name).unwrap_or_else(|_| "unknown".to_string());
        println!("cargo::rustc-env=TERCET_{name}={value}");
    }
}
