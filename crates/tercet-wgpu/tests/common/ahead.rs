//! Runs that repeat the previous run, whose commands are encoded in advance, and runs that differ.

use tercet_ir::backend::OutputSelection;
use tercet_ir::scalar::BinaryFn;
use tercet_ir::{Backend, CompileOptions, DType, Executable, Graph, RunError, Tensor, Type};
use tercet_wgpu::{WgpuBackend, WgpuOptions};

use super::{Done, Test, bounds, run, two_steps, want};

/// The tests of this file.
pub(crate) const TESTS: &[(&str, Test)] = &[
    ("runs_alike_and_other_ones", runs_alike_and_other_ones),
    ("runs_alike_with_other_reads", runs_alike_with_other_reads),
    (
        "runs_alike_with_other_parameters",
        runs_alike_with_other_parameters,
    ),
    (
        "a_device_lost_between_runs_alike",
        a_device_lost_between_runs_alike,
    ),
];

/// Repetitions until the commands of a run have been encoded during the previous one, plus one.
const ALIKE: usize = 4;

fn scaled(n: usize, by: f32) -> Tensor {
    let values: Vec<f32> = (0..n).map(|i| by * (i as f32 - 3.0)).collect();
    Tensor::from_slice(&[n], &values).unwrap()
}

fn runs_alike_and_other_ones(backend: &WgpuBackend) -> Done {
    // The smaller input is gathered, the larger one is not.
    for bound in [1000, 30_000] {
        let mut exe = backend.load(two_steps(bound as u64), bounds(bound))?;
        for (i, n) in [5, 1000, 7, 0, 65, bound, 5].into_iter().enumerate() {
            for k in 0..ALIKE {
                let x = scaled(n, (i * ALIKE + k + 1) as f32);
                assert_eq!(run(&mut exe, &x)?, [want(&x)], "size {n}, run {k}");
            }
        }
    }
    Ok(())
}

/// A graph with the running sum of all inputs, and twice that sum.
fn sums() -> Result<Graph, Box<dyn std::error::Error>> {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [3]))?;
    let s = g.state("s", Type::new(DType::F32, [3]))?;
    let sum = g.binary(BinaryFn::Add, s, x)?;
    let twice = g.binary(BinaryFn::Add, sum, sum)?;
    g.output("sum", sum)?;
    g.output("twice", twice)?;
    g.assign(s, sum)?;
    Ok(g)
}

fn runs_alike_with_other_reads(backend: &WgpuBackend) -> Done {
    let mut exe = backend.compile(&sums()?, &CompileOptions::new())?;
    let (mut sum, mut outputs) = (0.0, Vec::new());
    let of = |t: &Tensor| t.as_slice::<f32>().map(<[f32]>::to_vec);
    for round in 0..3 {
        for names in [&["sum", "twice"][..], &["twice"], &[]] {
            for k in 0..ALIKE {
                let add = (round + k) as f32;
                sum += add;
                let x = Tensor::from_slice(&[3], &[add; 3])?;
                exe.submit(&[("x", &x)], OutputSelection::Only(names))?;
                exe.wait(&mut outputs)?;
                let factors = names.iter().map(|n| if *n == "sum" { 1.0 } else { 2.0 });
                let wanted: Vec<_> = factors.map(|f: f32| vec![f * sum; 3]).collect();
                let got: Vec<_> = outputs.iter().map(of).collect::<Result<_, _>>()?;
                assert_eq!(got, wanted);
            }
            // Read an output between two runs, then start a run whose results are never read.
            assert_eq!(of(&exe.read_output_rows("twice", 1..2)?)?, [2.0 * sum]);
            assert_eq!(of(&exe.read_state("s")?)?, [sum; 3]);
            let x = Tensor::from_slice(&[3], &[1f32; 3])?;
            exe.submit(&[("x", &x)], OutputSelection::Only(names))?;
            sum += 1.0;
        }
        exe.wait(&mut outputs)?;
        exe.write_state("s", &Tensor::from_slice(&[3], &[0.5f32; 3])?)?;
        sum = 0.5;
    }
    Ok(())
}

fn runs_alike_with_other_parameters(backend: &WgpuBackend) -> Done {
    let mut g = Graph::new();
    let p = g.param("p", Type::new(DType::F32, [1, 2]))?;
    let t = g.transpose(p, &[1, 0])?;
    let y = g.binary(BinaryFn::Add, t, t)?;
    g.output("y", y)?;
    let p = |k: f32| Tensor::from_slice(&[1, 2], &[k, -k]).unwrap();
    let check = |exe: &mut dyn Executable, k: f32| -> Done {
        for _ in 0..ALIKE {
            let y = exe.run(&[])?;
            assert_eq!(y[0].as_slice::<f32>()?, [2.0 * k, -2.0 * k]);
        }
        Ok(())
    };
    let mut a = backend.compile(&g, &CompileOptions::new())?;
    a.set_param("p", p(1.0))?;
    check(&mut *a, 1.0)?;
    a.set_param("p", p(2.0))?;
    check(&mut *a, 2.0)?;
    let mut b = a.try_clone()?;
    check(&mut *b, 2.0)?;
    // From here on the two clones have separate parameters.
    b.set_param("p", p(3.0))?;
    check(&mut *b, 3.0)?;
    check(&mut *a, 2.0)?;
    Ok(())
}

fn a_device_lost_between_runs_alike(_: &WgpuBackend) -> Done {
    let backend = WgpuBackend::new(&WgpuOptions::new())?;
    let mut exe = backend.load(two_steps(10), bounds(10))?;
    let x = scaled(10, 1.0);
    for _ in 0..ALIKE {
        assert_eq!(run(&mut exe, &x)?, [want(&x)]);
    }
    backend.destroy();
    let lost = |e: &RunError| matches!(e, RunError::DeviceLost { .. });
    for _ in 0..2 {
        assert!(lost(&run(&mut exe, &x).unwrap_err()));
    }
    Ok(())
}
