//! Tests of graphs that are compiled once for each size.

use std::sync::Arc;

use tercet_cpu::CpuBackend;
use tercet_ir::{
    Backend, Bindings, CompileOptions, DType, Dim, Graph, OpError, PerSizeError, PerSizeExecutable,
    Tensor, Type,
};

type Failure = Box<dyn std::error::Error>;

/// `y = x w + total` of rows, and a state that adds the sums of all runs.
fn graph() -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [Dim::sym("s"), Dim::Known(2)]))?;
    let w = g.param("w", Type::new(DType::F32, [2, 2]))?;
    let total = g.state("total", Type::new(DType::F32, [2]))?;
    let y = g.matmul(x, w)?;
    let sum = g.reduce_sum(y, &[0], false)?;
    let next = g.plus(total, sum)?;
    g.assign(total, next)?;
    let y = g.plus(y, total)?;
    g.output("y", y)?;
    Ok(g)
}

fn run(per_size: &mut PerSizeExecutable, rows: usize) -> Result<Tensor, Failure> {
    let x = Tensor::from_slice(&[rows, 2], &vec![1f32; 2 * rows])?;
    let sizes = Bindings::new().with("s", rows);
    Ok(per_size.run(&sizes, &[("x", &x)])?.remove(0))
}

#[test]
fn forms_are_kept_up_to_a_limit_and_share_parameters_and_states() -> Result<(), Failure> {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new());
    let new = PerSizeExecutable::new(backend, graph()?, CompileOptions::new());
    let mut per_size = new.with_limits(2, u64::MAX);
    per_size.set_param("w", Tensor::from_slice(&[2, 2], &[1f32, 0.0, 0.0, 2.0])?)?;
    let mut total = [0f32; 2];
    for (rows, compilations) in [(3, 1), (5, 2), (3, 2), (4, 3), (3, 3), (5, 4), (4, 5)] {
        let y = run(&mut per_size, rows)?;
        assert_eq!(y.shape(), [rows, 2]);
        assert_eq!(&y.as_slice::<f32>()?[..2], [1.0 + total[0], 2.0 + total[1]]);
        total = [total[0] + rows as f32, total[1] + 2.0 * rows as f32];
        assert_eq!(
            (per_size.compilations(), per_size.forms().min(2)),
            (compilations, per_size.forms())
        );
    }
    // All programs use the new value of the parameter.
    per_size.set_param("w", Tensor::from_slice(&[2, 2], &[0f32; 4])?)?;
    assert_eq!(&run(&mut per_size, 5)?.as_slice::<f32>()?[..2], total);
    assert_eq!(&run(&mut per_size, 4)?.as_slice::<f32>()?[..2], total);
    Ok(())
}

#[test]
fn memory_limits_drop_forms_and_refuse_large_ones() -> Result<(), Failure> {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new());
    let new = PerSizeExecutable::new(backend.clone(), graph()?, CompileOptions::new());
    let mut per_size = new.with_limits(8, u64::MAX);
    per_size.set_param("w", Tensor::from_slice(&[2, 2], &[0f32; 4])?)?;
    run(&mut per_size, 100_000)?;
    let one = per_size.bytes();
    assert!(one > 0);
    let new = PerSizeExecutable::new(backend, graph()?, CompileOptions::new());
    let mut per_size = new.with_limits(8, one + one / 2);
    per_size.set_param("w", Tensor::from_slice(&[2, 2], &[0f32; 4])?)?;
    run(&mut per_size, 100_000)?;
    run(&mut per_size, 99_999)?;
    assert_eq!(per_size.forms(), 1, "two forms exceed the limit");
    run(&mut per_size, 10)?;
    assert_eq!(per_size.forms(), 2);
    let error = run(&mut per_size, 400_000).expect_err("the form exceeds the limit");
    let error = error.downcast::<PerSizeError>()?;
    assert!(matches!(*error, PerSizeError::TooLarge { .. }), "{error}");
    assert!(error.to_string().contains("s = 400000"), "{error}");
    // The other forms still run.
    run(&mut per_size, 10)?;
    Ok(())
}

/// A builder may use operators that need known sizes.
#[test]
fn builders_get_the_sizes_of_a_run() -> Result<(), Failure> {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new());
    let build = |sizes: &Bindings| {
        let rows = sizes.iter().next().map_or(0, |(_, n)| n);
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [rows, 2]))?;
        let bias = g.constant(
            Tensor::from_slice(&[rows, 1], &vec![rows as f32; rows]).expect("as many values"),
        )?;
        let y = g.plus(x, bias)?;
        g.output("y", y)?;
        Ok(g)
    };
    let mut per_size = PerSizeExecutable::from_builder(backend, CompileOptions::new(), build);
    for rows in [2, 7] {
        assert_eq!(
            run(&mut per_size, rows)?.as_slice::<f32>()?[0],
            1.0 + rows as f32
        );
    }
    let error = run(&mut per_size, 0);
    assert!(error.is_ok(), "no rows are a valid size");
    Ok(())
}
