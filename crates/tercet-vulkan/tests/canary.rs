//! Checks that the validation layer works: it must report a program with a missing barrier.

mod common;

use common::{affine, ints, run};
use tercet_ir::Dim;
use tercet_vulkan::{VulkanBackend, VulkanOpenError, VulkanOptions};

#[test]
fn a_missing_barrier_is_reported() {
    let options = VulkanOptions {
        validation: true,
        ..VulkanOptions::default()
    };
    let backend = match VulkanBackend::new(options) {
        Ok(backend) => backend,
        Err(e @ VulkanOpenError::NoValidation) => {
            let required = std::env::var("TERCET_VALIDATION").is_ok_and(|v| v == "1");
            assert!(!required, "TERCET_VALIDATION is 1: {e}");
            return eprintln!("ignored: {e}");
        }
        Err(_) => {
            common::open(VulkanOptions::default());
            return;
        }
    };
    let whole = affine(&backend, Dim::Known(1000), 1000);
    run(&mut whole.load(&backend), &ints(0..1000));
    assert_eq!(backend.messages(), Vec::<String>::new());

    let mut broken = affine(&backend, Dim::Known(1000), 1000);
    assert!(broken.program.steps[1].barrier);
    broken.program.steps[1].barrier = false;
    drop(broken.load(&backend));
    let messages = backend.messages();
    // Some layers spell the hazard with dashes, others with underscores.
    let hazard = |m: &String| m.replace('-', "_").contains("READ_AFTER_WRITE");
    let hazard = messages.iter().any(hazard);
    assert!(hazard, "{messages:?}");
}
