//! Tests of the wgpu runtime on any adapter of this machine; CI uses lavapipe.
//!
//! Without an adapter all trials are ignored and `adapter` reports the reason. If `TERCET_REQUIRE`
//! names the device, its absence is a failure.
#![allow(clippy::unwrap_used, reason = "a test: errors fail it")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake};

use libtest_mimic::{Arguments, Trial};
use tercet_ir::backend::OutputSelection;
use tercet_ir::{
    Backend, CompileError, CompileOptions, DType, Dim, Executable, Graph, RunError, Tensor, Type,
};
use tercet_plan::{ProgramBuffer, StepOp, SymInt};
use tercet_wgpu::{LimitSet, WgpuBackend, WgpuExecutable, WgpuOpenError, WgpuOptions};

use common::{Done, Maker, Test, bounds, floats, run, two_steps, want};

fn main() {
    if std::env::args().nth(1).as_deref() == Some(LIMITED) {
        let backend = WgpuBackend::new(&WgpuOptions::new()).expect("the parent has an adapter");
        memory_runs_out(&backend).expect("memory runs out in order");
        return;
    }
    let arguments = Arguments::from_args();
    let opened = WgpuBackend::new(&WgpuOptions::new());
    let required = std::env::var("TERCET_REQUIRE").unwrap_or_default();
    let required = required.split(',').any(|name| name.trim() == "wgpu");
    let (presence, ignored) = match &opened {
        Ok(backend) => (format!("adapter/{}", backend.adapter()), false),
        Err(e) => (format!("adapter/missing: {e}"), !required),
    };
    let error = opened.as_ref().err().map(ToString::to_string);
    let mut trials = vec![
        Trial::test(presence, move || error.map_or(Ok(()), |e| Err(e.into())))
            .with_ignored_flag(ignored),
    ];
    for &(name, test) in TESTS
        .iter()
        .chain(common::ahead::TESTS)
        .chain(common::tuned::TESTS)
        .chain(common::kept::TESTS)
        .chain(common::wgsl_matrices::TESTS)
    {
        let backend = opened.as_ref().ok().cloned();
        let missing = backend.is_none();
        let run =
            move || backend.map_or(Err("no adapter".into()), |b| test(&b).map_err(Into::into));
        trials.push(Trial::test(name, run).with_ignored_flag(missing));
    }
    libtest_mimic::run(&arguments, trials).exit();
}

const TESTS: &[(&str, Test)] = &[
    ("a_program_runs_at_every_size", a_program_runs_at_every_size),
    ("copies_and_fills", copies_and_fills),
    ("results_in_place", results_in_place),
    (
        "graphs_on_every_set_of_limits",
        graphs_on_every_set_of_limits,
    ),
    ("large_uploads_and_reads", large_uploads_and_reads),
    ("states_and_clones", states_and_clones),
    ("executables_die_in_any_order", executables_die_in_any_order),
    ("threads_agree_bit_by_bit", threads_agree_bit_by_bit),
    ("memory_runs_out_for_one_only", memory_runs_out_for_one_only),
    ("runs_without_blocking", runs_without_blocking),
    ("a_dropped_run_is_discarded", a_dropped_run_is_discarded),
    ("steps_are_timed", steps_are_timed),
    ("a_lost_device_is_an_error", a_lost_device_is_an_error),
    ("a_broken_kernel_is_named", a_broken_kernel_is_named),
    ("limits_are_errors", limits_are_errors),
    ("unknown_adapters_are_errors", unknown_adapters_are_errors),
];

fn a_program_runs_at_every_size(backend: &WgpuBackend) -> Done {
    let mut exe = backend.load(two_steps(1000), bounds(1000))?;
    for n in [5, 1000, 0, 1, 64, 65, 1000] {
        let x = floats(n);
        assert_eq!(run(&mut exe, &x)?, [want(&x)], "size {n}");
    }
    let e = run(&mut exe, &floats(1001)).unwrap_err();
    assert!(matches!(e, RunError::AboveBound { .. }), "{e}");
    assert_eq!(run(&mut exe, &floats(7))?, [want(&floats(7))]);
    Ok(())
}

fn copies_and_fills(backend: &WgpuBackend) -> Done {
    let mut m = Maker::new();
    let x = m.slot(ProgramBuffer::Input, 0, 400);
    let t = m.slot(ProgramBuffer::Arena, 0, 400);
    let ones = m.slot(ProgramBuffer::Arena, 512, 400);
    let nothing = m.slot(ProgramBuffer::Arena, 1024, 0);
    let u = m.slot(ProgramBuffer::Arena, 1024, 400);
    let (y, z) = (
        m.slot(ProgramBuffer::Output, 0, 400),
        m.slot(ProgramBuffer::Output, 512, 400),
    );
    m.input(x);
    let bytes = m.program.tape.mul(m.count, SymInt::Const(4));
    let word = 1f32.to_bits();
    m.step(StepOp::Fill { dst: ones, word });
    m.step(StepOp::Fill { dst: nothing, word });
    m.step(StepOp::Fill { dst: z, word: 0 });
    m.step(StepOp::Copy {
        src: x,
        dst: t,
        bytes,
    });
    // A copy within one buffer.
    m.step(StepOp::Copy {
        src: t,
        dst: u,
        bytes,
    });
    m.axpy(2.0, u, ones, y);
    m.output(y);
    m.output(z);
    let mut exe = backend.load(m.finish(), bounds(100))?;
    for n in [100, 3] {
        let x = floats(n);
        let y: Vec<f32> = x.as_slice::<f32>()?.iter().map(|x| 2.0 * x + 1.0).collect();
        assert_eq!(run(&mut exe, &x)?, [y, vec![0.0; n]]);
    }
    Ok(())
}

fn results_in_place(backend: &WgpuBackend) -> Done {
    let mut m = Maker::new();
    let x = m.slot(ProgramBuffer::Input, 0, 256);
    let t = m.slot(ProgramBuffer::Arena, 0, 256);
    let y = m.slot(ProgramBuffer::Output, 0, 256);
    m.input(x);
    m.axpy(1.0, x, x, t);
    m.axpy(3.0, t, t, t);
    m.axpy(0.0, x, t, y);
    m.output(y);
    let mut exe = backend.load(m.finish(), bounds(64))?;
    let x = floats(64);
    let want: Vec<f32> = x.as_slice::<f32>()?.iter().map(|x| 8.0 * x).collect();
    assert_eq!(run(&mut exe, &x)?, [want]);
    Ok(())
}

/// `y = transpose(x)`: a small graph that needs no arithmetic.
fn transposed(n: usize) -> Graph {
    let mut g = Graph::new();
    let x = g
        .input("x", Type::new(DType::F32, [Dim::sym("s"), Dim::Known(n)]))
        .unwrap();
    let y = g.transpose(x, &[1, 0]).unwrap();
    g.output("y", y).unwrap();
    g
}

fn graphs_on_every_set_of_limits(_: &WgpuBackend) -> Done {
    for limits in [LimitSet::Found, LimitSet::WebGpu, LimitSet::Downlevel] {
        let options = WgpuOptions {
            limits,
            ..WgpuOptions::new()
        };
        let backend = WgpuBackend::new(&options)?;
        if limits == LimitSet::WebGpu {
            assert_eq!(*backend.caps(), tercet_plan::DeviceCaps::browser());
        }
        let options = CompileOptions::new().bound("s", 9);
        let mut exe = backend.compile(&transposed(3), &options)?;
        let x = Tensor::from_slice(&[2, 3], &[1f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
        assert_eq!(run(&mut *exe, &x)?, [vec![1.0, 4.0, 2.0, 5.0, 3.0, 6.0]]);
    }
    Ok(())
}

fn large_uploads_and_reads(backend: &WgpuBackend) -> Done {
    let mut g = Graph::new();
    let ty = Type::new(DType::U8, [9000, 9001]);
    let x = g.param("p", ty.clone())?;
    let y = g.transpose(x, &[1, 0])?;
    g.output("y", y)?;
    let mut exe = backend.compile(&g, &CompileOptions::new())?;
    let bytes: Vec<u8> = (0..9000 * 9001u32).map(|i| (i % 251) as u8).collect();
    exe.set_param("p", Tensor::from_slice(&[9000, 9001], &bytes)?)?;
    let y = exe.run(&[])?.remove(0);
    let y = y.as_slice::<u8>()?;
    for (row, column) in [(0, 0), (1, 0), (9000, 8999), (4500, 17)] {
        assert_eq!(y[row * 9000 + column], bytes[column * 9001 + row]);
    }
    let rows = exe.read_output_rows("y", 7..9)?;
    assert_eq!(rows.as_slice::<u8>()?, &y[7 * 9000..9 * 9000]);
    Ok(())
}

/// A graph with a state: the state receives the transposed input, and the output is the old state.
fn remembering() -> Graph {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [2, 3])).unwrap();
    let s = g.state("s", Type::new(DType::F32, [3, 2])).unwrap();
    let t = g.transpose(x, &[1, 0]).unwrap();
    g.output("y", s).unwrap();
    g.assign(s, t).unwrap();
    g
}

fn states_and_clones(backend: &WgpuBackend) -> Done {
    let mut exe = backend.compile(&remembering(), &CompileOptions::new())?;
    let x = |k: f32| Tensor::from_slice(&[2, 3], &[k, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let seen = |k: f32| vec![vec![k, 4.0, 2.0, 5.0, 3.0, 6.0]];
    assert_eq!(run(&mut *exe, &x(1.0))?, [vec![0.0; 6]]);
    let mut clone = exe.try_clone()?;
    assert_eq!(run(&mut *exe, &x(7.0))?, seen(1.0));
    assert_eq!(run(&mut *exe, &x(8.0))?, seen(7.0));
    assert_eq!(run(&mut *clone, &x(9.0))?, seen(1.0));
    drop(exe);
    assert_eq!(clone.read_state("s")?.as_slice::<f32>()?, seen(9.0)[0]);
    clone.write_state("s", &Tensor::from_slice(&[3, 2], &[0.5f32; 6])?)?;
    assert_eq!(run(&mut *clone, &x(1.0))?, [vec![0.5; 6]]);
    clone.reset();
    assert_eq!(run(&mut *clone, &x(1.0))?, [vec![0.0; 6]]);

    let mut g = Graph::new();
    let p = g.param("p", Type::new(DType::F32, [1, 2]))?;
    let t = g.transpose(p, &[1, 0])?;
    g.output("y", t)?;
    let mut a = backend.compile(&g, &CompileOptions::new())?;
    let p = |k: f32| Tensor::from_slice(&[1, 2], &[k, -k]).unwrap();
    a.set_param("p", p(1.0))?;
    assert_eq!(a.run(&[])?[0].as_slice::<f32>()?, [1.0, -1.0]);
    let mut b = a.try_clone()?;
    b.set_param("p", p(2.0))?;
    assert_eq!(a.run(&[])?[0].as_slice::<f32>()?, [1.0, -1.0]);
    assert_eq!(b.run(&[])?[0].as_slice::<f32>()?, [2.0, -2.0]);
    a.set_param("p", p(3.0))?;
    assert_eq!(a.run(&[])?[0].as_slice::<f32>()?, [3.0, -3.0]);
    assert_eq!(b.run(&[])?[0].as_slice::<f32>()?, [2.0, -2.0]);
    Ok(())
}

fn executables_die_in_any_order(backend: &WgpuBackend) -> Done {
    let mut alive: Vec<WgpuExecutable> = Vec::new();
    for _ in 0..64 {
        alive.push(backend.load(two_steps(100), bounds(100))?);
    }
    let mut seed = 1u32;
    let x = floats(100);
    while !alive.is_empty() {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let mut gone = alive.swap_remove(seed as usize / 7 % alive.len());
        // Half of the executables are dropped with a run in flight.
        gone.submit(&[("x", &x)], OutputSelection::All)?;
        if seed.is_multiple_of(2) {
            gone.wait(&mut Vec::new())?;
        }
        drop(gone);
        if let Some(other) = alive.last_mut() {
            assert_eq!(run(other, &x)?, [want(&x)]);
        }
    }
    Ok(())
}

fn threads_agree_bit_by_bit(backend: &WgpuBackend) -> Done {
    let first = backend.load(two_steps(5000), bounds(5000))?;
    std::thread::scope(|threads| {
        let runs = (0..8).map(|i| {
            let mut exe = first.try_clone().unwrap();
            threads.spawn(move || {
                for n in 0..50 {
                    let x = floats(100 * i + n);
                    assert_eq!(run(&mut *exe, &x).unwrap(), [want(&x)]);
                }
            })
        });
        let runs: Vec<_> = runs.collect();
        for run in runs {
            run.join().expect("a thread fails");
        }
    });
    Ok(())
}

/// The argument that makes this test binary run with limited memory.
const LIMITED: &str = "--memory-is-limited";

fn memory_runs_out_for_one_only(backend: &WgpuBackend) -> Done {
    if backend.adapter().kind != "cpu" || !cfg!(unix) {
        return memory_runs_out(backend);
    }
    // A software GPU never runs out of memory unless its process is limited.
    let status = std::process::Command::new("sh")
        .args(["-c", "ulimit -v 12000000 && exec \"$0\" \"$1\""])
        .arg(std::env::current_exe()?)
        .arg(LIMITED)
        .status()?;
    assert!(status.success(), "{status}");
    Ok(())
}

fn memory_runs_out(backend: &WgpuBackend) -> Done {
    let mut alive = backend.load(two_steps(10), bounds(10))?;
    let mut m = Maker::new();
    let x = m.slot(ProgramBuffer::Input, 0, 4);
    m.input(x);
    let each = 1 << 30;
    for i in 0..4096 {
        m.slot(ProgramBuffer::State(i), 0, each);
    }
    let e = (backend.load(m.finish(), bounds(1)).map(drop)).unwrap_err();
    let right = matches!(e, CompileError::OutOfMemory { what: "a state", bytes } if bytes == each);
    assert!(right, "{e}");
    let x = floats(10);
    assert_eq!(run(&mut alive, &x)?, [want(&x)]);
    let mut new = backend.load(two_steps(10), bounds(10))?;
    assert_eq!(run(&mut new, &x)?, [want(&x)]);
    Ok(())
}

/// A waker that unparks the thread and sets a flag.
struct Told(std::thread::Thread, AtomicBool);

impl Wake for Told {
    fn wake(self: Arc<Self>) {
        self.1.store(true, Ordering::Release);
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let told = Arc::new(Told(std::thread::current(), AtomicBool::new(false)));
    let waker = Arc::clone(&told).into();
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        // Poll only after a wake-up, to prove that the waker is called.
        while !told.1.swap(false, Ordering::AcqRel) {
            std::thread::park();
        }
    }
}

fn runs_without_blocking(_: &WgpuBackend) -> Done {
    let backend = block_on(WgpuBackend::request(&WgpuOptions::new()))?;
    let options = CompileOptions::new().bound("s", 9);
    let mut exe = block_on(backend.compile_async(&transposed(3), &options))?;
    let mut outputs = Vec::new();
    for k in 0..20 {
        let x = Tensor::from_slice(&[1, 3], &[k as f32, 1.0, 2.0])?;
        block_on(exe.run_async(&[("x", &x)], OutputSelection::All, &mut outputs))?;
        assert_eq!(outputs[0].as_slice::<f32>()?, [k as f32, 1.0, 2.0]);
    }
    let x = Tensor::from_slice(&[1, 3], &[0f32, 1.0, 2.0])?;
    block_on(exe.run_async(&[("x", &x)], OutputSelection::Only(&[]), &mut outputs))?;
    assert!(outputs.is_empty());
    Ok(())
}

fn a_dropped_run_is_discarded(backend: &WgpuBackend) -> Done {
    let mut exe = backend.load(two_steps(100), bounds(100))?;
    let mut outputs = Vec::new();
    let (x, y) = (floats(100), floats(50));
    for _ in 0..10 {
        {
            let inputs = [("x", &x)];
            let mut run =
                std::pin::pin!(exe.run_async(&inputs, OutputSelection::All, &mut outputs));
            let mut context = Context::from_waker(std::task::Waker::noop());
            let _ = run.as_mut().poll(&mut context);
        }
        block_on(exe.run_async(&[("x", &y)], OutputSelection::All, &mut outputs))?;
        assert_eq!(outputs[0].as_slice::<f32>()?, want(&y));
    }
    Ok(())
}

fn steps_are_timed(_: &WgpuBackend) -> Done {
    let backend = WgpuBackend::new(&WgpuOptions {
        timings: true,
        ..WgpuOptions::new()
    })?;
    let mut exe = backend.load(two_steps(100_000), bounds(100_000))?;
    let x = floats(100_000);
    assert_eq!(run(&mut exe, &x)?, [want(&x)]);
    let times = exe.timings();
    // lavapipe supports timestamps; devices without them report no times.
    assert!(times.is_empty() || times.len() == 4, "{times:?}");
    for pair in times.windows(2) {
        assert!(pair[0].start_ns + pair[0].ns <= pair[1].start_ns + pair[1].ns);
    }
    Ok(())
}

fn a_lost_device_is_an_error(_: &WgpuBackend) -> Done {
    let backend = WgpuBackend::new(&WgpuOptions::new())?;
    let other = WgpuBackend::new(&WgpuOptions::new())?;
    let mut exe = backend.compile(&remembering(), &CompileOptions::new())?;
    let mut alive = other.load(two_steps(10), bounds(10))?;
    let x = Tensor::from_slice(&[2, 3], &[0f32; 6])?;
    exe.submit(&[("x", &x)], OutputSelection::All)?;
    backend.destroy();
    let lost = |e: &RunError| matches!(e, RunError::DeviceLost { .. });
    assert!(lost(&exe.wait(&mut Vec::new()).unwrap_err()));
    assert!(lost(&run(&mut *exe, &x).unwrap_err()));
    assert!(lost(&exe.read_state("s").unwrap_err()));
    assert!(lost(&exe.try_clone().map(drop).unwrap_err()));
    exe.reset();
    let e = backend.compile(&remembering(), &CompileOptions::new());
    assert!(matches!(e.map(drop), Err(CompileError::Device { .. })));
    drop(exe);
    let x = floats(10);
    assert_eq!(run(&mut alive, &x)?, [want(&x)]);
    Ok(())
}

fn a_broken_kernel_is_named(backend: &WgpuBackend) -> Done {
    let mut m = Maker::new();
    let x = m.slot(ProgramBuffer::Input, 0, 4);
    let y = m.slot(ProgramBuffer::Output, 0, 4);
    m.input(x);
    let text = common::AXPY.replace("bitcast<u32>(sum)", "sum");
    m.kernel("broken", &text, 1.0, &[x, x, y]);
    m.output(y);
    let e = backend.load(m.finish(), bounds(1)).map(drop).unwrap_err();
    let CompileError::Kernel { kernel, reason } = e else {
        panic!("{e}");
    };
    assert_eq!(kernel, "broken");
    assert!(!reason.contains('\n'), "{reason}");
    Ok(())
}

fn limits_are_errors(_: &WgpuBackend) -> Done {
    let backend = WgpuBackend::new(&WgpuOptions {
        limits: LimitSet::WebGpu,
        ..WgpuOptions::new()
    })?;
    let mut m = Maker::new();
    let x = m.slot(ProgramBuffer::Input, 0, 129 << 20);
    let y = m.slot(ProgramBuffer::Output, 0, 4);
    m.input(x);
    m.axpy(1.0, x, x, y);
    let e = backend.load(m.finish(), bounds(1)).map(drop).unwrap_err();
    assert!(
        matches!(e, CompileError::TooLarge { limit, .. } if limit == 128 << 20),
        "{e}"
    );

    let mut m = Maker::new();
    m.slot(ProgramBuffer::Arena, 256 << 20, 4);
    let e = backend.load(m.finish(), bounds(1)).map(drop).unwrap_err();
    let text = "device: the buffer of intermediate values takes 268435460 bytes, above this \
                device's 268435456 for one buffer; lower the symbols' bounds or the batch";
    assert_eq!(e.to_string(), text);
    Ok(())
}

fn unknown_adapters_are_errors(backend: &WgpuBackend) -> Done {
    let open = |name: &str| {
        WgpuBackend::new(&WgpuOptions {
            adapter: Some(name.to_string()),
            ..WgpuOptions::new()
        })
    };
    for name in ["no such adapter", "4711"] {
        let e = open(name).unwrap_err();
        assert!(matches!(&e, WgpuOpenError::NoAdapter { .. }), "{e}");
        assert!(e.to_string().contains(&backend.adapter().name), "{e}");
    }
    let first = WgpuBackend::adapters().remove(0);
    assert_eq!(*open("0")?.adapter(), first);
    assert_eq!(*open(&first.name.to_uppercase())?.adapter(), first);
    Ok(())
}
