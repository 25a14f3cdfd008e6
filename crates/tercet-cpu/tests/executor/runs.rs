//! Guarantees of the executor other than correct values: states, sharing, threads.

use std::thread;

use tercet_cpu::CpuBackend;
use tercet_ir::fill::InputFill;
use tercet_ir::{
    Backend, CompileOptions, DType, Dim, EvalError, Graph, OpError, RunError, Tensor, TensorType,
    Type,
};

fn cache() -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [1, 2]))?;
    let at = g.input("at", Type::new(DType::I32, [2]))?;
    let pick = g.input("pick", Type::new(DType::I32, [1]))?;
    let s = g.state("s", Type::new(DType::F32, [4, 2]))?;
    let new = g.dynamic_update_slice(s, x, at)?;
    g.assign(s, new)?;
    // A node that may fail reads the state after it was written.
    let row = g.gather(new, pick, 0)?;
    g.output("row", row)?;
    Ok(g)
}

#[test]
fn a_failed_run_takes_back_what_it_wrote_to_a_state() -> Result<(), Box<dyn std::error::Error>> {
    let mut exe = CpuBackend::new().compile(&cache()?, &CompileOptions::new())?;
    let start = Tensor::from_slice(&[4, 2], &[0f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0])?;
    exe.write_state("s", &start)?;
    let x = Tensor::from_slice(&[1, 2], &[10f32, 11.0])?;
    let at = Tensor::from_slice(&[2], &[2i32, 0])?;
    let good = Tensor::from_slice(&[1], &[2i32])?;
    let bad = Tensor::from_slice(&[1], &[4i32])?;
    let failed = exe.run(&[("x", &x), ("at", &at), ("pick", &bad)]);
    match failed {
        Err(RunError::Node { op, source, .. }) => {
            assert_eq!(
                (op, source),
                ("gather", EvalError::Index { index: 4, len: 4 })
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(exe.read_state("s")?, start);
    let row = exe.run(&[("x", &x), ("at", &at), ("pick", &good)])?;
    assert_eq!(row[0], x);
    assert_eq!(
        exe.read_state("s")?.as_slice::<f32>()?[3..7],
        [3.0, 10.0, 11.0, 6.0]
    );
    Ok(())
}

fn mlp() -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [Dim::sym("s"), Dim::Known(300)]))?;
    let w = g.param("w", Type::new(DType::F32, [300, 400]))?;
    let scale = g.param("scale", Type::new(DType::F32, [400]))?;
    let scaled = g.mul(w, scale)?;
    let h = g.matmul(x, scaled)?;
    let h = g.gelu(h)?;
    let y = g.softmax(h, 1)?;
    g.output("y", y)?;
    Ok(g)
}

fn filled(name: &str, shape: &[usize]) -> Tensor {
    InputFill::Normal.tensor(name, TensorType::new(DType::F32, shape))
}

#[test]
fn threads_and_clones_give_the_same_bits() -> Result<(), Box<dyn std::error::Error>> {
    let options = CompileOptions::new().bound("s", 512);
    let x = filled("x", &[512, 300]);
    let mut results = Vec::new();
    for threads in [1, 2, 5] {
        let mut exe = CpuBackend::with_threads(threads)?.compile(&mlp()?, &options)?;
        exe.set_param("w", filled("w", &[300, 400]))?;
        exe.set_param("scale", filled("scale", &[400]))?;
        results.push(exe.run(&[("x", &x)])?);
        let copies: Vec<_> = (0..3).map(|_| exe.try_clone()).collect::<Result<_, _>>()?;
        let running = copies.into_iter().map(|mut exe| {
            let x = x.clone();
            thread::spawn(move || exe.run(&[("x", &x)]))
        });
        for handle in running.collect::<Vec<_>>() {
            results.push(handle.join().expect("the thread ends")?);
        }
    }
    assert!(results.iter().all(|r| r == &results[0]));
    Ok(())
}

#[test]
fn batched_products_run_at_sizes_below_the_bound() -> Result<(), Box<dyn std::error::Error>> {
    let mut g = Graph::new();
    let (n, b) = (Dim::sym("n"), Dim::Known(24));
    let x = g.input(
        "x",
        Type::new(DType::F32, [b.clone(), n.clone(), Dim::Known(64)]),
    )?;
    let w = g.input("w", Type::new(DType::F32, [b, Dim::Known(64), n]))?;
    let y = g.matmul(x, w)?;
    g.output("y", y)?;
    // At the bound, threads share each product. At smaller sizes, each thread computes several
    // products, which needs more memory.
    let options = CompileOptions::new().bound("n", 1100);
    let run = |threads, n: usize| -> Result<Tensor, Box<dyn std::error::Error>> {
        let mut exe = CpuBackend::with_threads(threads)?.compile(&g, &options)?;
        let (x, w) = (filled("x", &[24, n, 64]), filled("w", &[24, 64, n]));
        Ok(exe.run(&[("x", &x), ("w", &w)])?.remove(0))
    };
    for n in [1, 7, 100, 300, 500, 900] {
        let want = run(1, n)?;
        for threads in [2, 3, 5, 8] {
            assert!(run(threads, n)? == want, "{threads} threads, size {n}");
        }
    }
    Ok(())
}

#[test]
fn runs_inside_a_pool_of_the_caller_end_with_the_same_bits()
-> Result<(), Box<dyn std::error::Error>> {
    let options = CompileOptions::new().bound("s", 512);
    let x = filled("x", &[512, 300]);
    let mut exe = CpuBackend::with_threads(3)?.compile(&mlp()?, &options)?;
    exe.set_param("w", filled("w", &[300, 400]))?;
    exe.set_param("scale", filled("scale", &[400]))?;
    let want = exe.run(&[("x", &x)])?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build()?;
    let copies: Vec<_> = (0..8).map(|_| exe.try_clone()).collect::<Result<_, _>>()?;
    drop(exe);
    let (send, results) = std::sync::mpsc::channel();
    pool.scope(|scope| {
        for mut exe in copies {
            let (send, x) = (send.clone(), &x);
            scope.spawn(move |_| {
                for _ in 0..3 {
                    send.send(exe.run(&[("x", x)]))
                        .expect("the receiver exists");
                }
            });
        }
    });
    drop(send);
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    assert!(results.len() == 24 && results.iter().all(|r| *r == want));
    Ok(())
}

#[test]
fn a_parameter_set_again_changes_what_depends_on_it() -> Result<(), Box<dyn std::error::Error>> {
    let options = CompileOptions::new().bound("s", 8);
    let x = filled("x", &[3, 300]);
    let fresh = |w: &str, scale: &str| -> Result<Vec<Tensor>, Box<dyn std::error::Error>> {
        let mut exe = CpuBackend::new().compile(&mlp()?, &options)?;
        exe.set_param("w", filled(w, &[300, 400]))?;
        exe.set_param("scale", filled(scale, &[400]))?;
        Ok(exe.run(&[("x", &x)])?)
    };
    let mut exe = CpuBackend::new().compile(&mlp()?, &options)?;
    exe.set_param("w", filled("w", &[300, 400]))?;
    let missing = exe.run(&[("x", &x)]);
    assert!(matches!(
        missing,
        Err(RunError::Missing { what: "param", .. })
    ));
    exe.set_param("scale", filled("scale", &[400]))?;
    assert_eq!(exe.run(&[("x", &x)])?, fresh("w", "scale")?);
    exe.set_param("scale", filled("other", &[400]))?;
    assert_eq!(exe.run(&[("x", &x)])?, fresh("w", "other")?);
    exe.set_param("w", filled("v", &[300, 400]))?;
    assert_eq!(exe.run(&[("x", &x)])?, fresh("v", "other")?);
    Ok(())
}
