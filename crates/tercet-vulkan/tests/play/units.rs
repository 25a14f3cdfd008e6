//! Private parts of the crate that need no device.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use tercet_plan::KernelSource;
use tercet_spirv::ModuleCache;
use tercet_vulkan::internals::{VulkanError, differing, select_device, spirv_words};
use tercet_vulkan::{VulkanDeviceInfo, VulkanDeviceKind};

#[test]
fn words_that_changed_are_found_and_joined() {
    let old = [0u8; 400];
    let mut new = old;
    assert!(differing(&old, &new).is_empty());
    for at in [5, 8, 100, 399] {
        new[at] = 1;
    }
    assert_eq!(differing(&old, &new), [4..12, 100..104, 396..400]);
    new[60] = 1;
    assert_eq!(differing(&old, &new), [4..104, 396..400]);
}

#[test]
fn an_error_in_wgsl_names_kernel_and_place() {
    let source = KernelSource::Wgsl("fn main( {".into());
    let error = spirv_words(&ModuleCache::default(), "sum n=4", &source, false).unwrap_err();
    let VulkanError::Failed { reason } = error else {
        panic!("{error:?}");
    };
    assert!(reason.starts_with("kernel sum n=4: "), "{reason}");
}

fn device(index: usize, name: &str, kind: VulkanDeviceKind, api: [u32; 3]) -> VulkanDeviceInfo {
    VulkanDeviceInfo {
        index,
        name: name.to_string(),
        kind,
        driver: String::new(),
        api,
        memory_bytes: 0,
    }
}

#[test]
fn the_best_device_is_chosen_and_a_named_one_is_found() {
    let list = [
        device(0, "llvmpipe", VulkanDeviceKind::Cpu, [1, 3, 0]),
        device(1, "Old GPU", VulkanDeviceKind::Discrete, [1, 1, 0]),
        device(2, "Arc", VulkanDeviceKind::Integrated, [1, 3, 0]),
        device(3, "GPU 9000", VulkanDeviceKind::Discrete, [1, 4, 0]),
    ];
    assert_eq!(select_device(&list, None).unwrap(), 3);
    assert_eq!(select_device(&list[..2], None).unwrap(), 0);
    assert_eq!(select_device(&list, Some("2")).unwrap(), 2);
    assert_eq!(select_device(&list, Some("LLVM")).unwrap(), 0);
    let old = select_device(&list, Some("old")).unwrap_err().to_string();
    assert_eq!(
        old,
        "Old GPU has Vulkan 1.1, at least 1.2 is required; update the driver"
    );
    let none = select_device(&list, Some("radeon"))
        .unwrap_err()
        .to_string();
    assert!(none.contains("no Vulkan device matches `radeon`; available: 0: llvmpipe"));
    assert!(select_device(&list, Some("4")).is_err());
}
