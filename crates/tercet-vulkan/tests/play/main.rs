//! Tests of hand-made programs: each type of step and buffer, and each call of the driver. Tests of
//! private parts are in `units`.

#[path = "../common/mod.rs"]
mod common;
mod units;

use common::{Builder, affine, assert_silent, backend, ints, kernel, open_validated, run};
use tercet_ir::backend::OutputSelection;
use tercet_ir::{Dim, Executable, Tensor};
use tercet_plan::{ProgramBuffer, ShapeBranch, ShapeSwitch, ShapeSwitchId};
use tercet_vulkan::VulkanOptions;

#[test]
fn two_steps_with_a_barrier() {
    let Some(backend) = backend() else { return };
    let exe = &mut affine(backend, Dim::Known(1000), 1000).load(backend);
    for round in 0..3 {
        let got = run(exe, &ints((0..1000).map(|i| i * round)));
        assert_eq!(got[0], ints((0..1000).map(|i| i * round * 3 + 1)));
    }
    assert_silent(backend);
}

#[test]
fn new_sizes_record_nothing() {
    let Some(backend) = backend() else { return };
    let mut exe = affine(backend, Dim::sym("n"), 5000).load(backend);
    let before = exe.driver().counters();
    assert_eq!(before.recorded, 2);
    let sizes = [1, 5000, 64, 65, 0, 4999, 65, 65];
    for (i, &n) in sizes.iter().enumerate() {
        let x = ints((0..n).map(|j| j + i as i32));
        assert_eq!(
            run(&mut exe, &x)[0],
            ints((0..n).map(|j| (j + i as i32) * 3 + 1))
        );
    }
    let after = exe.driver().counters();
    // The size 0 has no workgroups, so a run without the step is recorded.
    assert_eq!(after.recorded, before.recorded + 1);
    assert_eq!(after.pipelines_compiled, before.pipelines_compiled);
    assert_eq!(after.submissions, sizes.len() as u64);
    let uploaded = sizes.iter().map(|n| *n as u64 * 4).sum::<u64>();
    assert_eq!(after.upload_bytes - before.upload_bytes, uploaded);
    assert_silent(backend);
}

#[test]
fn a_run_like_the_last_records_no_reads() {
    let Some(backend) = backend() else { return };
    let mut exe = affine(backend, Dim::sym("n"), 100).load(backend);
    let x = ints(0..70);
    run(&mut exe, &x);
    let recorded = exe.driver().counters();
    for _ in 0..10 {
        run(&mut exe, &x);
    }
    let after = exe.driver().counters();
    assert_eq!(after.reads_recorded, recorded.reads_recorded);
    assert_eq!(after.submissions, recorded.submissions + 10);
    assert_silent(backend);
}

#[test]
fn a_copy_of_symbolic_length_stops_where_it_should() {
    let Some(backend) = backend() else { return };
    let mut b = Builder::new(backend, Dim::sym("n"), 700);
    let (x, y, s) = (b.input("x"), b.output("y"), b.state("s"));
    b.copy(x, s, false);
    b.map(kernel("same", "x"), x, y, false);
    // A state must have a known size; this one is larger than the copy into it.
    b.program.signature.states[0].ty = tercet_ir::Type::new(tercet_ir::DType::I32, [700]);
    b.program.states[0].ty = b.program.signature.states[0].ty.clone();
    let mut exe = b.load(backend);
    exe.write_state("s", &ints((0..700).map(|_| -7))).unwrap();
    let mut want = vec![-7; 700];
    for n in [300, 257, 1, 0, 699] {
        run(&mut exe, &ints((0..n).map(|i| i + n)));
        for i in 0..n {
            want[i as usize] = i + n;
        }
        assert_eq!(exe.read_state("s").unwrap(), ints(want.iter().copied()));
    }
    // The preparation, runs with both steps, and the run of size 0 without steps.
    assert_eq!(exe.driver().counters().recorded, 3);
    assert_silent(backend);
}

#[test]
fn known_copies_and_fills() {
    let Some(backend) = backend() else { return };
    let mut b = Builder::new(backend, Dim::Known(33), 33);
    let (x, y, z) = (b.input("x"), b.output("y"), b.output("z"));
    b.copy(x, y, false);
    b.fill(z, 42, false);
    let exe = &mut b.load(backend);
    let got = run(exe, &ints(0..33));
    assert_eq!(got, [ints(0..33), ints((0..33).map(|_| 42))]);
    assert_silent(backend);
}

#[test]
fn states_stay_are_written_read_and_reset() {
    let Some(backend) = backend() else { return };
    let mut b = Builder::new(backend, Dim::Known(5), 5);
    let (x, y, s) = (b.input("x"), b.output("y"), b.state("s"));
    let t = b.slot(ProgramBuffer::Arena);
    b.map(kernel("plus_one", "x + 1u"), s, t, false);
    b.map(kernel("same", "x"), x, y, false);
    b.copy(t, s, true);
    let exe = &mut b.load(backend);
    let x = ints(0..5);
    for i in 1..4 {
        run(exe, &x);
        assert_eq!(exe.read_state("s").unwrap(), ints([i; 5]));
    }
    exe.write_state("s", &ints([10, 20, 30, 40, 50])).unwrap();
    run(exe, &x);
    let mut clone = exe.try_clone().unwrap();
    run(exe, &x);
    assert_eq!(exe.read_state("s").unwrap(), ints([12, 22, 32, 42, 52]));
    assert_eq!(clone.read_state("s").unwrap(), ints([11, 21, 31, 41, 51]));
    exe.reset();
    assert_eq!(exe.read_state("s").unwrap(), ints([0; 5]));
    run(&mut *clone, &x);
    assert_eq!(clone.read_state("s").unwrap(), ints([12, 22, 32, 42, 52]));
    assert_silent(backend);
}

/// Outputs `y = 2 w`, where `w` is a parameter doubled in the preparation, and a constant `z`.
fn with_param(backend: &tercet_vulkan::VulkanBackend) -> Builder {
    let mut b = Builder::new(backend, Dim::Known(300), 300);
    let (_, y, w) = (b.input("x"), b.output("y"), b.param("w"));
    let (c, p) = (
        b.constant(ints((0..300).map(|i| i * 100))),
        b.slot(ProgramBuffer::Prepared),
    );
    let z = b.output("z");
    b.prepare(kernel("double", "x * 2u"), w, p);
    b.map(kernel("same", "x"), p, y, false);
    b.map(kernel("same", "x"), c, z, false);
    b
}

#[test]
fn parameters_are_shared_by_clones_until_one_is_written() {
    // Its memory is counted, so no other test may use the backend.
    let Some(backend) = open_validated(VulkanOptions::default()) else {
        return;
    };
    let backend = &backend;
    let mut exe = with_param(backend).load(backend);
    let x = ints(0..300);
    let error = exe.run_into(&[("x", &x)], &mut Vec::new()).unwrap_err();
    assert_eq!(error.to_string(), "missing param `w` of type i32[300]");
    exe.set_param("w", ints(0..300)).unwrap();
    let doubled = |k: i32| {
        [
            ints((0..300).map(|i| i * k)),
            ints((0..300).map(|i| i * 100)),
        ]
    };
    assert_eq!(run(&mut exe, &x), doubled(2));
    let bytes = backend.used_bytes();
    let mut clone = exe.try_clone().unwrap();
    let mut other = exe.try_clone().unwrap();
    assert!(backend.used_bytes() > bytes);
    clone.set_param("w", ints((0..300).map(|i| i * 5))).unwrap();
    assert_eq!(run(&mut *clone, &x), doubled(10));
    assert_eq!(run(&mut exe, &x), doubled(2));
    drop(exe);
    assert_eq!(run(&mut *other, &x), doubled(2));
    assert_eq!(run(&mut *clone, &x), doubled(10));
    assert_silent(backend);
}

#[test]
fn large_tensors_go_through_the_ring_in_chunks() {
    let Some(backend) = backend() else { return };
    // A bit more than three halves of the upload ring, so that the last chunk is odd.
    let n = (8 << 20) / 4 * 3 + 12_345;
    let mut b = Builder::new(backend, Dim::Known(n), n);
    let (s, x, y) = (b.state("s"), b.input("x"), b.output("y"));
    b.program.inputs[0].ty = tercet_ir::Type::new(tercet_ir::DType::I32, [n]);
    b.fill(y, 1, false);
    let _ = (s, x);
    let mut exe = b.load(backend);
    let values: Vec<i32> = (0..n as i32)
        .map(|i| i.wrapping_mul(2_654_435_761u32 as i32))
        .collect();
    let tensor = Tensor::from_slice(&[n], &values).unwrap();
    for _ in 0..2 {
        exe.write_state("s", &tensor).unwrap();
        assert!(exe.read_state("s").unwrap() == tensor);
    }
    assert_silent(backend);
}

#[test]
fn wanted_outputs_and_rows() {
    let Some(backend) = backend() else { return };
    let mut b = Builder::new(backend, Dim::sym("n"), 100);
    let (x, y, z) = (b.input("x"), b.output("y"), b.output("z"));
    b.map(kernel("double", "x * 2u"), x, y, false);
    b.map(kernel("plus_one", "x + 1u"), x, z, false);
    let exe: &mut dyn Executable = &mut b.load(backend);
    let x = ints(0..90);
    let got = exe.run_outputs(&[("x", &x)], &["z"]).unwrap();
    assert_eq!(got, [ints(1..91)]);
    assert_eq!(exe.read_output_rows("y", 88..90).unwrap(), ints([176, 178]));
    assert_eq!(exe.run_outputs(&[("x", &x)], &[]).unwrap(), []);
    assert_eq!(exe.read_output_rows("y", 0..1).unwrap(), ints([0]));
    let mut out = Vec::new();
    exe.submit(&[("x", &x)], OutputSelection::Only(&["z", "y"]))
        .unwrap();
    exe.wait(&mut out).unwrap();
    assert_eq!(out, [ints(1..91), ints((0..90).map(|i| i * 2))]);
    assert_silent(backend);
}

#[test]
fn steps_are_timed_on_request() {
    let options = VulkanOptions {
        timestamps: true,
        ..VulkanOptions::default()
    };
    let Some(backend) = open_validated(options) else {
        return;
    };
    let mut exe = affine(&backend, Dim::Known(100_000), 100_000).load(&backend);
    assert_eq!(exe.timings(), []);
    run(&mut exe, &ints(0..100_000));
    let times = exe.timings();
    assert_eq!(times.len(), 2);
    assert!(times.iter().map(|t| t.ns).sum::<u64>() > 0, "{times:?}");
    assert!(times[1].start_ns >= times[0].ns, "{times:?}");
    assert_silent(&backend);
}

#[test]
fn a_write_behind_a_slot_is_seen() {
    let Some(backend) = common::open(VulkanOptions::default()) else {
        return;
    };
    let mut b = Builder::new(&backend, Dim::Known(16), 16);
    let (x, y) = (b.input("x"), b.output("y"));
    let t = b.slot(ProgramBuffer::Arena);
    let mut wild = kernel("wild", "x");
    let tercet_plan::KernelSource::Wgsl(text) = &wild.source else {
        panic!()
    };
    let beyond = text.replace("let x = a[i];", "let x = a[i]; y[i + 4u] = x;");
    wild.source = tercet_plan::KernelSource::Wgsl(beyond.into());
    // Some devices drop writes outside a binding, so the binding of the faulty kernel extends into
    // the redzone.
    let wide = b.slot(ProgramBuffer::Arena);
    b.program.slots[wide.0 as usize] = tercet_plan::BufferSlot {
        bytes: 128,
        ..*b.program.slot(t)
    };
    b.map(wild, x, wide, false);
    b.map(kernel("same", "x"), t, y, true);
    for slot in [t, y] {
        let slot = *b.program.slot(slot);
        b.program.redzones.push(tercet_plan::BufferSlot {
            offset_bytes: slot.offset_bytes + slot.bytes,
            bytes: 256,
            ..slot
        });
    }
    let exe = &mut b.load(&backend);
    for times in 1..3 {
        run(exe, &ints(0..16));
        let messages = backend.messages();
        assert_eq!(messages.len(), times, "{messages:?}");
        assert!(messages[0].contains("to Arena at byte 64"), "{messages:?}");
    }
}

#[test]
fn a_device_offers_what_every_browser_does() {
    let Some(backend) = backend() else { return };
    let (caps, least) = (backend.caps(), tercet_plan::DeviceCaps::browser());
    eprintln!("{}\n{caps:#?}", backend.device());
    assert!(caps.max_binding_bytes >= least.max_binding_bytes);
    assert!(caps.max_storage_buffers >= least.max_storage_buffers);
    assert!(caps.workgroup_bytes >= least.workgroup_bytes);
    assert!(caps.max_workgroup >= least.max_workgroup);
    assert!(caps.max_grid >= least.max_grid);
    let devices = tercet_vulkan::VulkanBackend::devices().unwrap();
    assert!(devices.contains(backend.device()));
}

#[test]
fn shuffles_reach_neighbours() {
    let Some(backend) = backend() else { return };
    let caps = backend.caps();
    assert!(caps.natives.shuffles || !caps.shuffles, "{caps:?}");
}

/// `y = x + i` with branch `i` of a shape switch on `n`.
fn by_size(backend: &tercet_vulkan::VulkanBackend, bounds: &[u32]) -> Builder {
    let mut b = Builder::new(backend, Dim::sym("n"), 500);
    let (x, y) = (b.input("x"), b.output("y"));
    for i in 0..=bounds.len() {
        b.map(
            kernel(&format!("plus{i}"), &format!("x + {i}u")),
            x,
            y,
            false,
        );
    }
    choose(&mut b, bounds);
    b
}

/// Makes the steps the branches of a shape switch on `n`, one step each.
fn choose(b: &mut Builder, bounds: &[u32]) {
    let value = b.program.tape.dim(&Dim::sym("n"));
    b.program.shape_switches.push(ShapeSwitch {
        value,
        bounds: bounds.into(),
        same_bits: Default::default(),
    });
    for (step, index) in b.program.steps.iter_mut().zip(0..) {
        step.branches.push(ShapeBranch {
            choice: ShapeSwitchId(0),
            index,
        });
    }
}

#[test]
fn each_combination_of_arms_is_recorded_once() {
    let Some(backend) = backend() else { return };
    let mut exe = by_size(backend, &[10, 100]).load(backend);
    // One recorded command buffer: the preparation.
    assert_eq!(exe.driver().counters().recorded, 1);
    for (n, arm, recorded) in [
        (5, 0, 2),
        (10, 0, 2),
        (11, 1, 3),
        // The step has no workgroups, so a run without it is recorded.
        (0, 0, 4),
        (500, 2, 5),
        (1, 0, 5),
        (100, 1, 5),
        (101, 2, 5),
    ] {
        let got = run(&mut exe, &ints(0..n));
        assert_eq!(got[0], ints((0..n).map(|i| i + arm)), "{n}");
        assert_eq!(exe.driver().counters().recorded, recorded, "{n}");
    }
    assert_silent(backend);
}

#[test]
fn sizes_that_stay_are_recorded_for_themselves() {
    let Some(backend) = backend() else { return };
    let mut exe = by_size(backend, &[10]).load(backend);
    let mut recorded = |n: i32| {
        let x = ints((0..n).map(|i| i * 7));
        let arm = i32::from(n > 10);
        assert_eq!(
            run(&mut exe, &x)[0],
            ints((0..n).map(|i| i * 7 + arm)),
            "{n}"
        );
        exe.driver().counters().recorded
    };
    // The first three runs use the commands for any size. Then commands for this size are recorded
    // and used, also after runs of other sizes.
    let counts = [9; 6].map(&mut recorded);
    assert_eq!(counts, [2, 2, 2, 3, 3, 3]);
    // A new size records nothing until it repeats, even with the same branch.
    assert_eq!([3, 300, 9].map(&mut recorded), [3, 4, 4]);
    assert_eq!([9; 4].map(&mut recorded), [4; 4]);
    let by_turns = [200, 9, 200, 9, 200, 9, 200, 200];
    assert_eq!(by_turns.map(&mut recorded), [4, 4, 4, 4, 4, 4, 5, 5]);
    assert_eq!([400; 5].map(&mut recorded), [5, 5, 5, 6, 6]);
    // Without workgroups there is another selection of steps.
    assert_eq!([0; 5].map(&mut recorded), [7, 7, 7, 8, 8]);
    assert_silent(backend);
}

#[test]
fn recordings_not_used_for_longest_are_dropped() {
    let Some(backend) = backend() else { return };
    let bounds: Vec<u32> = (1..90).collect();
    let mut exe = by_size(backend, &bounds).load(backend);
    let recorded = |exe: &mut tercet_plan::GpuExecutable<tercet_vulkan::VulkanDriver>, n: i32| {
        let got = run(exe, &ints(0..n));
        assert_eq!(got[0], ints((0..n).map(|i| i + n - 1)), "{n}");
        exe.driver().counters().recorded
    };
    for n in 1..=90 {
        assert_eq!(recorded(&mut exe, n), 1 + n as u64);
    }
    assert_eq!(recorded(&mut exe, 90), 91);
    assert_eq!(recorded(&mut exe, 85), 91);
    assert_eq!(recorded(&mut exe, 1), 92);
    assert_eq!(recorded(&mut exe, 85), 92);
    assert_silent(backend);
}

#[test]
fn copies_and_fills_run_in_their_arms_only() {
    let Some(backend) = backend() else { return };
    let mut b = Builder::new(backend, Dim::sym("n"), 200);
    let (x, y) = (b.input("x"), b.output("y"));
    b.copy(x, y, false);
    b.fill(y, 7, false);
    b.program.steps.push(b.program.steps[0].clone());
    choose(&mut b, &[10, 100]);
    let mut exe = b.load(backend);
    for (n, filled) in [(5, false), (50, true), (150, false), (50, true)] {
        let want = ints((0..n).map(|i| if filled { 7 } else { i }));
        assert_eq!(run(&mut exe, &ints(0..n))[0], want, "{n}");
    }
    assert_silent(backend);
}
