//! The layer fails what MoltenVK does not permit. The tests of `child` run in a process with the
//! layer, which the other tests start.
#![allow(unsafe_code, reason = "calls of the Vulkan API")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::process::Command;

use ash::{Device, Entry, Instance, ext, khr, vk};
use tercet_vulkan_layer::{InstalledLayer, VIOLATION, own_program};

/// Runs a test of `child` with the layer. The driver is the software device of this machine.
fn with_layer(test: &str) -> Option<Vec<String>> {
    // SAFETY: the loader supports dynamic loading.
    if unsafe { Entry::load() }.is_err() {
        eprintln!("ignored: no Vulkan loader");
        return None;
    }
    let folder = std::env::temp_dir().join(format!("vulkan-layer-{test}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let layer = InstalledLayer::new(&folder).unwrap();
    let program = own_program().unwrap();
    let mut command = Command::new(&program[0]);
    command.args(&program[1..]);
    command.args(["--ignored", "--exact", &format!("child::{test}")]);
    let output = command.envs(layer.variables("portability")).output();
    let output = output.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let passed = output.status.success() && text.contains("1 passed");
    let log = layer.take_log().unwrap();
    std::fs::remove_dir_all(PathBuf::from(&folder)).unwrap();
    assert!(passed, "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(log)
}

/// Asserts that the log has these violations, in this order.
#[track_caller]
fn check(test: &str, parts: &[&str]) {
    let Some(log) = with_layer(test) else {
        return;
    };
    let found: Vec<&String> = log.iter().filter(|l| l.starts_with(VIOLATION)).collect();
    assert_eq!(found.len(), parts.len(), "{found:?}");
    for (line, part) in found.iter().zip(parts) {
        assert!(line.contains(part), "{line}");
    }
}

#[test]
fn an_instance_that_does_not_enumerate_is_refused() {
    check("plain_instance", &[]);
}

#[test]
fn a_device_with_what_moltenvk_lacks_is_refused() {
    check(
        "refused_devices",
        &["without VK_KHR_portability_subset", "lacks feature"],
    );
}

#[test]
fn shaders_and_buffers_beyond_the_limits_are_refused() {
    check(
        "refused_objects",
        &[
            "a shader declares capability 10",
            "a pipeline has 31 buffers, at most 30",
            "a workgroup has 2048 invocations, at most",
        ],
    );
}

mod child {
    use super::*;

    fn entry() -> Entry {
        // SAFETY: as in `with_layer`.
        unsafe { Entry::load() }.unwrap()
    }

    fn instance(entry: &Entry, enumerates: bool) -> Result<Instance, vk::Result> {
        let app = vk::ApplicationInfo::default().api_version(vk::API_VERSION_1_2);
        let names = [khr::portability_enumeration::NAME.as_ptr()];
        let mut info = vk::InstanceCreateInfo::default().application_info(&app);
        if enumerates {
            info = info
                .enabled_extension_names(&names)
                .flags(vk::InstanceCreateFlags::ENUMERATE_PORTABILITY_KHR);
        }
        // SAFETY: a valid create info.
        unsafe { entry.create_instance(&info, None) }
    }

    fn device(
        instance: &Instance,
        extensions: &[&std::ffi::CStr],
        features: &vk::PhysicalDeviceFeatures,
    ) -> Result<Device, vk::Result> {
        let names: Vec<_> = extensions.iter().map(|name| name.as_ptr()).collect();
        let queues = [vk::DeviceQueueCreateInfo::default().queue_priorities(&[1.0])];
        let mut features = vk::PhysicalDeviceFeatures2::default().features(*features);
        let info = vk::DeviceCreateInfo::default()
            .queue_create_infos(&queues)
            .enabled_extension_names(&names)
            .push_next(&mut features);
        // SAFETY: a valid create info for the first device, whose first queue family computes.
        unsafe {
            let physical = instance.enumerate_physical_devices().unwrap()[0];
            instance.create_device(physical, &info, None)
        }
    }

    #[test]
    #[ignore = "run with the layer by `an_instance_that_does_not_enumerate_is_refused`"]
    fn plain_instance() {
        let e = instance(&entry(), false).err();
        assert_eq!(e, Some(vk::Result::ERROR_INCOMPATIBLE_DRIVER));
    }

    #[test]
    #[ignore = "run with the layer by `a_device_with_what_moltenvk_lacks_is_refused`"]
    fn refused_devices() {
        let entry = entry();
        let instance = instance(&entry, true).unwrap();
        let subset = khr::portability_subset::NAME;
        let none = vk::PhysicalDeviceFeatures::default();
        assert!(device(&instance, &[], &none).is_err());
        // The software device has it, and MoltenVK does not.
        let hidden = ext::external_memory_dma_buf::NAME;
        // The loader asks the layer for the extensions before it passes the call on.
        let e = device(&instance, &[subset, hidden], &none).err();
        assert_eq!(e, Some(vk::Result::ERROR_EXTENSION_NOT_PRESENT));
        let f64s = none.shader_float64(true);
        assert!(device(&instance, &[subset], &f64s).is_err());
        let made = device(&instance, &[subset], &none).unwrap();
        // SAFETY: nothing uses them.
        unsafe {
            made.destroy_device(None);
            instance.destroy_instance(None);
        }
    }

    /// A module with a capability and a workgroup size, whose `main` returns at once.
    fn module(capability: u32, size: [u32; 3]) -> Vec<u32> {
        let [x, y, z] = size;
        let instructions: [&[u32]; 11] = [
            &[17, 1],
            &[17, capability],
            &[14, 0, 1],
            &[15, 5, 1, u32::from_le_bytes(*b"main"), 0],
            &[16, 1, 17, x, y, z],
            &[19, 2],
            &[33, 3, 2],
            &[54, 2, 1, 0, 3],
            &[248, 4],
            &[253],
            &[56],
        ];
        let mut words = vec![0x0723_0203, 0x0001_0300, 0, 5, 0];
        for i in instructions {
            words.push((i.len() as u32) << 16 | i[0]);
            words.extend(&i[1..]);
        }
        words
    }

    #[test]
    #[ignore = "run with the layer by `shaders_and_buffers_beyond_the_limits_are_refused`"]
    fn refused_objects() {
        let entry = entry();
        let instance = instance(&entry, true).unwrap();
        let subset = khr::portability_subset::NAME;
        let none = vk::PhysicalDeviceFeatures::default();
        let device = device(&instance, &[subset], &none).unwrap();
        // SAFETY: valid create infos, whose objects are destroyed after their use.
        unsafe {
            let shader = |words: &[u32]| {
                let info = vk::ShaderModuleCreateInfo::default().code(words);
                device.create_shader_module(&info, None)
            };
            assert!(shader(&module(10, [1; 3])).is_err());
            let layout = |count| {
                let binding = |i| {
                    vk::DescriptorSetLayoutBinding::default()
                        .binding(i)
                        .descriptor_type(vk::DescriptorType::STORAGE_BUFFER)
                        .descriptor_count(1)
                        .stage_flags(vk::ShaderStageFlags::COMPUTE)
                };
                let bindings: Vec<_> = (0..count).map(binding).collect();
                let info = vk::DescriptorSetLayoutCreateInfo::default().bindings(&bindings);
                device.create_descriptor_set_layout(&info, None)
            };
            device.destroy_descriptor_set_layout(layout(30).unwrap(), None);
            assert!(layout(31).is_err());
            let info = vk::PipelineLayoutCreateInfo::default();
            let empty = device.create_pipeline_layout(&info, None).unwrap();
            for (size, is_right) in [([64, 4, 1], true), ([64, 32, 1], false)] {
                let module = shader(&module(1, size)).unwrap();
                let stage = vk::PipelineShaderStageCreateInfo::default()
                    .stage(vk::ShaderStageFlags::COMPUTE)
                    .module(module)
                    .name(c"main");
                let info = vk::ComputePipelineCreateInfo::default()
                    .stage(stage)
                    .layout(empty);
                let cache = vk::PipelineCache::null();
                let made = device.create_compute_pipelines(cache, &[info], None);
                assert_eq!(made.is_ok(), is_right, "{size:?}");
                for pipeline in made.unwrap_or_default() {
                    device.destroy_pipeline(pipeline, None);
                }
                device.destroy_shader_module(module, None);
            }
            device.destroy_pipeline_layout(empty, None);
            device.destroy_device(None);
            instance.destroy_instance(None);
        }
    }
}
