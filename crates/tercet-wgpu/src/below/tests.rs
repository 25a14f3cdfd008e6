use std::cell::Cell;

use super::*;

thread_local! {
    /// Pipelines for which this thread required a size.
    pub(super) static SEEN: Cell<usize> = const { Cell::new(0) };
}

/// Sizes as drivers of several vendors give them.
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

fn required(size: u32) -> Option<Subgroup> {
    let by = SizeBy::Requirement;
    Some(Subgroup { size, by })
}

#[test]
fn the_size_is_what_the_driver_names_if_workgroups_are_made_of_enough() {
    let by = SizeBy::Nature;
    let only = Some(Subgroup { size: 32, by });
    assert_eq!(sizes(32, 32, 32, 32).choose(1024), only);
    // Nothing is required where there is no choice.
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

#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
#[test]
fn a_device_opened_below_makes_pipelines_of_the_required_size() {
    const TEXT: &str = "
        @group(0) @binding(0) var<storage, read_write> y: array<u32>;
        @compute @workgroup_size(64)
        fn main(@builtin(local_invocation_index) i: u32, @builtin(subgroup_size) size: u32) {
            y[i] = size + subgroupAdd(1u);
        }";
    let options = crate::WgpuOptions::new();
    let adapters = crate::device::block_on(crate::open::adapters(&crate::open::instance(&options)));
    let found = adapters.iter().find_map(|adapter| {
        let chosen = Below::of(adapter).subgroups?.choose(64)?;
        Below::of(adapter)
            .subgroups?
            .can_require
            .then_some((adapter, chosen))
    });
    let Some((adapter, chosen)) = found else {
        return; // No driver here, as `tests/device.rs` says.
    };
    let descriptor = wgpu::DeviceDescriptor {
        required_features: wgpu::Features::SUBGROUP | wgpu::Features::PASSTHROUGH_SHADERS,
        ..Default::default()
    };
    let (device, queue) = open(adapter, &descriptor).expect("the device opens as wgpu opens it");
    let words = tercet_spirv::lower(TEXT, "main", tercet_spirv::Checks::None).expect("valid WGSL");
    let module = crate::trusted::spirv_module(&device, None, &words);
    let entries = [crate::pipeline::entry(
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
    let make = || {
        device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: None,
            layout: Some(&layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: Default::default(),
            cache: None,
        })
    };
    let before = SEEN.get();
    make();
    assert_eq!(SEEN.get(), before, "nothing is required");
    let full = Below::of(adapter).subgroups.is_some_and(|s| s.full);
    let size = chosen.size;
    let pipeline = requiring(Some(Requirement { size, full }), make);
    assert_eq!(SEEN.get(), before + 1);
    make();
    assert_eq!(SEEN.get(), before + 1, "nothing is required any more");
    let got = run(&device, &queue, &pipeline, &group);
    assert_eq!(got, [2 * size; 64]);
}

#[test]
fn shuffles_reach_neighbours() {
    let Ok(backend) = crate::WgpuBackend::new(&crate::WgpuOptions::new()) else {
        return; // No driver here, as `tests/device.rs` says.
    };
    let natives = crate::device::block_on(backend.natives()).expect("the trial runs");
    assert!(natives.shuffles, "{:?}", backend.caps());
}

/// What one workgroup writes.
#[cfg(any(target_os = "linux", target_os = "windows", target_os = "android"))]
fn run(
    device: &wgpu::Device,
    queue: &wgpu::Queue,
    pipeline: &wgpu::ComputePipeline,
    layout: &wgpu::BindGroupLayout,
) -> Vec<u32> {
    use wgpu::BufferUsages as Usage;
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
        layout,
        entries: &entries,
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    let mut pass = encoder.begin_compute_pass(&Default::default());
    pass.set_pipeline(pipeline);
    pass.set_bind_group(0, &group, &[]);
    pass.dispatch_workgroups(1, 1, 1);
    drop(pass);
    encoder.copy_buffer_to_buffer(&y, 0, &read, 0, 256);
    queue.submit([encoder.finish()]);
    read.map_async(wgpu::MapMode::Read, .., |done| done.expect("it is mapped"));
    let all = wgpu::PollType::Wait {
        submission_index: None,
        timeout: None,
    };
    device.poll(all).expect("the device works");
    let bytes = read.get_mapped_range(..).expect("it is mapped");
    let words = bytes.chunks_exact(4);
    words
        .map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]))
        .collect()
}
