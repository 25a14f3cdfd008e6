//! Tests that random operators follow their distributions. Seeds are fixed, so the tests are
//! deterministic; the bounds are about five standard errors.

use std::collections::BTreeMap;
use std::error::Error;

use tercet_ir::ops::SampleOptions;
use tercet_ir::{DType, EvalCtx, Graph, Tensor, Value, evaluate};

const N: usize = 100_000;

fn run(g: &Graph, v: Value, step: u64) -> Result<Vec<f64>, Box<dyn Error>> {
    Ok(evaluate(g, &EvalCtx::after(step), &BTreeMap::new())?
        .get(v)
        .to_f64s())
}

fn mean(x: &[f64]) -> f64 {
    x.iter().sum::<f64>() / x.len() as f64
}

fn variance(x: &[f64]) -> f64 {
    let m = mean(x);
    x.iter().map(|v| (v - m) * (v - m)).sum::<f64>() / x.len() as f64
}

fn correlation(x: &[f64], y: &[f64]) -> f64 {
    let (mx, my) = (mean(x), mean(y));
    let sum: f64 = x.iter().zip(y).map(|(a, b)| (a - mx) * (b - my)).sum();
    sum / x.len() as f64 / (variance(x) * variance(y)).sqrt()
}

fn near(what: &str, got: f64, want: f64, bound: f64) {
    assert!(
        (got - want).abs() <= bound,
        "{what}: {got}, expected {want} +- {bound}"
    );
}

fn check_independence(x: &[f64], other: &[f64]) {
    let bound = 5.0 / (N as f64).sqrt();
    near("neighbours", correlation(&x[1..], &x[..N - 1]), 0.0, bound);
    near("other draws", correlation(x, other), 0.0, bound);
}

#[test]
fn uniform_has_its_moments() -> Result<(), Box<dyn Error>> {
    for &dtype in DType::FLOATS {
        let mut g = Graph::new();
        let a = g.rng_uniform([N], dtype, -1.0, 3.0, 5)?;
        let b = g.rng_uniform([N], dtype, -1.0, 3.0, 5)?;
        let x = run(&g, a, 0)?;
        assert!(x.iter().all(|v| (-1.0..3.0).contains(v)));
        let root = (N as f64).sqrt();
        // Rounding error of coarse dtypes; half a step of BF16 near 3 is 2^-7.
        let rounding = if dtype == DType::BF16 {
            1.0 / 128.0
        } else {
            0.0
        };
        near(
            "mean",
            mean(&x),
            1.0,
            5.0 * (16.0f64 / 12.0).sqrt() / root + rounding,
        );
        near(
            "variance",
            variance(&x),
            16.0 / 12.0,
            5.0 * 1.2 / root + rounding,
        );
        check_independence(&x, &run(&g, a, 1)?);
        check_independence(&x, &run(&g, b, 0)?);
    }
    Ok(())
}

#[test]
fn normal_has_its_moments() -> Result<(), Box<dyn Error>> {
    for dtype in [DType::F32, DType::F64] {
        let mut g = Graph::new();
        let a = g.rng_normal([N], dtype, 2.0, 3.0, 5)?;
        let b = g.rng_normal([N], dtype, 2.0, 3.0, 5)?;
        let x = run(&g, a, 0)?;
        let root = (N as f64).sqrt();
        near("mean", mean(&x), 2.0, 5.0 * 3.0 / root);
        near(
            "variance",
            variance(&x),
            9.0,
            5.0 * 9.0 * 2f64.sqrt() / root,
        );
        for (sigmas, share) in [(1.0f64, 0.682689f64), (2.0, 0.954500), (3.0, 0.997300)] {
            let inside = x.iter().filter(|v| (*v - 2.0).abs() < 3.0 * sigmas).count();
            let bound = 5.0 * (share * (1.0 - share)).sqrt() / root;
            near(
                "share within sigmas",
                inside as f64 / N as f64,
                share,
                bound,
            );
        }
        check_independence(&x, &run(&g, a, 1)?);
        check_independence(&x, &run(&g, b, 0)?);
    }
    Ok(())
}

/// Draws from `N` rows of the same logits and compares the counts with the probabilities.
fn check_sample(options: SampleOptions, want: &[f64]) -> Result<(), Box<dyn Error>> {
    let logits: Vec<f32> = [0.125f32, 0.5, 0.0625, 0.25, 0.0625]
        .iter()
        .map(|p| p.ln())
        .collect();
    let mut g = Graph::new();
    let rows = g.constant(Tensor::from_slice(&[N, 5], &logits.repeat(N))?)?;
    let drawn = g.sample(rows, options, 12)?;
    let drawn = run(&g, drawn, 3)?;
    let mut chi_square = 0.0;
    for (index, &p) in want.iter().enumerate() {
        let count = drawn.iter().filter(|&&d| d == index as f64).count() as f64;
        let expected = p * N as f64;
        if p == 0.0 {
            assert_eq!(count, 0.0, "index {index} must not be drawn by {options:?}");
        } else {
            chi_square += (count - expected) * (count - expected) / expected;
        }
    }
    // The 0.999 quantile of chi-square with 4 degrees of freedom; with fewer it is smaller.
    assert!(chi_square < 18.47, "{options:?}: {chi_square}");
    Ok(())
}

#[test]
fn sample_follows_the_distribution() -> Result<(), Box<dyn Error>> {
    let all = SampleOptions::default();
    check_sample(all, &[0.125, 0.5, 0.0625, 0.25, 0.0625])?;
    check_sample(
        SampleOptions { top_k: 2, ..all },
        &[0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0, 0.0],
    )?;
    // 0.5 + 0.25 + 0.125 is the first sum that reaches 0.8.
    let nucleus = SampleOptions { top_p: 0.8, ..all };
    check_sample(nucleus, &[1.0 / 7.0, 4.0 / 7.0, 0.0, 2.0 / 7.0, 0.0])?;
    // A temperature of 1/2 squares the probabilities.
    let cold = SampleOptions {
        temperature: 0.5,
        ..all
    };
    let total = 1.0 + 16.0 + 0.25 + 4.0 + 0.25;
    check_sample(
        cold,
        &[
            1.0 / total,
            16.0 / total,
            0.25 / total,
            4.0 / total,
            0.25 / total,
        ],
    )?;
    check_sample(SampleOptions::greedy(), &[0.0, 1.0, 0.0, 0.0, 0.0])
}
