//! Devices opened through wgpu-hal, and their subgroup sizes.

use tercet_wgpu::internals::{SizeBy, SubgroupSize, SubgroupSizes, block_on};
use tercet_wgpu::{WgpuBackend, WgpuOptions};

/// Subgroup sizes as drivers of several vendors report them.
fn sizes(min: u32, max: u32, usual: u32, max_required: u32) -> SubgroupSizes {
    SubgroupSizes {
        min,
        max,
        usual,
        can_require: true,
        max_required,
        full: true,
    }
}

fn required(size: u32) -> Option<SubgroupSize> {
    let by = SizeBy::Requirement;
    Some(SubgroupSize { size, by })
}

#[test]
fn the_size_is_what_the_driver_names_if_workgroups_are_made_of_enough() {
    let by = SizeBy::Fixed;
    let only = Some(SubgroupSize { size: 32, by });
    assert_eq!(sizes(32, 32, 32, 32).choose(1024), only);
    // If a device has only one subgroup size, pipelines need not require it.
    let fixed = SubgroupSizes {
        can_require: false,
        ..sizes(32, 32, 32, 0)
    };
    assert_eq!(fixed.choose(1024), only);
    assert_eq!(sizes(32, 64, 64, 32).choose(1024), required(64));
    assert_eq!(sizes(32, 64, 32, 32).choose(1024), required(32));
    assert_eq!(sizes(8, 32, 32, 64).choose(1024), required(32));
    assert_eq!(sizes(8, 32, 8, 64).choose(1024), required(16));
    assert_eq!(sizes(8, 32, 8, 64).choose(512), required(8));
    assert_eq!(sizes(8, 32, 8, 16).choose(1024), None);
    let fixed_by_nobody = SubgroupSizes {
        can_require: false,
        ..sizes(8, 32, 32, 64)
    };
    assert_eq!(fixed_by_nobody.choose(256), None);
}

/// Devices opened through wgpu-hal, with a kernel that reports its subgroup size.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
mod opened {
    use tercet_wgpu::WgpuOptions;
    use tercet_wgpu::internals::{
        DRIVER_BARRIERS, HalDevice, HalProperties, PipelineOptions, SIZED_PIPELINES,
        SubgroupRequirement, adapters, block_on, entry, grouped, instance, open, spirv_module,
        with_pipeline_options,
    };

    const TEXT: &str = "
        @group(0) @binding(0) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(64)
        fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_size) size: u32) {
            y[i] = size + subgroupAdd(1u);
        }";

    /// A test device and the inputs of its pipelines.
    struct HalTestDevice {
        below: HalProperties,
        opened: HalDevice,
        module: wgpu::ShaderModule,
        group: wgpu::BindGroupLayout,
        layout: wgpu::PipelineLayout,
    }

    impl HalTestDevice {
        /// Opens the first matching adapter. Without a driver it returns `None`, or fails by the
        /// rules of `tests/device.rs`.
        fn find(fits: impl Fn(&HalProperties) -> bool) -> Option<HalTestDevice> {
            let options = WgpuOptions::new();
            let instance = instance(&options);
            let adapters = block_on(adapters(&instance));
            let adapter = adapters
                .iter()
                .find(|a| fits(&HalProperties::from_adapter(a)))?;
            let descriptor = wgpu::DeviceDescriptor {
                required_features: wgpu::Features::SUBGROUP | wgpu::Features::PASSTHROUGH_SHADERS,
                ..Default::default()
            };
            let opened = open(adapter, &descriptor).expect("the device opens as wgpu opens it");
            let device = &opened.device;
            let words = tercet_spirv::lower(TEXT, "main", tercet_spirv::RuntimeChecks::None)
                .expect("valid WGSL");
            let module = spirv_module(device, None, &words);
            let entries = [entry(
                0,
                wgpu::BufferBindingType::Storage { read_only: false },
                None,
            )];
            let group = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
                label: None,
                entries: &entries,
            });
            let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&group)],
                immediate_size: 0,
            });
            Some(HalTestDevice {
                below: HalProperties::from_adapter(adapter),
                module,
                group,
                layout,
                opened,
            })
        }

        fn make(&self) -> wgpu::ComputePipeline {
            let descriptor = wgpu::ComputePipelineDescriptor {
                label: None,
                layout: Some(&self.layout),
                module: &self.module,
                entry_point: Some("main"),
                compilation_options: Default::default(),
                cache: None,
            };
            self.opened.device.create_compute_pipeline(&descriptor)
        }

        /// Runs `waits.len()` dispatches of one workgroup each. Returns the output of the last
        /// dispatch and the number of barriers that the driver received; `waits` as in [`grouped`].
        fn run(
            &self,
            pipeline: &wgpu::ComputePipeline,
            times: usize,
            waits: Option<Vec<bool>>,
        ) -> (Vec<u32>, usize) {
            use wgpu::BufferUsages as Usage;
            let HalDevice { device, queue, .. } = &self.opened;
            let buffer = |usage| {
                device.create_buffer(&wgpu::BufferDescriptor {
                    label: None,
                    size: 256,
                    usage,
                    mapped_at_creation: false,
                })
            };
            let y = buffer(Usage::STORAGE | Usage::COPY_SRC);
            let read = buffer(Usage::MAP_READ | Usage::COPY_DST);
            let entries = [wgpu::BindGroupEntry {
                binding: 0,
                resource: y.as_entire_binding(),
            }];
            let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &self.group,
                entries: &entries,
            });
            let mut encoder = device.create_command_encoder(&Default::default());
            let mut pass = encoder.begin_compute_pass(&Default::default());
            pass.set_pipeline(pipeline);
            pass.set_bind_group(0, &group, &[]);
            for _ in 0..times {
                pass.dispatch_workgroups(1, 1, 1);
            }
            drop(pass);
            let before = DRIVER_BARRIERS.get();
            let commands = match waits {
                Some(waits) => grouped(waits, || encoder.finish()),
                None => encoder.finish(),
            };
            let barriers = DRIVER_BARRIERS.get() - before;
            let mut encoder = device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&y, 0, &read, 0, 256);
            queue.submit([commands, encoder.finish()]);
            read.map_async(wgpu::MapMode::Read, .., |done| done.expect("it is mapped"));
            let all = wgpu::PollType::Wait {
                submission_index: None,
                timeout: None,
            };
            device.poll(all).expect("the device works");
            let bytes = read.get_mapped_range(..).expect("it is mapped");
            let words = bytes.chunks_exact(4);
            let words = words.map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
            (words.collect(), barriers)
        }
    }

    #[test]
    fn pipelines_have_the_required_size() {
        let chosen = |b: &HalProperties| b.subgroups.filter(|s| s.can_require)?.choose(64);
        let Some(place) = HalTestDevice::find(|b| chosen(b).is_some()) else {
            return;
        };
        let size = chosen(&place.below).map_or(0, |s| s.size);
        let before = SIZED_PIPELINES.get();
        place.make();
        assert_eq!(SIZED_PIPELINES.get(), before, "nothing is required");
        let full = place.below.subgroups.is_some_and(|s| s.full);
        let wanted = PipelineOptions {
            subgroup: Some(SubgroupRequirement { size, full }),
            unchecked: true,
        };
        let pipeline = with_pipeline_options(wanted, || place.make());
        assert_eq!(SIZED_PIPELINES.get(), before + 1);
        place.make();
        assert_eq!(
            SIZED_PIPELINES.get(),
            before + 1,
            "the requirement is reset"
        );
        assert_eq!(place.run(&pipeline, 1, None).0, [2 * size; 64]);
    }

    #[test]
    fn barriers_stand_where_they_are_said() {
        let Some(place) = HalTestDevice::find(|b| b.subgroups.is_some()) else {
            return;
        };
        if !place.opened.groups {
            return; // The hooks belong to another driver.
        }
        let pipeline = place.make();
        let (wanted, own) = place.run(&pipeline, 4, None);
        assert_eq!(
            own, 3,
            "wgpu inserts a barrier between any two dispatches that write the same buffer"
        );
        let waits = |flags: [bool; 4]| place.run(&pipeline, 4, Some(flags.to_vec()));
        // There is one more barrier after the last dispatch and none before the first.
        assert_eq!(waits([true, false, false, false]), (wanted.clone(), 1));
        assert_eq!(waits([true, false, true, false]), (wanted.clone(), 2));
        assert_eq!(waits([false, true, true, true]), (wanted.clone(), 4));
        let none = place.run(&pipeline, 0, Some(Vec::new()));
        assert_eq!(none, (vec![0; 64], 0));
        assert_eq!(place.run(&pipeline, 4, None), (wanted, own));
    }

    #[test]
    #[should_panic(expected = "invariant: wgpu encodes at most 1 dispatches")]
    fn dispatches_that_nobody_counted_are_a_bug() {
        let Some(place) =
            HalTestDevice::find(|b| b.subgroups.is_some()).filter(|p| p.opened.groups)
        else {
            panic!("invariant: wgpu encodes at most 1 dispatches: there is no driver here to try");
        };
        place.run(&place.make(), 2, Some(vec![true]));
    }
}

#[test]
fn shuffles_reach_neighbours() {
    let Ok(backend) = WgpuBackend::new(&WgpuOptions::new()) else {
        return; // No driver; see `tests/device.rs`.
    };
    let natives = block_on(backend.probe_native_ops()).expect("the trial runs");
    assert!(natives.shuffles, "{:?}", backend.caps());
}
