//! Tests of control flow on every executor beyond the operator cases: long scans, runs after a
//! failed run, clones, and the number of submissions.

use std::collections::BTreeMap;

use crate::{SuiteTest, executors};
use tercet::{
    CompileOptions, DType, Device, EvalError, Executable, Graph, OpError, RunError, Scheme,
    Signature, Tensor, TensorType, Type, Value, one_line,
};
use tercet_ir::accuracy::{Accuracy, furthest};
use tercet_ir::fill::InputFill;
use tercet_ir::ops::{ReduceFn, Scan};

type BoxError = Box<dyn std::error::Error>;

fn scalar(dtype: DType) -> Type {
    Type::new(dtype, [0usize; 0])
}

/// Adds a subgraph whose arguments have these types.
fn block(
    arguments: &[Type],
    f: impl FnOnce(&mut Graph, &[Value]) -> Result<Vec<Value>, OpError>,
) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let mut values = Vec::new();
    for (i, ty) in arguments.iter().enumerate() {
        values.push(g.input(&format!("a{i}"), ty.clone())?);
    }
    for (i, value) in f(&mut g, &values)?.into_iter().enumerate() {
        g.output(&format!("r{i}"), value)?;
    }
    Ok(g)
}

/// The sum and the running sums of a sequence, from its end if `reverse`.
fn sums(steps: impl Into<tercet::Dim>, reverse: bool) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::I32, [steps.into()]))?;
    let zero = g.scalar(DType::I32, 0.0)?;
    let of = [scalar(DType::I32), scalar(DType::I32)];
    let body = block(&of, |g, a| {
        let sum = g.plus(a[0], a[1])?;
        Ok(vec![sum, sum])
    })?;
    let op = Scan {
        body: body.into(),
        carried: 1,
        scanned: 1,
        reverse: vec![reverse],
        reverse_results: vec![reverse],
    };
    let y = g.add(op, &[zero, x])?;
    g.output("last", y)?;
    g.output("sums", y.port(1))?;
    Ok(g)
}

/// A loop state that adds element `i` of a table for each `i < n`; the counter is `I64`.
pub(super) fn sum_of_elements() -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let n = g.input("n", scalar(DType::I64))?;
    let table = g.input("table", Type::new(DType::F32, [3]))?;
    let s = g.state("s", scalar(DType::F32))?;
    let i = g.scalar(DType::I64, 0.0)?;
    let of: Vec<Type> = [i, s, table, n].map(|v| g.ty(v).clone()).to_vec();
    let cond = block(&of, |g, a| Ok(vec![g.lt(a[0], a[3])?]))?;
    let body = block(&of, |g, a| {
        let x = g.gather(a[2], a[0], 0)?;
        let one = g.scalar(DType::I64, 1.0)?;
        Ok(vec![g.plus(a[0], one)?, g.plus(a[1], x)?])
    })?;
    let y = g.while_loop(&[i, s], &[table, n], cond, body, 8)?;
    g.assign(s, y.port(1))?;
    g.output("i", y)?;
    g.output("sum", y.port(1))?;
    Ok(g)
}

/// A residual feed-forward block, applied two times or not at all to its own result. The block
/// captures its parameters, one of which is quantized.
fn network() -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let row_bytes = Scheme::Q8_0.row_bytes(64).unwrap_or(0);
    let x = g.input(
        "x",
        Type::new(DType::F32, [tercet::Dim::sym("s"), 64.into()]),
    )?;
    let deep = g.input("deep", scalar(DType::Bool))?;
    let gamma = g.param("gamma", Type::new(DType::F32, [64]))?;
    let up = g.param("up", Type::new(DType::U8, [64, row_bytes]))?;
    let down = g.param("down", Type::new(DType::F32, [64, 64]))?;
    let i = g.scalar(DType::I32, 0.0)?;
    let of: Vec<Type> = [i, x, gamma, up, down].map(|v| g.ty(v).clone()).to_vec();
    let cond = block(&of, |g, a| {
        let two = g.scalar(DType::I32, 2.0)?;
        Ok(vec![g.lt(a[0], two)?])
    })?;
    let body = block(&of, |g, a| {
        let one = g.scalar(DType::I32, 1.0)?;
        let h = g.rms_norm(a[1], a[2], None, 1e-5)?;
        let h = g.dequant_matmul(h, a[3], Scheme::Q8_0)?;
        let h = g.silu(h)?;
        let h = g.matmul(h, a[4])?;
        Ok(vec![g.plus(a[0], one)?, g.plus(h, a[1])?])
    })?;
    let then = block(&of, |g, a| {
        let y = g.while_loop(&a[..2], &a[2..], cond, body, 2)?;
        Ok(vec![y.port(1)])
    })?;
    let otherwise = block(&of, |_, a| Ok(vec![a[1]]))?;
    let y = g.if_else(deep, &[i, x, gamma, up, down], then, otherwise)?;
    let y = g.softmax(y, 1)?;
    g.output("y", y)?;
    Ok(g)
}

/// Calls `f` with the graph compiled on each available executor.
pub(super) fn on_each(
    graph: &Graph,
    options: &CompileOptions,
    f: impl Fn(&mut dyn Executable) -> Result<(), BoxError>,
) -> Result<(), BoxError> {
    for executor in executors() {
        match executor.device() {
            Ok(device) => {
                let mut exe = device.backend().compile(graph, options)?;
                f(&mut *exe).map_err(|e| format!("{}: {e}", executor.name))?;
            }
            Err(reason) if executor.is_required() => return Err(reason.into()),
            Err(reason) => eprintln!("{} not run: {reason}", executor.name),
        }
    }
    Ok(())
}

fn a_long_scan_of_any_length() -> Result<(), BoxError> {
    for reverse in [false, true] {
        let graph = sums("s", reverse)?;
        let options = CompileOptions::new().bound("s", 700);
        on_each(&graph, &options, |exe| {
            for steps in [600, 0, 1, 700] {
                let data: Vec<i32> = (0..steps).map(|i| i % 7 - 2).collect();
                let x = Tensor::from_slice(&[data.len()], &data)?;
                let got = exe.run(&[("x", &x)])?;
                let mut sum = 0;
                let add = |x: &i32| {
                    sum += x;
                    sum
                };
                let mut sums: Vec<i32> = match reverse {
                    false => data.iter().map(add).collect(),
                    true => data.iter().rev().map(add).collect(),
                };
                if reverse {
                    sums.reverse();
                }
                assert_eq!(got[0].as_slice::<i32>()?, [sum], "{steps} steps");
                assert_eq!(got[1].as_slice::<i32>()?, sums, "{steps} steps");
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn a_network_in_a_loop_in_a_branch() -> Result<(), BoxError> {
    let graph = network()?;
    let options = CompileOptions::new().bound("s", 40);
    let params: Vec<(String, Tensor)> = (Signature::of(&graph).params.iter())
        .map(|port| {
            let shape = port.ty.shape.as_known().unwrap_or_default();
            let ty = TensorType::new(port.ty.dtype, &shape);
            let fill = match port.ty.dtype {
                DType::U8 => InputFill::Blocks(Scheme::Q8_0),
                _ => InputFill::Uniform(-0.3, 0.3),
            };
            (port.name.clone(), fill.tensor(&port.name, ty))
        })
        .collect();
    let mut want = Device::reference().compile(&graph, &options)?;
    for (name, tensor) in &params {
        want.set_param(name, tensor.clone())?;
    }
    let want = std::cell::RefCell::new(want);
    on_each(&graph, &options, |exe| {
        for (name, tensor) in &params {
            exe.set_param(name, tensor.clone())?;
        }
        for (rows, deep) in [(1, true), (40, true), (7, false), (3, true)] {
            let ty = TensorType::new(DType::F32, &[rows, 64]);
            let x = InputFill::Normal.tensor("x", ty);
            let deep = Tensor::from_bools(&[], &[deep])?;
            let inputs = [("x", &x), ("deep", &deep)];
            let (got, want) = (exe.run(&inputs)?, want.borrow_mut().run(&inputs)?);
            let furthest = furthest(Accuracy::Contraction, &got[0], &want[0]);
            if let Some(f) = furthest.filter(|f| f.units > 1.0) {
                return Err(format!("{rows} rows: {f}").into());
            }
        }
        Ok(())
    })
}

/// The sum of the elements after the first four, or 0.
pub(super) fn tail() -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [tercet::Dim::sym("s")]))?;
    let is_long = g.input("is_long", scalar(DType::Bool))?;
    let of = [g.ty(x).clone()];
    let then = block(&of, |g, a| {
        let rest = g.slice(a[0], &[4], &[i64::MAX], &[1])?;
        let rest = g.relu(rest)?;
        Ok(vec![g.reduce(ReduceFn::Sum, rest, &[0], false)?])
    })?;
    let otherwise = block(&of, |g, _| Ok(vec![g.scalar(DType::F32, 0.0)?]))?;
    let y = g.if_else(is_long, &[x], then, otherwise)?;
    g.output("y", y)?;
    Ok(g)
}

fn impossible_sizes_matter_where_a_run_comes_to_them() -> Result<(), BoxError> {
    let options = CompileOptions::new().bound("s", 9);
    on_each(&tail()?, &options, |exe| {
        let mut run = |len: usize, is_long: bool| {
            let x = Tensor::from_slice(&[len], &vec![1f32; len])?;
            let is_long = Tensor::from_bools(&[], &[is_long])?;
            let done = exe.run(&[("x", &x), ("is_long", &is_long)])?;
            Ok::<f64, BoxError>(done[0].to_f64s()[0])
        };
        assert_eq!(run(9, true)?, 5.0);
        assert_eq!(run(2, false)?, 0.0);
        let refused = run(2, true)
            .err()
            .ok_or("two elements have no tail after four")?;
        let refused = refused.downcast::<RunError>()?;
        assert!(
            matches!(*refused, RunError::Node { op: "if", .. }),
            "{refused}"
        );
        assert_eq!(run(4, true)?, 0.0);
        Ok(())
    })
}

fn a_run_after_one_that_failed() -> Result<(), BoxError> {
    let graph = sum_of_elements()?;
    on_each(&graph, &CompileOptions::new(), |exe| {
        let table = Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?;
        let mut run = |n: i64| {
            let n = Tensor::scalar(n);
            let done = exe.run(&[("n", &n), ("table", &table)]);
            let state = exe.read_state("s").map(|s| s.to_f64s()[0]);
            (done.map(|d| (d[0].to_i64s()[0], d[1].to_f64s()[0])), state)
        };
        assert_eq!(run(2), (Ok((2, 3.0)), Ok(3.0)));
        let (done, state) = run(5);
        let Err(e) = done else {
            return Err("there are three elements".into());
        };
        let RunError::Node { op, source, .. } = &e else {
            return Err(one_line(&e).into());
        };
        assert_eq!(*op, "while");
        let EvalError::Within {
            graph, op, source, ..
        } = source
        else {
            return Err(one_line(&e).into());
        };
        assert_eq!((*graph, *op), ("body", "gather"));
        assert_eq!(**source, EvalError::Index { index: 3, len: 3 });
        assert_eq!(state, Ok(3.0), "a failed run leaves the state");
        assert_eq!(run(0), (Ok((0, 3.0)), Ok(3.0)));
        assert_eq!(run(3), (Ok((3, 10.0)), Ok(10.0)));
        Ok(())
    })
}

fn clones_run_side_by_side() -> Result<(), BoxError> {
    let graph = sum_of_elements()?;
    on_each(&graph, &CompileOptions::new(), |exe| {
        let table = Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?;
        let two = Tensor::scalar(2i64);
        exe.run(&[("n", &two), ("table", &table)])?;
        let clones = [exe.try_clone()?, exe.try_clone()?, exe.try_clone()?];
        let runs = clones.map(|mut clone| {
            let (table, two) = (table.clone(), two.clone());
            std::thread::spawn(move || {
                let mut last = 0.0;
                for _ in 0..5 {
                    let done = clone.run(&[("n", &two), ("table", &table)])?;
                    last = done[1].to_f64s()[0];
                }
                Ok::<f64, RunError>(last)
            })
        });
        for run in runs {
            let last = run.join().map_err(|_| "a clone panicked")??;
            assert_eq!(last, 18.0);
        }
        Ok(())
    })
}

fn what_is_explained_counts_the_graphs_inside() -> Result<(), BoxError> {
    let graph = sum_of_elements()?;
    for executor in executors() {
        let Ok(device) = executor.device() else {
            continue;
        };
        let explained = device.backend().explain(&graph, &CompileOptions::new())?;
        let kernels: BTreeMap<&str, usize> = (explained.kernels.iter())
            .map(|k| (k.op, k.calls))
            .collect();
        assert!(kernels.get("gather").is_some_and(|n| *n > 0), "{explained}");
        assert_eq!(explained.host_fallbacks, 0);
    }
    Ok(())
}

/// Tests that a scan is one submission at any length, and that a loop reads one word back per
/// condition. Also checks the times of runs over increasing element counts on a device opened with
/// timestamps.
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
fn check_times(device: &Device) -> Result<(), BoxError> {
    let options = CompileOptions::new().bound("s", 20);
    let mut exe = device.backend().compile(&sums("s", false)?, &options)?;
    let mut counts = Vec::new();
    for steps in [0, 1, 2, 10, 1] {
        let x = Tensor::from_slice(&[steps], &vec![1i32; steps])?;
        exe.run(&[("x", &x)])?;
        let times = exe.timings();
        let starts: Vec<u64> = times.iter().map(|t| t.start_ns).collect();
        assert!(starts.is_sorted(), "{starts:?}");
        counts.push(times.len());
    }
    let [zero, one, two, ten, again] = counts[..] else {
        return Err("five runs".into());
    };
    // Each iteration is timed; devices without timestamps report no times.
    assert_eq!(two - one, one - zero);
    assert_eq!(ten - two, 8 * (two - one));
    assert_eq!(again, one);
    let mut exe = device
        .backend()
        .compile(&sum_of_elements()?, &CompileOptions::new())?;
    let table = Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?;
    let got = exe.run(&[("n", &Tensor::scalar(3i64)), ("table", &table)])?;
    assert_eq!(got[1].to_f64s(), [7.0]);
    assert_eq!(exe.timings().is_empty(), one == 0);
    Ok(())
}

#[cfg(feature = "vulkan")]
fn steps_of_loops_are_timed_on_vulkan() -> Result<(), BoxError> {
    use tercet_vulkan::{VulkanBackend, VulkanOptions};
    let options = VulkanOptions {
        device: std::env::var("TERCET_VULKAN_DEVICE").ok(),
        validation: std::env::var("TERCET_VALIDATION").is_ok_and(|v| v == "1"),
        timestamps: true,
        ..VulkanOptions::default()
    };
    let Ok(backend) = VulkanBackend::new(options) else {
        return Ok(()); // `on_each` reports the missing executor.
    };
    let backend = std::sync::Arc::new(backend);
    check_times(&Device::from_backend(backend.clone()))?;
    assert_eq!(backend.messages(), [""; 0]);
    Ok(())
}

#[cfg(feature = "wgpu")]
fn steps_of_loops_are_timed_on_wgpu() -> Result<(), BoxError> {
    let options = tercet::DeviceOptions {
        timings: true,
        ..Default::default()
    };
    match Device::open("wgpu", &options) {
        Ok(device) => check_times(&device),
        Err(_) => Ok(()), // `on_each` reports the missing executor.
    }
}

#[cfg(feature = "vulkan")]
fn a_scan_reads_nothing_back() -> Result<(), BoxError> {
    use tercet_ir::backend::OutputSelection;
    let Ok(backend) = crate::vulkan::backend() else {
        return Ok(()); // `on_each` reports the missing executor.
    };
    let mut exe = backend.compile_gpu(&sums(40, false)?, &CompileOptions::new())?;
    let x = Tensor::from_slice(&[40], &[1i32; 40])?;
    exe.run_into(&[("x", &x)], &mut Vec::new())?;
    let before = exe.driver().counters().submissions;
    exe.start(&[("x", &x)], OutputSelection::All)?;
    assert_eq!(exe.driver().counters().submissions, before + 1);
    let mut outputs = Vec::new();
    exe.finish(&mut outputs)?;
    assert_eq!(outputs[0].as_slice::<i32>()?, [40]);
    let mut exe = backend.compile_gpu(&sum_of_elements()?, &CompileOptions::new())?;
    let table = Tensor::from_slice(&[3], &[1f32, 2.0, 4.0])?;
    let inputs = [("n", &Tensor::scalar(3i64)), ("table", &table)];
    exe.run_into(&inputs, &mut Vec::new())?;
    let before = exe.driver().counters();
    exe.start(&inputs, OutputSelection::All)?;
    exe.finish(&mut outputs)?;
    let after = exe.driver().counters();
    // The loop submits once for each of four conditions and once at its end. Under validation, a
    // redzone check follows each submission.
    assert!(after.submissions >= before.submissions + 5, "{after:?}");
    assert!(after.recorded == before.recorded, "{after:?}");
    assert_eq!(outputs[1].as_slice::<f32>()?, [14.0]);
    Ok(())
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    vec![
        SuiteTest::fallible(
            "control/a_long_scan_of_any_length",
            a_long_scan_of_any_length,
        ),
        SuiteTest::fallible(
            "control/a_network_in_a_loop_in_a_branch",
            a_network_in_a_loop_in_a_branch,
        ),
        SuiteTest::fallible(
            "control/impossible_sizes_matter_where_a_run_comes_to_them",
            impossible_sizes_matter_where_a_run_comes_to_them,
        ),
        SuiteTest::fallible(
            "control/a_run_after_one_that_failed",
            a_run_after_one_that_failed,
        ),
        SuiteTest::fallible("control/clones_run_side_by_side", clones_run_side_by_side),
        SuiteTest::fallible(
            "control/what_is_explained_counts_the_graphs_inside",
            what_is_explained_counts_the_graphs_inside,
        ),
        #[cfg(feature = "vulkan")]
        SuiteTest::fallible(
            "control/steps_of_loops_are_timed_on_vulkan",
            steps_of_loops_are_timed_on_vulkan,
        ),
        #[cfg(feature = "wgpu")]
        SuiteTest::fallible(
            "control/steps_of_loops_are_timed_on_wgpu",
            steps_of_loops_are_timed_on_wgpu,
        ),
        #[cfg(feature = "vulkan")]
        SuiteTest::fallible(
            "control/a_scan_reads_nothing_back",
            a_scan_reads_nothing_back,
        ),
    ]
}
