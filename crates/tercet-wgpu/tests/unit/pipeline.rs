//! The pipeline cache, and the text that browsers get.

use std::collections::HashSet;

use tercet_plan::KernelCode;
use tercet_wgpu::internals::{
    PipelineVariant, ShaderChecks, UNIFORM, WgpuKernelCode, WgpuPipelineKey,
};

#[test]
fn one_module_has_a_pipeline_for_each_way_its_buffers_are_bound() {
    let variant = |writable| PipelineVariant {
        name: "product".to_string(),
        code: WgpuKernelCode::SpirV([1, 2, 3].into()),
        block_bytes: 16,
        storage: vec![(1, writable), (2, true)],
    };
    let key = |writable| WgpuPipelineKey::new(&variant(writable), ShaderChecks::None);
    assert_ne!(key(false), key(true));
    assert_eq!(key(true), key(true));
}

/// The replaced text must match the text in the kernels, otherwise a browser would reject the
/// kernels.
#[test]
fn kernels_say_what_is_uniform_as_browsers_replace_it() {
    let fragments = tercet_plan::kernels().flat_map(|kernel| match kernel.code {
        KernelCode::Wgsl(fragments) => fragments,
        KernelCode::SpirV(_) => &[],
    });
    let texts: HashSet<&str> = fragments
        .copied()
        .filter(|text| text.contains("fn uniform_word"))
        .collect();
    assert!(texts.len() >= 2, "{} fragments", texts.len());
    for text in texts {
        assert_eq!(text.matches("fn uniform_word").count(), 1);
        assert!(text.contains(UNIFORM));
    }
}
