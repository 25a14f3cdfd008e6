//! Lowering of `Fft`, `RFft`, `IRFft` and `Stft` for lengths that one workgroup can transform and
//! whose prime factors are at most 7. Transforms of real numbers may be twice as long. Rewrite
//! rules reduce all other lengths to supported lengths. Symbolic lengths are transformed pass by
//! pass (`fft/symbolic.rs`).
//!
//! The algorithm is the Stockham FFT (1966) in registers and shared memory. In each pass, a thread
//! computes butterflies of one radix on several elements of a row; between passes, the threads
//! exchange elements through shared memory. The length determines the radices, the elements per
//! thread and the rows per workgroup, so kernels are generated per length (`fft/text.rs`).
//! Transforms of real numbers pack two reals into one complex number; the load or store of the
//! kernel converts between both spectra. STFT frames are read directly from the signal.

mod symbolic;
pub(crate) mod text;

use tercet_ir::ops::{Fft, unit_root};
use tercet_ir::{CompileError, DType, Dim, Graph, Node, Op, OpKind, Support, Tensor, TensorType};

use self::text::{FftKernelPlan, FftKind, text};
use super::rows::{RowLayout, WORKGROUP};
use super::{Lowering, missing};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;
use tercet_program::{ArgAccess, ParamBlock};

crate::params! {
    /// Parameter block of the FFT kernels.
    pub struct FftParams {
        sizes: U32x8,
        strides: U32x8,
        kept: U32,
        offset: U32,
        rows: U32,
        stride: U32,
        scale: F32,
    }
}

/// Lowering of `Fft`, `RFft`, `IRFft` and `Stft`.
pub(crate) static FFTS: Lowering = Lowering {
    name: "fft",
    ops: &[OpKind::Fft, OpKind::RFft, OpKind::IRFft, OpKind::Stft],
    kernels: &[&symbolic::LOAD.def, &symbolic::PASS.def],
    supports,
    lower,
};

/// The transform of a node: its length, its kind, and the factor by which results are scaled.
struct FftProblem {
    n: usize,
    kind: FftKind,
    scale: f64,
}

impl FftProblem {
    /// The transform of a node; `None` for a real transform of odd length.
    fn new(graph: &Graph, node: &Node) -> Option<FftProblem> {
        let shape = &graph.ty(node.inputs[0]).shape;
        let (n, way, scale) = match &node.op {
            Op::Fft(o) => {
                let n = shape[shape.rank() - 2].known()?;
                let way = if o.inverse {
                    FftKind::Inverse
                } else {
                    FftKind::Forward
                };
                (n, way, o.norm.scale(o.inverse, n))
            }
            // The factor of one half is part of the formula that recovers a real spectrum: the
            // kernel computes only the sum and difference of two terms.
            Op::RFft(o) => {
                let n = shape[shape.rank() - 1].known()?;
                (n, FftKind::Reals, 0.5 * o.norm.scale(false, n))
            }
            Op::Stft(o) => (o.n, FftKind::WindowedFrames, 0.5),
            Op::IRFft(o) => (o.n, FftKind::ToReals, o.norm.scale(true, o.n)),
            _ => unreachable!("invariant: a lowering receives only its own operators"),
        };
        let reals = way.reals() as usize;
        n.is_multiple_of(reals).then_some(FftProblem {
            n: n / reals,
            kind: way,
            scale,
        })
    }

    fn plan(&self, caps: &DeviceCaps) -> Option<FftKernelPlan> {
        FftKernelPlan::new(self.n, caps.workgroup_bytes)
    }
}

/// The transform of a node, if its length is symbolic.
fn of_symbol<'a>(graph: &Graph, node: &'a Node) -> Option<&'a Fft> {
    let shape = &graph.ty(node.inputs[0]).shape;
    match &node.op {
        Op::Fft(op) if shape[shape.rank() - 2].known().is_none() => Some(op),
        _ => None,
    }
}

fn supports(graph: &Graph, node: &Node, caps: &DeviceCaps) -> Support {
    if of_symbol(graph, node).is_some() {
        return Support::Native;
    }
    let Some(transform) = FftProblem::new(graph, node) else {
        return missing("real transforms require a known, even length");
    };
    match transform.plan(caps) {
        Some(_) => Support::Native,
        None => missing(
            "the length exceeds the shared memory of a workgroup, or has a prime factor above 7",
        ),
    }
}

/// Rows of complex numbers in memory; sizes and strides count complex numbers.
struct ComplexRows {
    rows: RowLayout,
    stride: SymInt,
    /// True if neighbors in memory belong to different rows, because the transformed axis is not
    /// contiguous.
    is_strided: bool,
}

impl ComplexRows {
    /// The rows of a view `[.., n, 2]`. `None` if the real and imaginary parts of a number are not
    /// adjacent, or not aligned to the size of a complex number.
    fn new(e: &mut LoweringCtx<'_>, x: &SlotView) -> Result<Option<ComplexRows>, CompileError> {
        let rank = x.layout.shape().len();
        let mut rows = RowLayout::new(e, x, &[rank - 2, rank - 1])?;
        let at = rows.kept as usize;
        let along = [
            rows.strides[at],
            rows.strides[at + usize::from(rows.along == 2)],
        ];
        let stride = match rows.along {
            1 => SymInt::Const(2),
            _ => along[0],
        };
        let kept = &mut rows.strides[..at];
        let tape = e.tape();
        let even = kept.iter().chain([&stride, &rows.offset]);
        if along[1] != SymInt::ONE || even.into_iter().any(|s| !tape.is_multiple(*s, 2)) {
            return Ok(None);
        }
        for stride in kept.iter_mut() {
            *stride = tape.div(*stride, 2u32);
        }
        let across = stride != SymInt::Const(2) && kept.last() == Some(&SymInt::ONE);
        rows.offset = tape.div(rows.offset, 2u32);
        let stride = tape.div(stride, 2u32);
        Ok(Some(ComplexRows {
            rows,
            stride,
            is_strided: across,
        }))
    }
}

impl ComplexRows {
    /// The rows of complex numbers in `x`. If kernels cannot read the layout of `x`, a dense copy
    /// replaces `x`.
    fn locate(e: &mut LoweringCtx<'_>, x: &mut SlotView) -> Result<ComplexRows, CompileError> {
        if let Some(numbers) = ComplexRows::new(e, x)? {
            return Ok(numbers);
        }
        *x = e.dense(x)?;
        let numbers = ComplexRows::new(e, x)?;
        Ok(numbers.unwrap_or_else(|| {
            unreachable!("invariant: the complex numbers of a dense tensor are contiguous")
        }))
    }

    /// The rows of an STFT: overlapping frames of a signal, each `hop` elements after the previous
    /// one; strides count real elements.
    fn frames(
        e: &mut LoweringCtx<'_>,
        x: &SlotView,
        frames: &Dim,
        hop: usize,
    ) -> Result<ComplexRows, CompileError> {
        let mut rows = RowLayout::new(e, x, &[x.layout.shape().len() - 1])?;
        let (at, stride) = (rows.kept as usize, rows.stride());
        let frames = e.num(frames);
        let tape = e.tape();
        rows.sizes[at] = frames;
        rows.strides[at] = tape.mul(stride, SymInt::Const(hop as i64));
        rows.kept += 1;
        rows.rows = tape.mul(rows.rows, frames);
        Ok(ComplexRows {
            rows,
            stride,
            is_strided: false,
        })
    }
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    if let Some(op) = of_symbol(e.graph, node) {
        return symbolic::lower(e, node, op);
    }
    let transform = FftProblem::new(e.graph, node);
    let Some((t, plan)) = transform.and_then(|t| t.plan(e.caps).map(|plan| (t, plan))) else {
        unreachable!("invariant: the lowering supports the node")
    };
    let mut x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let numbers = match &node.op {
        Op::Stft(op) => {
            let shape = y.layout.shape();
            ComplexRows::frames(e, &x, &shape[shape.len() - 3], op.hop)?
        }
        Op::RFft(_) => {
            x = as_complex(e, &x)?;
            ComplexRows::locate(e, &mut x)?
        }
        _ => ComplexRows::locate(e, &mut x)?,
    };
    let ComplexRows {
        rows,
        stride,
        is_strided: across,
    } = numbers;
    let params = FftParams {
        sizes: rows.sizes,
        strides: rows.strides,
        kept: rows.kept.into(),
        offset: rows.offset,
        rows: rows.rows,
        stride,
        scale: t.scale as f32,
    };
    let mut access = vec![ArgAccess::Read];
    let mut args = vec![x.slot];
    if t.kind == FftKind::WindowedFrames {
        let window = e.view(node.inputs[1]);
        access.push(ArgAccess::Read);
        args.push(e.dense(&window)?.slot);
    }
    if plan.has_roots(t.kind) {
        access.push(ArgAccess::Read);
        args.push(roots(e, t.n * t.kind.reals() as usize)?.slot);
    }
    access.push(ArgAccess::Write);
    args.push(y.slot);
    let groups = e.tape().ceil_div(rows.rows, plan.rows());
    let grid = e.flat_grid(groups);
    let name = format!(
        "{} n={} x={} across={}",
        match t.kind {
            FftKind::Forward => "fft",
            FftKind::Inverse => "fft_inverse",
            FftKind::Reals => "rfft",
            FftKind::ToReals => "irfft",
            FftKind::WindowedFrames => "stft",
        },
        t.n * t.kind.reals() as usize,
        x.dtype,
        u8::from(across)
    );
    let text = text(&plan, x.dtype, t.kind, across);
    e.dispatch_wgsl(&name, text, &access, &args, &params.words(), grid);
    Ok(())
}

/// Views reals `[.., n]` as complex numbers `[.., n / 2, 2]`; makes a dense copy if the layout does
/// not allow this view.
fn as_complex(e: &mut LoweringCtx<'_>, x: &SlotView) -> Result<SlotView, CompileError> {
    let mut shape = x.layout.shape().to_vec();
    let n = shape.pop().and_then(|n| n.known()).unwrap_or(0);
    shape.extend([Dim::Known(n / 2), Dim::Known(2)]);
    let mut x = x.clone();
    if x.layout.reshape(&shape).is_none() {
        x = e.dense(&x)?;
    }
    let layout = x.layout.reshape(&shape);
    let layout = layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape"));
    Ok(SlotView { layout, ..x })
}

/// Slot with the table of roots of unity `e^(-2 pi i k / n)` for all `k` below `n`.
fn roots(e: &mut LoweringCtx<'_>, n: usize) -> Result<SlotView, CompileError> {
    let values: Vec<f64> = (0..n).flat_map(|k| unit_root(k, n)).collect();
    let ty = TensorType::new(DType::F32, &[n, 2]);
    let table = Tensor::from_f64s(ty, &values);
    e.constant(table.unwrap_or_else(|_| unreachable!("invariant: two values per root")))
}

impl FftKernelPlan {
    /// Rows per workgroup.
    fn rows(&self) -> u32 {
        WORKGROUP / self.threads
    }
}
