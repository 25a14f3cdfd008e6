//! Products with one constant share its packed form, as in the steps of an unrolled loop.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;

use tercet_cpu::CpuBackend;
use tercet_ir::fill::InputFill;
use tercet_ir::{
    Backend, CompileOptions, DType, EvalCtx, Graph, Tensor, TensorType, Type, evaluate,
};

/// Megabytes of memory that this process uses.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with("VmRSS"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number
        .and_then(|n| n.parse::<u64>().ok())
        .expect("a number")
        / 1024
}

fn filled(shape: &[usize]) -> Tensor {
    InputFill::Normal.tensor("x", TensorType::new(DType::F32, shape))
}

/// The sum of 40 products with 4 MB weights, half of them with the transposed weights.
#[test]
fn steps_with_the_same_weights_pack_them_once() -> Result<(), Box<dyn std::error::Error>> {
    const SIZE: usize = 1024;
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [1, SIZE]))?;
    let w = g.constant(filled(&[SIZE, SIZE]))?;
    let turned = g.transpose(w, &[1, 0])?;
    let mut y = x;
    for at in 0..40 {
        let factor = g.scalar(DType::F32, 1.0 + f64::from(at))?;
        let own = g.mul(x, factor)?;
        let weights = if at % 2 == 0 { w } else { turned };
        let product = g.matmul(own, weights)?;
        y = g.plus(y, product)?;
    }
    g.output("y", y)?;
    let x = filled(&[1, SIZE]);
    let leaves = BTreeMap::from([("x".to_string(), x.clone())]);
    let want = evaluate(&g, &EvalCtx::default(), &leaves)?.get(y).clone();
    let before = resident();
    let mut exe = CpuBackend::new().compile(&g, &CompileOptions::new())?;
    let got = exe.run(&[("x", &x)])?;
    let used = resident() - before;
    assert!(used < 64, "{used} MB for two forms of 4 MB");
    let (got, want) = (got[0].to_f64s(), want.to_f64s());
    let greatest = want.iter().fold(0.0, |most: f64, w| most.max(w.abs()));
    let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs());
    let off = off.fold(0.0, f64::max);
    assert!(off < 1e-4 * greatest, "off by {off} of {greatest}");
    Ok(())
}
