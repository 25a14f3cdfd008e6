//! `Fft` of rows, distributed over threads.
//!
//! Lengths with small prime factors use Stockham's transform (1966), radix by radix between two
//! buffers. Other lengths become a convolution that is computed by transforms of a power of two
//! (Bluestein 1970). Roots of unity are computed once, in `f64`. If the length is a symbol, the
//! tables of the last lengths are kept.

use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{cast_slice, cast_slice_mut};
use tercet_ir::layout::Layout;
use tercet_ir::ops::{check_fft_length, unit_root};
use tercet_ir::{Graph, Node, Op, OpKind, Support};

use crate::args::KernelArgs;
use crate::kernels::KernelThreads;
use crate::kernels::parallel::{DisjointChunks, for_each_part};
use crate::lower::elem::{REALS, native_for};
use crate::lower::{CpuKernel, LoweredNode, through_f32};

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[through_f32("fft", OpKind::Fft, supports, lower)];

/// Complex number as `[real, imaginary]`.
type Complex32 = [f32; 2];

/// Largest prime factor that is used as a radix.
const GREATEST_RADIX: usize = 31;

pub(crate) fn supports(graph: &Graph, node: &Node) -> Support {
    native_for(REALS, graph.ty(node.inputs[0]).dtype)
}

pub(crate) fn lower(graph: &Graph, node: &Node) -> LoweredNode {
    let Op::Fft(op) = &node.op else {
        unreachable!("invariant: the kernel table maps only `Fft` to this row")
    };
    let ty = graph.ty(node.inputs[0]);
    let (inverse, norm) = (op.inverse, op.norm);
    let symbolic = ty.shape[ty.rank() - 2].known().is_none();
    let plans = CpuFftPlans::default();
    if let Some(n) = ty.shape[ty.rank() - 2].known() {
        plans.get(n, inverse);
    }
    LoweredNode {
        fallible: symbolic,
        scratch: Some(Box::new(move |layouts, threads| {
            let n = length(&layouts[0]);
            let share = match symbolic {
                true => greatest_scratch_len(n),
                false => scratch_len(n),
            };
            share * threads.max(1) * size_of::<Complex32>()
        })),
        work: |layouts| layouts[0].numel() * 8,
        ..LoweredNode::new(1, move |args: &mut KernelArgs<'_>| {
            let n = length(args.ins[0].layout);
            check_fft_length(n)?;
            run(&plans.get(n, inverse), norm.scale(inverse, n) as f32, args);
            Ok(())
        })
    }
}

/// The length of the transform of an operand `[.., n, 2]`.
fn length(layout: &Layout) -> usize {
    layout.shape()[layout.shape().len() - 2]
}

/// The plans of the last lengths, the most recent last.
#[derive(Debug, Default)]
struct CpuFftPlans(Mutex<Vec<Arc<CpuFftPlan>>>);

impl CpuFftPlans {
    fn get(&self, n: usize, inverse: bool) -> Arc<CpuFftPlan> {
        /// Maximum number of plans.
        const KEPT: usize = 8;
        let find = |plans: &mut Vec<Arc<CpuFftPlan>>| {
            let at = plans.iter().position(|plan| plan.n == n)?;
            let plan = plans.remove(at);
            plans.push(plan.clone());
            Some(plan)
        };
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plan) = find(&mut lock()) {
            return plan;
        }
        let plan = Arc::new(CpuFftPlan::new(n, inverse));
        let mut plans = lock();
        if plans.len() == KEPT {
            plans.remove(0);
        }
        plans.push(plan.clone());
        plan
    }
}

/// Maximum of [`scratch_len`] for all lengths up to this one: memory is reserved for the bound of a
/// symbol.
pub fn greatest_scratch_len(n: usize) -> usize {
    match n > GREATEST_RADIX {
        true => 2 * (2 * n - 1).next_power_of_two(),
        false => n,
    }
}

/// Number of complex numbers that the scratch memory of one row of this length holds.
pub fn scratch_len(n: usize) -> usize {
    match radices(n.max(1)).last() {
        Some(&greatest) if greatest > GREATEST_RADIX => {
            2 * (2 * n).saturating_sub(1).next_power_of_two()
        }
        _ => n,
    }
}

fn run(plan: &CpuFftPlan, scale: f32, args: &mut KernelArgs<'_>) {
    let x: &[Complex32] = cast_slice(args.ins[0].dense::<f32>());
    let y: &mut [Complex32] = cast_slice_mut(args.outs[0].as_mut::<f32>());
    if y.is_empty() {
        return;
    }
    y.copy_from_slice(x);
    let scratch: &mut [Complex32] = cast_slice_mut(args.scratch);
    let (n, share) = (plan.n, plan.scratch());
    let transform = |rows: &mut [Complex32], scratch: &mut [Complex32]| {
        for row in rows.chunks_exact_mut(n) {
            plan.transform(row, scratch);
            row.iter_mut().for_each(|v| *v = v.map(|part| part * scale));
        }
    };
    if !args.parallel {
        return transform(y, &mut scratch[..share]);
    }
    let part = (y.len() / n).div_ceil(scratch.len() / share) * n;
    let parts = (
        DisjointChunks::new(y, part),
        DisjointChunks::new(scratch, share),
    );
    for_each_part(KernelThreads::Pool, parts, |_, (rows, scratch)| {
        transform(rows, scratch)
    });
}

fn times(a: Complex32, b: Complex32) -> Complex32 {
    [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]]
}

fn plus(a: Complex32, b: Complex32) -> Complex32 {
    [a[0] + b[0], a[1] + b[1]]
}

fn minus(a: Complex32, b: Complex32) -> Complex32 {
    [a[0] - b[0], a[1] - b[1]]
}

fn conjugate(a: Complex32) -> Complex32 {
    [a[0], -a[1]]
}

/// Precomputed data for transforms of one length and direction.
#[derive(Debug)]
pub struct CpuFftPlan {
    n: usize,
    radices: Vec<usize>,
    /// Twiddle factors `e^(-2 pi i k / n)`, or their conjugates.
    roots: Vec<Complex32>,
    convolution: Option<Box<BluesteinFft>>,
}

/// Data to compute a transform as a convolution with the chirp `e^(pi i j^2 / n)` (Bluestein).
#[derive(Debug)]
struct BluesteinFft {
    /// Plan for transforms of the padded length, a power of two.
    inner: CpuFftPlan,
    chirps: Vec<Complex32>,
    /// The transformed chirp, divided by the padded length.
    against: Vec<Complex32>,
}

impl CpuFftPlan {
    /// Prepares transforms of length `n`, or inverse ones.
    pub fn new(n: usize, inverse: bool) -> CpuFftPlan {
        let sign = if inverse { -1.0 } else { 1.0 };
        let root = |k: usize, n: usize| {
            let [re, im] = unit_root(k, n);
            [re as f32, (sign * im) as f32]
        };
        let radices = radices(n);
        if radices.last().is_none_or(|&r| r <= GREATEST_RADIX) {
            return CpuFftPlan {
                n,
                radices,
                roots: (0..n).map(|k| root(k, n)).collect(),
                convolution: None,
            };
        }
        let m = (2 * n - 1).next_power_of_two();
        let inner = CpuFftPlan::new(m, false);
        let square = |j: usize| (j as u128 * j as u128 % (2 * n as u128)) as usize;
        let chirps: Vec<Complex32> = (0..n).map(|j| root(square(j), 2 * n)).collect();
        let mut against = vec![[0.0; 2]; m];
        for (j, chirp) in chirps.iter().enumerate() {
            against[j] = conjugate(*chirp);
            against[(m - j) % m] = conjugate(*chirp);
        }
        inner.transform(&mut against, &mut vec![[0.0; 2]; m]);
        let scale = 1.0 / m as f32;
        against
            .iter_mut()
            .for_each(|v| *v = v.map(|part| part * scale));
        CpuFftPlan {
            n,
            radices: Vec::new(),
            roots: Vec::new(),
            convolution: Some(Box::new(BluesteinFft {
                inner,
                chirps,
                against,
            })),
        }
    }

    /// Number of complex numbers that the scratch memory of one row holds.
    pub fn scratch(&self) -> usize {
        match &self.convolution {
            Some(convolution) => 2 * convolution.inner.n,
            None => self.n,
        }
    }

    /// Transforms one row in place.
    fn transform(&self, row: &mut [Complex32], scratch: &mut [Complex32]) {
        if let Some(convolution) = &self.convolution {
            return convolution.transform(row, scratch);
        }
        let (mut from, mut to) = (row, &mut scratch[..self.n]);
        let mut before = 1;
        for &radix in &self.radices {
            match radix {
                2 => self.pass::<2>(from, to, before, |a, _| {
                    [plus(a[0], a[1]), minus(a[0], a[1])]
                }),
                4 => self.pass::<4>(from, to, before, |a, quarter| {
                    let (even, odd) = (plus(a[0], a[2]), plus(a[1], a[3]));
                    let rest = minus(a[0], a[2]);
                    let turned = times(minus(a[1], a[3]), quarter);
                    [
                        plus(even, odd),
                        plus(rest, turned),
                        minus(even, odd),
                        minus(rest, turned),
                    ]
                }),
                _ => self.pass_of(from, to, before, radix),
            }
            before *= radix;
            (from, to) = (to, from);
        }
        if self.radices.len() % 2 == 1 {
            // The last pass wrote the scratch memory; copy the result back.
            to.copy_from_slice(from);
        }
    }

    /// One pass of radix `R`; `before` is the product of the previous radices. `dft` transforms `R`
    /// numbers; it also gets the factor of a quarter turn, which is i or -i depending on the
    /// direction.
    fn pass<const R: usize>(
        &self,
        from: &[Complex32],
        to: &mut [Complex32],
        before: usize,
        dft: impl Fn([Complex32; R], Complex32) -> [Complex32; R],
    ) {
        let count = self.n / R;
        let step = self.n / (before * R);
        let quarter = self.roots[self.n / 4 * usize::from(R == 4)];
        for (block, to) in to.chunks_exact_mut(before * R).enumerate() {
            for k in 0..before {
                let at = block * before + k;
                let a = std::array::from_fn(|r| match r {
                    0 => from[at],
                    _ => times(from[at + r * count], self.roots[k * r * step]),
                });
                for (r, v) in dft(a, quarter).into_iter().enumerate() {
                    to[k + r * before] = v;
                }
            }
        }
    }

    /// One pass of any radix that evaluates the definition of the DFT.
    fn pass_of(&self, from: &[Complex32], to: &mut [Complex32], before: usize, radix: usize) {
        let count = self.n / radix;
        let step = self.n / (before * radix);
        let mut a = [[0.0; 2]; GREATEST_RADIX];
        for (block, to) in to.chunks_exact_mut(before * radix).enumerate() {
            for k in 0..before {
                for (r, a) in a[..radix].iter_mut().enumerate() {
                    let x = from[block * before + k + r * count];
                    *a = times(x, self.roots[k * r * step]);
                }
                for s in 0..radix {
                    let terms = a[..radix].iter().enumerate();
                    let sum = terms.fold([0.0; 2], |sum, (r, a)| {
                        plus(sum, times(*a, self.roots[r * s % radix * count]))
                    });
                    to[k + s * before] = sum;
                }
            }
        }
    }
}

impl BluesteinFft {
    fn transform(&self, row: &mut [Complex32], scratch: &mut [Complex32]) {
        let (x, rest) = scratch.split_at_mut(self.inner.n);
        let (filled, zeros) = x.split_at_mut(row.len());
        for ((to, x), chirp) in filled.iter_mut().zip(&*row).zip(&self.chirps) {
            *to = times(*x, *chirp);
        }
        zeros.fill([0.0; 2]);
        self.inner.transform(x, rest);
        // The inverse transform is the conjugate of the transform of the conjugates.
        for (x, against) in x.iter_mut().zip(&self.against) {
            *x = conjugate(times(*x, *against));
        }
        self.inner.transform(x, rest);
        for ((to, x), chirp) in row.iter_mut().zip(&*x).zip(&self.chirps) {
            *to = times(conjugate(*x), *chirp);
        }
    }
}

/// Radices of a length: first 4, then 2, then odd primes in ascending order.
pub fn radices(n: usize) -> Vec<usize> {
    let twos = n.trailing_zeros() as usize;
    let mut radices = vec![4; twos / 2];
    radices.extend((twos % 2 == 1).then_some(2));
    let (mut rest, mut p) = (n >> twos, 3);
    while p * p <= rest {
        match rest.is_multiple_of(p) {
            true => {
                radices.push(p);
                rest /= p;
            }
            false => p += 2,
        }
    }
    radices.extend((rest > 1).then_some(rest));
    radices
}
