//! Lifetime tests with many executables on one device: threads, drop orders, and failures that
//! leave others usable.

mod common;

use std::sync::Barrier;
use std::thread;

use common::{Builder, affine, assert_silent, backend, ints, kernel, run};
use tercet_ir::{CompileError, Dim, Executable, RunError};
use tercet_plan::ProgramBuffer;
use tercet_vulkan::{VulkanBackend, VulkanOptions};

/// A pseudo-random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

#[test]
fn many_executables_live_and_die_in_any_order() {
    let Some(backend) = backend() else { return };
    let random = &mut Random(7);
    let make = |i: usize| affine(backend, Dim::Known(i + 1), i + 1).load(backend);
    let check = |i: usize, exe: &mut dyn Executable| {
        let n = i as i32 + 1;
        assert_eq!(run(exe, &ints(0..n))[0], ints((0..n).map(|j| j * 3 + 1)));
    };
    let mut alive: Vec<(usize, _)> = (0..64).map(|i| (i, make(i))).collect();
    for (i, exe) in &mut alive {
        check(*i, exe);
    }
    while !alive.is_empty() {
        let (i, mut exe) = alive.swap_remove(random.below(alive.len()));
        if random.below(2) == 0 {
            check(i, &mut exe);
        }
        if random.below(4) == 0 {
            // Start a run, so that the executable is dropped with a run in flight.
            let x = ints(0..i as i32 + 1);
            exe.submit(&[("x", &x)], tercet_ir::backend::OutputSelection::All)
                .unwrap();
        }
        drop(exe);
        if !alive.is_empty() {
            let at = random.below(alive.len());
            let (i, exe) = &mut alive[at];
            check(*i, exe);
        }
    }
    assert_silent(backend);
}

#[test]
fn an_executable_outlives_its_backend() {
    let Some(backend) = common::open_validated(VulkanOptions::default()) else {
        return;
    };
    let mut exe = affine(&backend, Dim::Known(9), 9).load(&backend);
    drop(backend);
    assert_eq!(
        run(&mut exe, &ints(0..9))[0],
        ints((0..9).map(|i| i * 3 + 1))
    );
}

#[test]
fn eight_threads_get_the_same_bits_every_time() {
    let Some(backend) = backend() else { return };
    let first = affine(backend, Dim::sym("n"), 2000).load(backend);
    let ready = &Barrier::new(8);
    let first = &std::sync::Mutex::new(first);
    thread::scope(|scope| {
        for t in 0..8 {
            scope.spawn(move || {
                let mut exe = first.lock().unwrap().try_clone().unwrap();
                ready.wait();
                for i in 0..200 {
                    let n = 1 + (i * 37 + t * 11) % 2000;
                    let x = ints((0..n).map(|j| j ^ t));
                    assert_eq!(run(&mut *exe, &x)[0], ints((0..n).map(|j| (j ^ t) * 3 + 1)));
                }
            });
        }
    });
    assert_silent(backend);
}

#[test]
fn threads_compile_at_once_and_share_pipelines() {
    let Some(backend) = common::open_validated(VulkanOptions::default()) else {
        return;
    };
    let before = backend.counters().pipelines_compiled;
    let ready = &Barrier::new(8);
    thread::scope(|scope| {
        for t in 1..=8 {
            let backend = &backend;
            scope.spawn(move || {
                ready.wait();
                let mut exe = affine(backend, Dim::Known(t), t).load(backend);
                let n = t as i32;
                assert_eq!(
                    run(&mut exe, &ints(0..n))[0],
                    ints((0..n).map(|i| i * 3 + 1))
                );
            });
        }
    });
    assert_eq!(backend.counters().pipelines_compiled, before + 2);
    assert_silent(&backend);
}

#[test]
fn too_much_memory_is_an_error_and_others_go_on() {
    let Some(backend) = backend() else { return };
    let mut small = affine(backend, Dim::Known(8), 8).load(backend);
    let before = backend.used_bytes();
    let mut b = Builder::new(backend, Dim::sym("n"), 8);
    let (x, y) = (b.input("x"), b.output("y"));
    b.map(kernel("same", "x"), x, y, false);
    let arena = b.slot(ProgramBuffer::Arena);
    b.program.slots[arena.0 as usize].bytes = 1 << 44;
    let Err(error) = b.try_load(backend) else {
        panic!("a program of 16 TiB loaded");
    };
    assert_eq!(
        error,
        CompileError::OutOfMemory {
            what: "arena",
            bytes: 1 << 44
        }
    );
    // Other tests of this process allocate at the same time, so the test only detects leaks above 1
    // GiB.
    assert!(backend.used_bytes() < before + (1 << 30));
    assert_eq!(
        run(&mut small, &ints(0..8))[0],
        ints((0..8).map(|i| i * 3 + 1))
    );
    assert_silent(backend);
}

#[test]
fn memory_can_be_filled_and_is_given_back() {
    let Some(backend) = common::open_validated(VulkanOptions::default()) else {
        return;
    };
    if backend.device().kind != tercet_vulkan::VulkanDeviceKind::Cpu {
        eprintln!("ignored: fills the memory of software devices only");
        return;
    }
    let mut small = affine(&backend, Dim::Known(8), 8).load(&backend);
    // The first run allocates the readback memory.
    run(&mut small, &ints(0..8));
    let before = backend.used_bytes();
    let mut held = Vec::new();
    let error = loop {
        // Parameters are uploaded only when they are set, so their memory is not touched.
        let mut b = affine(&backend, Dim::Known(8), 8);
        let w = b.param("w");
        b.program.slots[w.0 as usize].bytes = 400 << 20;
        match b.try_load(&backend) {
            Ok(exe) => held.push(exe),
            Err(e) => break e,
        }
        assert!(held.len() < 10_000);
    };
    let full = CompileError::OutOfMemory {
        what: "parameter",
        bytes: 400 << 20,
    };
    assert_eq!(error, full);
    assert_eq!(
        run(&mut small, &ints(0..8))[0],
        ints((0..8).map(|i| i * 3 + 1))
    );
    drop(held);
    assert_eq!(backend.used_bytes(), before);
    assert!(
        affine(&backend, Dim::Known(8), 8)
            .try_load(&backend)
            .is_ok()
    );
    assert_silent(&backend);
}

#[test]
fn a_lost_device_is_an_error_of_every_call() {
    let Some(backend) = common::open_validated(VulkanOptions::default()) else {
        return;
    };
    let mut exe = affine(&backend, Dim::Known(8), 8).load(&backend);
    run(&mut exe, &ints(0..8));
    backend.simulate_device_loss();
    let lost = |e: RunError| matches!(e, RunError::DeviceLost { .. });
    let x = ints(0..8);
    assert!(lost(
        exe.run_into(&[("x", &x)], &mut Vec::new()).unwrap_err()
    ));
    assert!(lost(exe.read_output_rows("y", 0..1).unwrap_err()));
    assert!(lost(exe.try_clone().err().unwrap()));
    exe.reset();
    let Err(error) = affine(&backend, Dim::Known(8), 8).try_load(&backend) else {
        panic!("a program loaded on a lost device");
    };
    assert_eq!(
        error.to_string(),
        "device: device lost: device loss was simulated"
    );
    drop(exe);
    assert_silent(&backend);
}

#[test]
fn a_kernel_that_does_not_compile_names_itself() {
    let Some(backend) = backend() else { return };
    let mut b = Builder::new(backend, Dim::Known(4), 4);
    let (x, y) = (b.input("x"), b.output("y"));
    b.map(kernel("broken", "no_such_function(x)"), x, y, false);
    let Err(error) = b.try_load(backend) else {
        panic!("a broken kernel loaded");
    };
    let text = error.to_string();
    assert!(text.starts_with("device: kernel broken: "), "{text}");
    assert!(text.contains("no_such_function"), "{text}");
    let mut exe = affine(backend, Dim::Known(4), 4).load(backend);
    assert_eq!(
        run(&mut exe, &ints(0..4))[0],
        ints((0..4).map(|i| i * 3 + 1))
    );
    assert_silent(backend);
}

/// The environment variable that makes a child process of this test run without drivers.
const NO_DRIVERS: &str = "TERCET_TEST_NO_DRIVERS";

#[test]
fn without_a_driver_the_error_says_so() {
    if std::env::var_os(NO_DRIVERS).is_some() {
        let error = match VulkanBackend::new(VulkanOptions::default()) {
            Ok(backend) => panic!("there is {}", backend.device()),
            Err(error) => error.to_string(),
        };
        assert!(error.starts_with("no Vulkan driver: "), "{error}");
        return;
    }
    // `current_exe` would be the dynamic loader under the runner for the newer lavapipe.
    let test = std::env::args_os().next().unwrap();
    let mut child = std::process::Command::new(test);
    child
        .args(["--exact", "without_a_driver_the_error_says_so"])
        .env(NO_DRIVERS, "1");
    for variable in ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"] {
        child.env(variable, "/no/such/driver.json");
    }
    let out = child.output().unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
}
