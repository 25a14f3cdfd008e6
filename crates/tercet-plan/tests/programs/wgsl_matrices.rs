//! Kernels on cooperative matrices in WGSL: naga accepts them, and models use them.

use std::collections::BTreeMap;
use std::sync::Arc;

use naga::Module;
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use tercet_ir::ops::{AttentionLayout, AttentionOptions};
use tercet_ir::{CompileOptions, DType, Dim, Graph, Scheme, Type};
use tercet_plan::{DeviceCaps, GpuProgram, KernelSource, StepOp, compile};

use crate::common::{for_each_case, played};
use crate::planning::coded_product;

const EXTENSION: &str = "enable wgpu_cooperative_matrix;";

/// The kernels with cooperative matrices of all cases on a device, by name without constants.
pub(crate) fn kernels_with_matrices(caps: &DeviceCaps) -> BTreeMap<String, Vec<Arc<str>>> {
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

/// The capabilities that the kernels need.
pub(crate) const CAPABILITIES: Capabilities = Capabilities::COOPERATIVE_MATRIX
    .union(Capabilities::SHADER_FLOAT16)
    .union(Capabilities::SHADER_FLOAT16_IN_FLOAT32);

/// Runs naga's validator, which also checks that all threads of a workgroup reach each use of a
/// matrix.
pub(crate) fn validate(text: &str) -> (Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(text);
    let module = module.unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    let info = Validator::new(ValidationFlags::all(), CAPABILITIES).validate(&module);
    let info = info.unwrap_or_else(|e| panic!("{}", e.emit_to_string(text)));
    (module, info)
}

#[test]
fn kernels_with_small_fragments_are_valid() {
    let found = kernels_with_matrices(&DeviceCaps::apple());
    let names: Vec<&str> = found.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "attention_coop_wgsl_half_8",
            "attention_coop_wgsl_wide_8",
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
            "attention_coop_wgsl_half_16",
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

/// Products of the rows `x [s, 2048]` with packed weights of a layer: queries, keys, values and the
/// gate in Q4_K, and a product in Q6_K. There are at most 1024 rows, which are rounded to `rounded`.
#[allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]
fn prompt_of_a_layer(caps: &DeviceCaps, rounded: Option<DType>) -> GpuProgram {
    let mut g = Graph::new();
    let x = Type::new(DType::F32, [Dim::sym("s"), Dim::Known(2048)]);
    let x = g.input("x", x).unwrap();
    for (name, scheme, n) in [
        ("q", Scheme::Q4K, 2048),
        ("k", Scheme::Q4K, 256),
        ("v", Scheme::Q4K, 256),
        ("gate", Scheme::Q4K, 5632),
        ("value", Scheme::Q6K, 256),
    ] {
        let bytes = scheme.row_bytes(2048).unwrap();
        let w = g.param(name, Type::new(DType::U8, [n, bytes])).unwrap();
        let y = g.dequant_matmul(x, w, scheme).unwrap();
        g.output(&format!("{name}_rows"), y).unwrap();
    }
    let options = CompileOptions::new()
        .bound("s", 1024)
        .with_matmul_precision(rounded);
    compile(&g, &options, caps).unwrap()
}

#[test]
fn prompts_of_packed_weights_run_on_matrices_in_wgsl() {
    let count = |names: &[String], part: &str| names.iter().filter(|n| n.contains(part)).count();
    for (caps, rounded, kernel) in [
        (
            DeviceCaps::h200_without_passthrough(),
            Some(DType::F16),
            "gemm_coop_wgsl_half_16",
        ),
        (
            DeviceCaps::apple(),
            Some(DType::F16),
            "gemm_coop_wgsl_half_8",
        ),
        (DeviceCaps::apple(), None, "gemm_coop_wgsl_wide_8"),
    ] {
        // The four products in Q4_K are one.
        let names = played(&prompt_of_a_layer(&caps, rounded), 512);
        assert_eq!(count(&names, kernel), 2, "{names:#?}");
        assert_eq!(count(&names, "gemm_"), 2, "{names:#?}");
    }
    // Without rounding, F32 rows need fragments of F32.
    let exact = played(
        &prompt_of_a_layer(&DeviceCaps::h200_without_passthrough(), None),
        512,
    );
    assert_eq!(count(&exact, "gemm_coop_wgsl"), 0, "{exact:#?}");
}

/// Attention whose queries, keys and values are columns of one product.
#[allow(clippy::unwrap_used, reason = "a test's helpers fail the test")]
fn heads_of_one_product(caps: &DeviceCaps, dtype: DType) -> GpuProgram {
    const WIDTH: usize = 512;
    let mut g = Graph::new();
    let x = g.input("x", Type::new(dtype, [2, 256, WIDTH])).unwrap();
    let w = g.param("w", Type::new(dtype, [WIDTH, 3 * WIDTH])).unwrap();
    let all = g.linear(x, w, None, None).unwrap();
    let [q, k, v] = [0, WIDTH, 2 * WIDTH].map(|first| {
        let own = g.narrow(all, 2, first, WIDTH).unwrap();
        g.reshape(own, [2, 256, WIDTH / 64, 64]).unwrap()
    });
    let options = AttentionOptions::new(WIDTH / 64, WIDTH / 64, AttentionLayout::Bshd);
    let y = g.attention(q, k, v, options.causal()).unwrap();
    g.output("y", y).unwrap();
    compile(&g, &CompileOptions::new(), caps).unwrap()
}

#[test]
fn queries_keys_and_values_of_one_product_need_no_copy() {
    let names = |program: &GpuProgram| -> Vec<String> {
        let kernels = program.steps.iter().filter_map(|step| match &step.work {
            StepOp::Dispatch(d) => Some(&program.kernels[d.kernel.0 as usize].name),
            StepOp::Copy { .. } | StepOp::Fill { .. } => None,
        });
        let first = |name: &String| name.split(' ').next().unwrap_or_default().to_string();
        kernels.map(first).collect()
    };
    for (caps, dtype, fragments) in [
        (
            DeviceCaps::h200_without_passthrough(),
            DType::F16,
            "half_16",
        ),
        (DeviceCaps::apple(), DType::F16, "half_8"),
        (DeviceCaps::apple(), DType::F32, "wide_8"),
    ] {
        let wanted = [
            format!("gemm_coop_wgsl_{fragments}"),
            format!("attention_coop_wgsl_{fragments}"),
        ];
        assert_eq!(names(&heads_of_one_product(&caps, dtype)), wanted);
    }
}
