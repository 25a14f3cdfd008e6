//! Times of single kernels. Each kernel runs until Burn's autotuning is done and the GPU has left
//! its idle clock. Then the kernel is measured in rounds of several runs; the result is the median
//! over the rounds.

use std::time::{Duration, Instant};

use burn::tensor::activation::{gelu, softmax};
use burn::tensor::module::attention;
use burn::tensor::ops::AttentionModuleOptions;
use burn::tensor::{DType, Device, Distribution, Tensor};

const WARM: Duration = Duration::from_millis(400);
const ROUNDS: usize = 12;
/// The target duration of a round, long compared to one synchronization.
const ROUND: Duration = Duration::from_millis(10);
const MAX_RUNS: usize = 20;

struct Bench {
    device: Device,
    filter: String,
}

impl Bench {
    fn random<const D: usize>(&self, shape: [usize; D], dtype: DType) -> Tensor<D> {
        Tensor::random(
            shape,
            Distribution::Uniform(-1.0, 1.0),
            (&self.device, dtype),
        )
    }

    fn sync(&self) {
        self.device
            .sync()
            .expect("the device runs the kernel");
    }

    /// Prints the time of `run`. The result is retained until it has been computed.
    fn time<R>(&self, name: &str, run: impl Fn() -> R) {
        if !name.contains(&self.filter) {
            return;
        }
        let begin = Instant::now();
        let mut once = Duration::MAX;
        while begin.elapsed() < WARM {
            let start = Instant::now();
            let result = run();
            self.sync();
            once = once.min(start.elapsed());
            drop(result);
        }
        let runs = (ROUND.as_secs_f64() / once.as_secs_f64()) as usize;
        let runs = runs.clamp(1, MAX_RUNS);
        let mut times: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let start = Instant::now();
                let results: Vec<R> = (0..runs).map(|_| run()).collect();
                self.sync();
                let time = start.elapsed().as_secs_f64();
                drop(results);
                time / runs as f64
            })
            .collect();
        times.sort_by(f64::total_cmp);
        println!("{name} {:.1}", times[ROUNDS / 2] * 1e6);
    }

    fn products(&self) {
        for (dtype, name) in [
            (DType::F16, "f16"),
            (DType::BF16, "bf16"),
            (DType::F32, "f32"),
        ] {
            for n in [1024, 2048, 4096, 8192] {
                let (a, b) = (self.random([n, n], dtype), self.random([n, n], dtype));
                self.time(&format!("gemm/{name}/{n}"), || a.clone().matmul(b.clone()));
            }
        }
        for (k, n) in [(768, 3072), (768, 768), (768, 2304)] {
            let a = self.random([4096, k], DType::F16);
            let b = self.random([k, n], DType::F16);
            let bias = self.random([1, n], DType::F16);
            self.time(&format!("bert/f16/{k}x{n}"), || {
                gelu(a.clone().matmul(b.clone()) + bias.clone())
            });
        }
        for n in [4096, 14336] {
            let (a, b) = (
                self.random([1, 4096], DType::F16),
                self.random([4096, n], DType::F16),
            );
            self.time(&format!("gemv/f16/{n}"), || a.clone().matmul(b.clone()));
        }
    }

    fn rows(&self) {
        let x = self.random([8192, 4096], DType::F32);
        self.time("softmax/f32", || softmax(x.clone(), 1));
        self.time("gelu/f32", || gelu(x.clone()));
        self.time("row_sum/f32", || x.clone().sum_dim(1));
        self.time("cumsum/f32", || x.clone().cumsum(1));
        let chain = self.random([64 << 20], DType::F32);
        self.time("chain/f32", || {
            let y = (chain.clone() * 1.5 + 0.25).tanh() * 0.5 - 0.125;
            (y.clone() * y).sqrt() + 1.0
        });
    }

    fn attention(&self) {
        for (dtype, name) in [(DType::F16, "f16"), (DType::F32, "f32")] {
            let tensor = || self.random([8, 16, 1024, 64], dtype);
            let (q, k, v) = (tensor(), tensor(), tensor());
            self.time(&format!("attention/{name}"), || {
                let options = AttentionModuleOptions::default();
                attention(q.clone(), k.clone(), v.clone(), None, None, options)
            });
        }
    }
}

/// Prints the times of all kernels whose names contain `filter`.
pub(crate) fn all(device: Device, filter: &str) {
    let filter = filter.to_string();
    let bench = Bench { device, filter };
    bench.products();
    bench.rows();
    bench.attention();
}
