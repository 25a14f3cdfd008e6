//! Sets `cfg(tercet_avx512)` if the compiler has stable AVX-512 and AVX-VNNI intrinsics (Rust 1.89). The
//! crate still builds on its minimum Rust version.
//!
//! Sets `cfg(tercet_int_dot)` for processors with hand-written integer dot products, and
//! `cfg(tercet_byte_gemm)` if the I32 GEMM can use them.

use std::process::Command;

fn main() {
    println!("cargo::rustc-check-cfg=cfg(tercet_avx512)");
    println!("cargo::rustc-check-cfg=cfg(tercet_int_dot)");
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH");
    if matches!(arch.as_deref(), Ok("x86_64" | "aarch64")) {
        println!("cargo::rustc-cfg=tercet_int_dot");
    }
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=RUSTC");
    let has_avx512 = rustc_minor().is_some_and(|minor| minor >= 89);
    if has_avx512 {
        println!("cargo::rustc-cfg=tercet_avx512");
    }
    println!("cargo::rustc-check-cfg=cfg(tercet_byte_gemm)");
    if arch.as_deref() == Ok("aarch64") || has_avx512 && arch.as_deref() == Ok("x86_64") {
        println!("cargo::rustc-cfg=tercet_byte_gemm");
    }
}

/// Minor version of the compiler in use: `rustc 1.95.0 (...)` gives 95.
fn rustc_minor() -> Option<u32> {
    let rustc = std::env::var_os("RUSTC")?;
    let output = Command::new(rustc).arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let version = text.split_whitespace().nth(1)?;
    let mut parts = version.split('.');
    match (parts.next()?, parts.next()?.parse().ok()?) {
        ("1", minor) => Some(minor),
        _ => Some(u32::MAX),
    }
}
