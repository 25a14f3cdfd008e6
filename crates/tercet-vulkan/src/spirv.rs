//! Compiles kernels to SPIR-V.
//!
//! Under validation, modules compiled from WGSL pass through `spirv-opt` if it is installed,
//! because the validation layer follows accesses only through combined access chains. Modules that
//! come as SPIR-V stay unchanged: `spirv-opt` breaks some cooperative-matrix modules.

use std::io::Write;
use std::process::{Command, Stdio};

use tercet_plan::KernelSource;
use tercet_spirv::{ENTRY, ModuleCache, RuntimeChecks};

use crate::error::VulkanError;

/// The SPIR-V of a kernel.
pub fn words(
    modules: &ModuleCache,
    name: &str,
    source: &KernelSource,
    validation: bool,
) -> Result<Vec<u32>, VulkanError> {
    let lowered = |text: &str, entry: &str, checks: RuntimeChecks| {
        let words = modules.lower(text, entry, checks);
        let words = words.map_err(|e| VulkanError::Failed {
            reason: format!("kernel {name}: {e}"),
        })?;
        Ok(match validation {
            true => combined(&words).unwrap_or(words),
            false => words,
        })
    };
    match source {
        KernelSource::Wgsl(text) => lowered(text, ENTRY, RuntimeChecks::None),
        KernelSource::UserWgsl { text, entry } => lowered(text, entry, RuntimeChecks::All),
        KernelSource::SpirV { module, .. } => module.words().map_err(|e| VulkanError::Failed {
            reason: format!("kernel {name}: {e}"),
        }),
    }
}

/// The module with combined access chains; `None` if `spirv-opt` is missing or fails.
fn combined(words: &[u32]) -> Option<Vec<u32>> {
    let mut child = Command::new("spirv-opt")
        .args([
            "--combine-access-chains",
            "--eliminate-dead-code-aggressive",
        ])
        .args(["-", "-o", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut stdin = child.stdin.take()?;
    // `spirv-opt` reads all input before it writes, so this cannot deadlock.
    let wrote = stdin.write_all(&bytes);
    drop(stdin);
    let out = child.wait_with_output().ok()?;
    wrote.ok()?;
    if !out.status.success() {
        return None;
    }
    ash::util::read_spv(&mut std::io::Cursor::new(out.stdout)).ok()
}
