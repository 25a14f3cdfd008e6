//! Kernels on cooperative matrices in WGSL: naga accepts them.

use std::collections::BTreeMap;
use std::sync::Arc;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use tercet_plan::{DeviceCaps, GpuProgram, KernelSource};

use crate::common::for_each_case;
use crate::planning::coded_product;

const EXTENSION: &str = "enable wgpu_cooperative_matrix;";

/// The kernels with cooperative matrices of all cases on a device, by name without constants.
fn kernels_with_matrices(caps: &DeviceCaps) -> BTreeMap<String, Vec<Arc<str>>> {
    let mut found: BTreeMap<String, Vec<Arc<str>>> = BTreeMap::new();
    let mut add = |program: GpuProgram| {
        for kernel in &program.kernels {
            let KernelSource::Wgsl(text) = &kernel.source else {
                continue;
            };
            if text.contains(EXTENSION) {
                let name = kernel.name.split(' ').next().unwrap_or_default();
                let texts = found.entry(name.to_string()).or_default();
                if !texts.contains(text) {
                    texts.push(text.clone());
                }
            }
        }
    };
    add(coded_product(caps));
    for_each_case(caps, |p| {
        if let Ok(program) = p.program {
            add(program);
        }
    });
    found
}

/// Runs naga's validator, which also checks that all threads of a workgroup reach each use of a
/// matrix.
fn validate(text: &str) {
    let module = naga::front::wgsl::parse_str(text);
    let module = module.unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let capabilities = Capabilities::COOPERATIVE_MATRIX
        | Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    let info = Validator::new(ValidationFlags::all(), capabilities).validate(&module);
    info.unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
}

#[test]
fn kernels_with_small_fragments_are_valid() {
    let found = kernels_with_matrices(&DeviceCaps::apple());
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "gemm_coop_wgsl_half_8",
            "gemm_coop_wgsl_half_8_activated",
            "gemm_coop_wgsl_half_8_coded",
            "gemm_coop_wgsl_half_8_packed",
            "gemm_coop_wgsl_wide_8",
            "gemm_coop_wgsl_wide_8_activated",
            "gemm_coop_wgsl_wide_8_coded",
            "gemm_coop_wgsl_wide_8_mixed",
            "gemm_coop_wgsl_wide_8_packed",
        ]
    );
    for text in found.values().flatten() {
        validate(text);
    }
}

#[test]
fn kernels_with_large_fragments_are_valid() {
    let found = kernels_with_matrices(&DeviceCaps::h200_without_passthrough());
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "gemm_coop_wgsl_half_16",
            "gemm_coop_wgsl_half_16_activated",
            "gemm_coop_wgsl_half_16_coded",
            "gemm_coop_wgsl_half_16_packed",
        ]
    );
    for text in found.values().flatten() {
        validate(text);
    }
}
