//! Errors of opening a device.

use tercet_wgpu::{AdapterSummary, WgpuOpenError};

#[test]
fn a_missing_adapter_is_named_with_those_there_are() {
    let e = WgpuOpenError::NoAdapter {
        wanted: Some("titan".to_string()),
        found: vec![AdapterSummary {
            name: "llvmpipe".to_string(),
            kind: "cpu",
            api: "vulkan".to_string(),
            driver: String::new(),
        }],
    };
    let text = "no adapter `titan`; available: llvmpipe (cpu), vulkan";
    assert_eq!(e.to_string(), text);
}
