//! Measures which tiling is best for which product on this device.
//!
//! Each candidate computes the same product from the same operands; some elements are compared with
//! sums in f64. A candidate that fails or is wrong is never the best. The times are of the device,
//! so the backend has to be opened with timestamps.

use std::thread;
use std::time::{Duration, Instant};

use tercet_ir::backend::Wanted;
use tercet_ir::{
    CompileError, CompileOptions, DType, Executable, Graph, RunError, Tensor, TensorError,
    TensorType, Type,
};
use tercet_plan::gemm_coop::Tiling;
use tercet_plan::{CoopType, Problem, Tuning};

use crate::backend::VulkanBackend;

/// How one candidate did.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The median time on the device.
    Seconds(f64),
    /// Why it cannot be used.
    Failed(String),
}

/// How all candidates did on one product.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The product.
    pub problem: Problem,
    /// Name and outcome of each candidate, the fastest first, failed ones last.
    pub candidates: Vec<(String, Outcome)>,
}

impl Measured {
    /// The name of the fastest candidate that was right.
    pub fn best(&self) -> Option<&str> {
        match self.candidates.first() {
            Some((name, Outcome::Seconds(_))) => Some(name),
            Some((_, Outcome::Failed(_))) | None => None,
        }
    }
}

/// Why a candidate was not measured.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Compile(#[from] CompileError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Tensor(#[from] TensorError),
    #[error("{0}")]
    Other(String),
}

fn type_of(dtype: DType) -> Option<CoopType> {
    match dtype {
        DType::F16 => Some(CoopType::F16),
        DType::BF16 => Some(CoopType::BF16),
        _ => None,
    }
}

/// The names of the candidates for a product on this device.
pub fn candidates(backend: &VulkanBackend, problem: &Problem) -> Vec<String> {
    let all = type_of(problem.dtype).map(|ty| Tiling::candidates_for(backend.caps(), ty, problem));
    let all = all.unwrap_or_default();
    all.iter().map(Tiling::to_string).collect()
}

/// Makes the pipelines of candidates on several threads, so that measuring does not wait for each: the
/// name, the type of the factors, and whether the right one is `[n, k]`.
pub fn prepare(backend: &VulkanBackend, ways: &[(String, DType, bool)]) {
    const THREADS: usize = 8;
    let next = std::sync::atomic::AtomicUsize::new(0);
    let work = || {
        loop {
            let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let Some((name, dtype, b_transposed)) = ways.get(at) else {
                return;
            };
            let problem = Problem {
                dtype: *dtype,
                b_transposed: *b_transposed,
                m: 64,
                n: 64,
                k: 64,
            };
            // A candidate that cannot be made is reported when it is measured.
            let _ = compile(backend, &problem, name);
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 1..cores.min(THREADS) {
            scope.spawn(work);
        }
        work();
    });
}

/// Keeps the device busy for a while: an idle one clocks down, and making operands takes a while.
fn warm_up(backend: &VulkanBackend, name: &str, problem: &Problem) -> Result<(), Failure> {
    const WHILE: Duration = Duration::from_millis(500);
    // Long enough that the device does not wait for the host.
    const SIZE: usize = 2048;
    let problem = Problem {
        m: SIZE,
        n: SIZE,
        k: SIZE,
        ..*problem
    };
    let mut exe = compile(backend, &problem, name)?;
    let mut outputs = Vec::new();
    let began = Instant::now();
    while began.elapsed() < WHILE {
        exe.submit(&[], Wanted::Only(&[]))?;
        exe.wait(&mut outputs)?;
    }
    Ok(())
}

/// Measures candidates by name on one product.
///
/// # Errors
/// [`CompileError`] when the operands cannot be made.
pub fn measure(
    backend: &VulkanBackend,
    problem: &Problem,
    names: &[String],
) -> Result<Measured, CompileError> {
    let operands = Operands::of(problem).map_err(|e| CompileError::Device {
        reason: e.to_string(),
    })?;
    if let Some(name) = names.first() {
        // What fails here fails again where it is reported.
        let _ = warm_up(backend, name, problem);
    }
    let mut best = f64::INFINITY;
    let mut candidates = Vec::new();
    for name in names {
        let outcome = match operands.time(backend, name, best) {
            Ok(seconds) => {
                best = best.min(seconds);
                Outcome::Seconds(seconds)
            }
            Err(e) => Outcome::Failed(tercet_ir::one_line(&e)),
        };
        candidates.push((name.clone(), outcome));
    }
    let key = |outcome: &Outcome| match outcome {
        Outcome::Seconds(s) => *s,
        Outcome::Failed(_) => f64::INFINITY,
    };
    candidates.sort_by(|a, b| key(&a.1).total_cmp(&key(&b.1)));
    Ok(Measured {
        problem: *problem,
        candidates,
    })
}

/// The product of two states, by one way; the states are named `a` and `b`.
fn compile(
    backend: &VulkanBackend,
    p: &Problem,
    name: &str,
) -> Result<Box<dyn Executable>, Failure> {
    let other = |e: tercet_ir::OpError| Failure::Other(e.to_string());
    let mut g = Graph::new();
    let a = g
        .state("a", Type::new(p.dtype, [p.m, p.k]))
        .map_err(other)?;
    let b = match p.b_transposed {
        false => g.state("b", Type::new(p.dtype, [p.k, p.n])),
        true => g.state("b", Type::new(p.dtype, [p.n, p.k])),
    };
    let mut b = b.map_err(other)?;
    if p.b_transposed {
        b = g.transpose(b, &[1, 0]).map_err(other)?;
    }
    let y = g.matmul(a, b).map_err(other)?;
    g.output("y", y).map_err(other)?;
    let backend = backend.tuned(Tuning::always(name));
    // Where it does not apply, another way would be measured under its name.
    let aligned = p.n.is_multiple_of(8) && p.k.is_multiple_of(8);
    let chosen = type_of(p.dtype).and_then(|ty| Tiling::choose(backend.caps(), ty, p, aligned));
    let applies = chosen.is_some_and(|t| t.to_string() == name);
    let program = backend.plan(&g, &CompileOptions::new())?;
    let tiled = ["gemm_coop", "gemm_block"];
    let tiled = |k: &tercet_plan::Instance| tiled.iter().any(|t| k.name.starts_with(t));
    if !applies || !program.kernels.iter().any(tiled) {
        return Err(Failure::Other("does not compute this product".to_string()));
    }
    Ok(Box::new(backend.compile_gpu(&g, &CompileOptions::new())?))
}

/// Elements that are compared, as rows and columns of so many each.
const ROWS: usize = 5;
const COLUMNS: usize = 37;

struct Operands {
    problem: Problem,
    a: Tensor,
    b: Tensor,
    /// Row, column, sum, and how large its terms are.
    wanted: Vec<(usize, usize, f64, f64)>,
}

impl Operands {
    fn of(problem: &Problem) -> Result<Operands, TensorError> {
        let p = *problem;
        let b_shape = if p.b_transposed {
            [p.n, p.k]
        } else {
            [p.k, p.n]
        };
        let a = pattern(p.dtype, [p.m, p.k], 0x9E37_79B9_7F4A_7C15)?;
        let b = pattern(p.dtype, b_shape, 0xD1B5_4A32_D192_ED03)?;
        let mut wanted = Vec::new();
        for i in spread(p.m, ROWS) {
            for j in spread(p.n, COLUMNS) {
                let (mut sum, mut squares) = (0.0, 0.0);
                for l in 0..p.k {
                    let at = if p.b_transposed {
                        j * p.k + l
                    } else {
                        l * p.n + j
                    };
                    let term = element(&a, i * p.k + l) * element(&b, at);
                    sum += term;
                    squares += term * term;
                }
                wanted.push((i, j, sum, squares.sqrt()));
            }
        }
        Ok(Operands {
            problem: p,
            a,
            b,
            wanted,
        })
    }

    /// The median time of a candidate that is right. One that is far behind `best` is run once.
    fn time(&self, backend: &VulkanBackend, name: &str, best: f64) -> Result<f64, Failure> {
        const ENOUGH: Duration = Duration::from_millis(15);
        let mut exe = compile(backend, &self.problem, name)?;
        exe.write_state("a", &self.a)?;
        exe.write_state("b", &self.b)?;
        let mut outputs = Vec::new();
        let mut times = Vec::new();
        let mut began = Instant::now();
        for run in 0.. {
            exe.submit(&[], Wanted::Only(&[]))?;
            exe.wait(&mut outputs)?;
            let steps = exe.timings();
            let start = steps.iter().map(|s| s.start_ns).min();
            let end = steps.iter().map(|s| s.start_ns + s.ns).max();
            let (Some(start), Some(end)) = (start, end) else {
                return Err(Failure::Other("the device measures no times".to_string()));
            };
            let seconds = (end - start) as f64 * 1e-9;
            // The first run finds caches cold and may find the device clocked down.
            if run == 0 {
                began = Instant::now();
                if seconds < 3.0 * best {
                    continue;
                }
            }
            times.push(seconds);
            let runs = times.len();
            if seconds > 3.0 * best || runs >= 25 || runs >= 3 && began.elapsed() > ENOUGH {
                break;
            }
        }
        self.check(&mut *exe)?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2])
    }

    fn check(&self, exe: &mut dyn Executable) -> Result<(), Failure> {
        let allowed = match self.problem.dtype {
            DType::F16 => 2e-3,
            _ => 1e-2,
        };
        for row in self.wanted.chunks(COLUMNS.min(self.problem.n)) {
            let i = row[0].0;
            let got = exe.read_output_rows("y", i..i + 1)?;
            for &(_, j, wanted, scale) in row {
                let found = element(&got, j);
                // Written so that NaN is wrong, too.
                let right = (found - wanted).abs() <= allowed * (wanted.abs() + scale);
                if !right {
                    let what = format!("[{i}, {j}] is {found} instead of {wanted}");
                    return Err(Failure::Other(what));
                }
            }
        }
        Ok(())
    }
}

/// Up to `count` different places below `n`, both ends among them.
fn spread(n: usize, count: usize) -> impl Iterator<Item = usize> {
    let count = count.min(n);
    (0..count).map(move |i| match count {
        1 => 0,
        _ => i * (n - 1) / (count - 1),
    })
}

/// Numbers in [-1, 1); beyond a million elements a prime number of them repeats.
fn pattern(dtype: DType, shape: [usize; 2], seed: u64) -> Result<Tensor, TensorError> {
    const MOST: usize = 999_983;
    let ty = TensorType::new(dtype, &shape);
    let mut state = seed;
    let part: Vec<f64> = (0..ty.numel().min(MOST))
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f64 / f64::from(1u32 << 23) - 1.0
        })
        .collect();
    let part = Tensor::from_f64s(TensorType::new(dtype, &[part.len()]), &part)?;
    let mut bytes = Vec::with_capacity(ty.size_bytes());
    while bytes.len() < ty.size_bytes() {
        let rest = ty.size_bytes() - bytes.len();
        bytes.extend_from_slice(&part.bytes()[..rest.min(part.bytes().len())]);
    }
    Tensor::from_bytes(ty, &bytes)
}

/// An element of a tensor of 16-bit floats.
fn element(t: &Tensor, at: usize) -> f64 {
    let bits = [t.bytes()[2 * at], t.bytes()[2 * at + 1]];
    let bits = u16::from_le_bytes(bits);
    match t.dtype() {
        DType::BF16 => f64::from(f32::from_bits(u32::from(bits) << 16)),
        _ => half_to_f64(bits),
    }
}

fn half_to_f64(bits: u16) -> f64 {
    let fraction = f64::from(bits & 0x3ff);
    let magnitude = match (bits >> 10) & 31 {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        exponent => (1024.0 + fraction) * 2f64.powi(i32::from(exponent) - 25),
    };
    if bits & 0x8000 == 0 {
        magnitude
    } else {
        -magnitude
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_spread_to_both_ends() {
        assert_eq!(spread(10, 4).collect::<Vec<_>>(), [0, 3, 6, 9]);
        assert_eq!(spread(2, 5).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(spread(1, 5).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn elements_are_those_of_the_tensor() {
        for dtype in [DType::F16, DType::BF16] {
            let values = [0.0, -1.5, 6e-8, 65504.0, f64::INFINITY];
            let t = Tensor::from_f64s(TensorType::new(dtype, &[5]), &values).unwrap();
            let found: Vec<f64> = (0..5).map(|at| element(&t, at)).collect();
            assert_eq!(found, t.to_f64s());
        }
    }
}
