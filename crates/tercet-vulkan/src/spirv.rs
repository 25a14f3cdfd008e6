//! Kernels to SPIR-V.
//!
//! WGSL goes through naga without bounds checks: kernels guard every access. What comes from outside gets
//! them, and bounds of its loops. Under validation the
//! result goes through `spirv-opt` where that is installed, because the validation layer follows
//! accesses only through combined access chains. Modules that come as SPIR-V stay as they are:
//! `spirv-opt` breaks some cooperative-matrix modules.

mod layout;

use std::io::Write;
use std::process::{Command, Stdio};

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use tercet_plan::Source;

use crate::error::GpuError;

/// The SPIR-V of a kernel.
pub(crate) fn words(name: &str, source: &Source, validation: bool) -> Result<Vec<u32>, GpuError> {
    let translated = |text: &str, entry: &str, checks: Checks| {
        let words = from_wgsl(text, entry, checks).map_err(|e| GpuError::Failed {
            reason: format!("kernel {name}: {e}"),
        })?;
        let words = layout::without_workgroup_layout(&words);
        Ok(match validation {
            true => combined(&words).unwrap_or(words),
            false => words,
        })
    };
    match source {
        Source::Wgsl(text) => translated(text, ENTRY, Checks::None),
        Source::Checked { text, entry } => translated(text, entry, Checks::All),
        Source::SpirV { module, .. } => ash::util::read_spv(&mut std::io::Cursor::new(module))
            .map_err(|e| GpuError::Failed {
                reason: format!("kernel {name}: {e}"),
            }),
    }
}

/// The entry point of every module as the device gets it.
const ENTRY: &str = "main";

/// What a module does about mistakes of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checks {
    /// It stays inside its arrays and ends.
    All,
    /// Nothing: it makes none.
    None,
}

/// The SPIR-V of a WGSL module; its entry point becomes [`ENTRY`].
fn from_wgsl(text: &str, entry: &str, checks: Checks) -> Result<Vec<u32>, String> {
    let mut module =
        naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string_with_path(text, "wgsl"))?;
    module.entry_points.retain(|e| e.name == entry);
    for own in &mut module.entry_points {
        own.name = ENTRY.to_string();
    }
    let capabilities = Capabilities::SUBGROUP
        | Capabilities::SUBGROUP_BARRIER
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|e| e.emit_to_string_with_path(text, "wgsl"))?;
    let are_checked = checks == Checks::All;
    let policy = match checks {
        Checks::All => BoundsCheckPolicy::Restrict,
        Checks::None => BoundsCheckPolicy::Unchecked,
    };
    let options = spv::Options {
        lang_version: (1, 3),
        flags: spv::WriterFlags::empty(),
        fake_missing_bindings: false,
        bounds_check_policies: BoundsCheckPolicies {
            index: policy,
            buffer: policy,
            image_load: policy,
            binding_array: policy,
        },
        zero_initialize_workgroup_memory: match checks {
            Checks::All => spv::ZeroInitializeWorkgroupMemoryMode::Polyfill,
            Checks::None => spv::ZeroInitializeWorkgroupMemoryMode::None,
        },
        force_loop_bounding: are_checked,
        binding_map: bindings(&module),
        ..spv::Options::default()
    };
    let entry = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: ENTRY.to_string(),
    };
    spv::write_vec(&module, &info, &options, Some(&entry)).map_err(|e| e.to_string())
}

/// Every binding as it is written in the module.
fn bindings(module: &naga::Module) -> spv::BindingMap {
    let bound = module
        .global_variables
        .iter()
        .filter_map(|(_, v)| v.binding);
    bound
        .map(|b| {
            let info = spv::BindingInfo {
                descriptor_set: b.group,
                binding: b.binding,
                binding_array_size: None,
            };
            (b, info)
        })
        .collect()
}

/// The module with combined access chains; `None` without a working `spirv-opt`.
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
    // It reads everything before it writes: no deadlock.
    let wrote = stdin.write_all(&bytes);
    drop(stdin);
    let out = child.wait_with_output().ok()?;
    wrote.ok()?;
    if !out.status.success() {
        return None;
    }
    ash::util::read_spv(&mut std::io::Cursor::new(out.stdout)).ok()
}

/// What a module asks of subgroups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Operations between the invocations of a subgroup.
    pub(crate) subgroups: bool,
    /// Cooperative matrices.
    pub(crate) coop: bool,
}

/// Reads the capabilities that a module declares.
pub(crate) fn uses(words: &[u32]) -> Uses {
    const OP_CAPABILITY: u32 = 17;
    const GROUP_NON_UNIFORM: std::ops::RangeInclusive<u32> = 61..=68;
    const COOPERATIVE_MATRIX: u32 = 6022;
    let mut uses = Uses::default();
    // Capabilities come first, after a header of five words; each takes two.
    for pair in words.get(5..).unwrap_or_default().chunks_exact(2) {
        if pair[0] != (2 << 16 | OP_CAPABILITY) {
            break;
        }
        uses.subgroups |= GROUP_NON_UNIFORM.contains(&pair[1]);
        uses.coop |= pair[1] == COOPERATIVE_MATRIX;
    }
    uses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wgsl_becomes_spirv_and_its_capabilities_are_seen() {
        let text = "
            @group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(64)
            fn main(@builtin(global_invocation_id) id: vec3<u32>) {
                if (id.x < arrayLength(&y)) { y[id.x] = subgroupAdd(id.x); }
            }";
        let words = words("t", &Source::Wgsl(text.into()), false).unwrap();
        assert_eq!(words[0], 0x0723_0203);
        assert_eq!(
            uses(&words),
            Uses {
                subgroups: true,
                coop: false
            }
        );
        let plain = text.replace("subgroupAdd(id.x)", "id.x");
        let plain = from_wgsl(&plain, "main", Checks::None).unwrap();
        assert_eq!(uses(&plain), Uses::default());
    }

    #[test]
    fn modules_from_outside_are_bound_by_the_length_of_their_arrays() {
        let text = "
            @group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(64)
            fn fill(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = id.x; }
            @compute @workgroup_size(1)
            fn other() { y[0] = 1u; }";
        let checked = Source::Checked {
            text: text.into(),
            entry: "fill".into(),
        };
        let array_lengths = |words: &[u32]| words.iter().filter(|w| **w & 0xffff == 68).count();
        let checked = words("t", &checked, false).unwrap();
        assert!(array_lengths(&checked) > 0);
        let plain = text.replace("fn fill", "fn main");
        let plain = words("t", &Source::Wgsl(plain.into()), false).unwrap();
        assert!(plain.len() < checked.len());
    }

    #[test]
    fn an_error_in_wgsl_names_kernel_and_place() {
        let error = words("sum n=4", &Source::Wgsl("fn main( {".into()), false).unwrap_err();
        let GpuError::Failed { reason } = error else {
            panic!("{error:?}");
        };
        assert!(reason.starts_with("kernel sum n=4: "), "{reason}");
    }
}
