//! Sizes that do not fit in memory are typed errors of both executors, before anything is computed.
//! The sizes exceed the address space of a process, so no system can overcommit them.

use tercet_cpu::{CpuBackend, ReferenceBackend};
use tercet_ir::ops::PadMode;
use tercet_ir::{
    Backend, CompileError, CompileOptions, DType, Dim, EvalError, Graph, OpError, RunError, Tensor,
    TensorError, TensorType, Type, Value, one_line,
};

/// Number of F32 elements that need 2^50 bytes.
const HUGE: usize = 1 << 48;

/// Stage at which an executable reports the error.
#[derive(Debug)]
enum Refused {
    Compiling(CompileError),
    Running(RunError),
}

impl Refused {
    fn is_of_memory(&self) -> bool {
        match self {
            Refused::Compiling(e) => matches!(e, CompileError::OutOfMemory { .. }),
            Refused::Running(e) => matches!(
                e,
                RunError::OutOfMemory { .. }
                    | RunError::Tensor(TensorError::OutOfMemory { .. })
                    | RunError::Node {
                        source: EvalError::Tensor(TensorError::OutOfMemory { .. }),
                        ..
                    }
            ),
        }
    }
}

fn ones(len: usize) -> Tensor {
    Tensor::from_slice(&[len], &vec![1f32; len]).expect("the length matches the shape")
}

/// Compiles and runs `graph` on each executor, with inputs of ones of these sizes.
fn refusals(graph: &Graph, options: &CompileOptions, inputs: &[(&str, usize)]) -> Vec<Refused> {
    let backends: [&dyn Backend; 2] = [&CpuBackend::new(), &ReferenceBackend::new()];
    let tensors: Vec<Tensor> = inputs.iter().map(|(_, len)| ones(*len)).collect();
    let named: Vec<(&str, &Tensor)> = inputs.iter().map(|(n, _)| *n).zip(&tensors).collect();
    let refused = backends.map(|backend| {
        backend
            .explain(graph, options)
            .expect("a plan needs no memory");
        let mut exe = match backend.compile(graph, options) {
            Ok(exe) => exe,
            Err(e) => return Refused::Compiling(e),
        };
        let first = exe.run(&named).expect_err("the size exceeds any memory");
        // The executable remains usable, and a submission returns the same error.
        let again = exe.submit(&named, tercet_ir::backend::OutputSelection::All);
        assert_eq!(again.expect_err("the error is the same"), first);
        Refused::Running(first)
    });
    refused.into()
}

fn check(what: &str, build: impl Fn(&mut Graph) -> Result<Value, OpError>) {
    let mut g = Graph::new();
    let y = build(&mut g).unwrap_or_else(|e| panic!("{what}: {}", one_line(&e)));
    g.output("y", y).expect("a value of the graph");
    let inputs = match g.leaf("x") {
        Some(_) => vec![("x", 4)],
        None => Vec::new(),
    };
    for refused in refusals(&g, &CompileOptions::new(), &inputs) {
        assert!(refused.is_of_memory(), "{what}: {refused:?}");
    }
}

fn x(g: &mut Graph) -> Result<Value, OpError> {
    g.input("x", Type::new(DType::F32, [4]))
}

#[test]
fn results_that_memory_cannot_hold_are_errors() {
    check("rng_uniform", |g| {
        g.rng_uniform([HUGE / 4, 4], DType::F32, 0.0, 1.0, 1)
    });
    check("rng_normal", |g| {
        g.rng_normal([HUGE / 4, 4], DType::F32, 0.0, 1.0, 1)
    });
    check("one_hot", |g| {
        let x = x(g)?;
        let index = g.cast(x, DType::I32)?;
        g.one_hot(index, HUGE / 4, DType::F32)
    });
    check("tile", |g| {
        let x = x(g)?;
        g.tile(x, &[HUGE / 4])
    });
    for mode in [PadMode::Constant, PadMode::Edge] {
        check("pad", |g| {
            let x = x(g)?;
            g.pad(x, &[0], &[HUGE - 4], mode, 0.0)
        });
    }
    check("expand", |g| {
        let x = x(g)?;
        g.expand(x, [HUGE / 4, 4])
    });
    check("mat_mul", |g| {
        let x = x(g)?;
        let column = g.reshape(x, [4, 1])?;
        let column = g.expand(column, [4, HUGE / 16])?;
        let column = g.reshape(column, [HUGE / 4, 1])?;
        let row = g.reshape(x, [1, 4])?;
        g.matmul(column, row)
    });
    check("trilu", |g| {
        let x = x(g)?;
        let x = g.expand(x, [HUGE / 4, 4])?;
        let y = g.transpose(x, &[1, 0])?;
        g.trilu(y, true, 0)
    });
    check("sum", |g| {
        let x = x(g)?;
        let wide = g.expand(x, [HUGE / 4, 4])?;
        let y = g.exp(wide)?;
        g.mul(y, wide)
    });
}

#[test]
fn constants_that_memory_cannot_hold_are_errors() {
    let four = || Tensor::from_slice(&[4], &[0i32, 1, 2, 3]).expect("four");
    check("one_hot", |g| {
        let index = g.constant(four())?;
        g.one_hot(index, HUGE / 4, DType::F32)
    });
    check("a prepared constant", |g| {
        let index = g.constant(four())?;
        let hot = g.one_hot(index, HUGE / 4, DType::F32)?;
        let x = x(g)?;
        let x = g.reshape(x, [4, 1])?;
        g.mul(hot, x)
    });
    check("expand", |g| {
        let one = g.scalar(DType::F32, 1.5)?;
        g.expand(one, [HUGE])
    });
    check("mat_mul", |g| {
        let many = Tensor::zeros(TensorType::new(DType::F32, &[1 << 24, 1])).expect("64 MiB");
        let a = g.constant(many)?;
        let row = Tensor::zeros(TensorType::new(DType::F32, &[1, 1 << 24])).expect("64 MiB");
        let b = g.constant(row)?;
        g.matmul(a, b)
    });
}

#[test]
fn sizes_of_a_run_that_memory_cannot_hold_are_errors() -> Result<(), Box<dyn std::error::Error>> {
    let mut g = Graph::new();
    let s = Dim::sym("s");
    let x = g.input("x", Type::new(DType::F32, [s.clone()]))?;
    let x = g.reshape(x, [s.clone(), Dim::Known(1)])?;
    let y = g.expand(x, [s, Dim::Known(HUGE / 8)])?;
    g.output("y", y)?;
    let options = CompileOptions::new().bound("s", 8);
    for refused in refusals(&g, &options, &[("x", 8)]) {
        assert!(refused.is_of_memory(), "{refused:?}");
    }
    // If the number of rows is zero, the tensor is empty and needs no memory.
    let backends: [&dyn Backend; 2] = [&CpuBackend::new(), &ReferenceBackend::new()];
    for backend in backends {
        let done = backend.compile(&g, &options)?.run(&[("x", &ones(0))])?;
        assert_eq!(done[0].shape(), [0, HUGE / 8]);
    }
    Ok(())
}

#[test]
fn sizes_of_a_run_that_cannot_be_counted_are_errors() -> Result<(), Box<dyn std::error::Error>> {
    let mut g = Graph::new();
    let (s, t) = (Dim::sym("s"), Dim::sym("t"));
    let x = g.input("x", Type::new(DType::F32, [s.clone(), Dim::Known(0)]))?;
    let z = g.input("z", Type::new(DType::F32, [t.clone(), Dim::Known(0)]))?;
    let one = g.scalar(DType::F32, 1.0)?;
    let all = g.expand(one, [s, t])?;
    let y = g.reduce_sum(all, &[0, 1], false)?;
    g.output("y", y)?;
    g.output("x", x)?;
    g.output("z", z)?;
    let options = CompileOptions::new()
        .bound("s", 1 << 40)
        .bound("t", 1 << 40);
    let empty = Tensor::zeros(TensorType::new(DType::F32, &[1 << 40, 0]))?;
    let backends: [&dyn Backend; 2] = [&CpuBackend::new(), &ReferenceBackend::new()];
    for backend in backends {
        let refused = match backend.compile(&g, &options) {
            Ok(mut exe) => exe
                .run(&[("x", &empty), ("z", &empty)])
                .map_err(|e| one_line(&e)),
            Err(e) => Err(one_line(&e)),
        };
        let refused = refused.expect_err("2^80 elements");
        assert!(refused.contains("has more than 2^48 elements"), "{refused}");
    }
    Ok(())
}
