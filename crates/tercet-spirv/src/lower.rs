//! Compiles WGSL to SPIR-V.
//!
//! Tercet's own kernels are compiled without bounds checks, because they guard every access. Other
//! kernels get bounds checks and bounded loops. Every change to the generated code requires a new
//! `LOWERING` in `modules.rs`.

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};

use crate::layout;

/// Error of naga's parser, validator or SPIR-V writer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct LowerError {
    /// naga's report, with the position in the source.
    pub reason: String,
}

/// Name of the entry point in every compiled module.
pub const ENTRY: &str = "main";

/// Run-time checks in the generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuntimeChecks {
    /// Bounds checks, loop bounds and zeroed workgroup memory, for kernels from outside.
    All,
    /// No checks, for kernels that guard every access themselves.
    None,
}

/// Compiles a WGSL module to SPIR-V words. Entry point `entry` is renamed to [`ENTRY`].
///
/// # Errors
/// [`LowerError`] with naga's report.
pub fn lower(text: &str, entry: &str, checks: RuntimeChecks) -> Result<Vec<u32>, LowerError> {
    let words = from_wgsl(text, entry, checks).map_err(|reason| LowerError { reason })?;
    Ok(layout::without_workgroup_layout(&words))
}

/// The module as naga generates it, before layout decorations are removed.
pub(crate) fn from_wgsl(
    text: &str,
    entry: &str,
    checks: RuntimeChecks,
) -> Result<Vec<u32>, String> {
    let mut module =
        naga::front::wgsl::parse_str(text).map_err(|e| e.emit_to_string_with_path(text, "wgsl"))?;
    module.entry_points.retain(|e| e.name == entry);
    for own in &mut module.entry_points {
        own.name = ENTRY.to_string();
    }
    mark_coherent(&mut module);
    let capabilities = Capabilities::SUBGROUP
        | Capabilities::MEMORY_DECORATION_COHERENT
        | Capabilities::SUBGROUP_BARRIER
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .map_err(|e| e.emit_to_string_with_path(text, "wgsl"))?;
    let are_checked = checks == RuntimeChecks::All;
    let policy = match checks {
        RuntimeChecks::All => BoundsCheckPolicy::Restrict,
        RuntimeChecks::None => BoundsCheckPolicy::Unchecked,
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
            RuntimeChecks::All => spv::ZeroInitializeWorkgroupMemoryMode::Polyfill,
            RuntimeChecks::None => spv::ZeroInitializeWorkgroupMemoryMode::None,
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

/// Name of the counter buffer through which dispatches synchronize while they run (ADR 0072).
const CHAIN: &str = "chain";

/// Name of the weight buffer, which no dispatch writes during a run.
const WEIGHTS: &str = "b_data";

/// Marks the buffers of a kernel in a dependent-launch chain as coherent, so that concurrent
/// dispatches see its writes. WGSL for browsers has no attribute for coherent buffers.
fn mark_coherent(module: &mut naga::Module) {
    let is_chain = |v: &naga::GlobalVariable| v.name.as_deref() == Some(CHAIN);
    let is_link = module.global_variables.iter().any(|(_, v)| is_chain(v));
    if !is_link {
        return;
    }
    for (_, variable) in module.global_variables.iter_mut() {
        let is_storage = matches!(variable.space, naga::AddressSpace::Storage { .. });
        if is_storage && variable.name.as_deref() != Some(WEIGHTS) {
            variable.memory_decorations |= naga::MemoryDecorations::COHERENT;
        }
    }
}

/// Binding map that keeps the module's own binding numbers.
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

/// Subgroup features that a module uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SubgroupUsage {
    /// Subgroup operations.
    pub subgroups: bool,
    /// Cooperative matrices.
    pub coop: bool,
}

/// Reads the capabilities that a SPIR-V module declares.
pub fn uses(words: &[u32]) -> SubgroupUsage {
    const OP_CAPABILITY: u32 = 17;
    const GROUP_NON_UNIFORM: std::ops::RangeInclusive<u32> = 61..=68;
    const COOPERATIVE_MATRIX: u32 = 6022;
    let mut uses = SubgroupUsage::default();
    // `OpCapability` instructions come first, after the five header words; each has two words.
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
        let words = lower(text, ENTRY, RuntimeChecks::None).unwrap();
        assert_eq!(words[0], 0x0723_0203);
        assert_eq!(
            uses(&words),
            SubgroupUsage {
                subgroups: true,
                coop: false
            }
        );
        let plain = text.replace("subgroupAdd(id.x)", "id.x");
        let plain = from_wgsl(&plain, "main", RuntimeChecks::None).unwrap();
        assert_eq!(uses(&plain), SubgroupUsage::default());
    }

    #[test]
    fn modules_from_outside_are_bound_by_the_length_of_their_arrays() {
        let text = "
            @group(0) @binding(1) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(64)
            fn fill(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = id.x; }
            @compute @workgroup_size(1)
            fn other() { y[0] = 1u; }";
        let array_lengths = |words: &[u32]| words.iter().filter(|w| **w & 0xffff == 68).count();
        let checked = lower(text, "fill", RuntimeChecks::All).unwrap();
        assert!(array_lengths(&checked) > 0);
        let plain = text.replace("fn fill", "fn main");
        let plain = lower(&plain, ENTRY, RuntimeChecks::None).unwrap();
        assert!(plain.len() < checked.len());
    }

    #[test]
    fn links_of_chains_read_what_others_write_meanwhile() {
        let text = "
            @group(0) @binding(1) var<storage, read> a_data: array<u32>;
            @group(0) @binding(2) var<storage, read> b_data: array<u32>;
            @group(0) @binding(3) var<storage, read_write> chain: array<atomic<u32>>;
            @group(0) @binding(4) var<storage, read_write> y: array<u32>;
            @compute @workgroup_size(1)
            fn main() { y[0] = a_data[0] + b_data[0] + atomicAdd(&chain[0], 1u); }";
        // `OpDecorate` with decoration `Coherent`.
        let coherent = |text: &str| {
            let words = lower(text, ENTRY, RuntimeChecks::None).unwrap();
            words
                .windows(3)
                .filter(|w| w[0] == (3 << 16 | 71) && w[2] == 23)
                .count()
        };
        assert_eq!(coherent(text), 3);
        assert_eq!(coherent(&text.replace("chain", "count")), 0);
    }

    #[test]
    fn an_error_in_wgsl_names_the_place() {
        let e = lower("fn main( {", ENTRY, RuntimeChecks::None).unwrap_err();
        assert!(e.to_string().contains("wgsl:1:10"), "{e}");
    }
}
