//! `Fft` of lengths that a workgroup holds and whose prime factors are at most 7, `RFft`, `IRFft` and
//! `Stft` of twice such lengths; rules make the others of these.
//!
//! Stockham's transform (1966) in registers and shared memory: each invocation takes some numbers of a row
//! through a radix, and rows change hands in shared memory between radices. Which radices, how many
//! numbers an invocation takes and how many rows a workgroup has follow from the length, so that the
//! kernel is written for it (`text.rs`). Real numbers are transformed two by two, as the parts of complex ones;
//! what is theirs is worked out of that as it is stored, or made into it as it is loaded. Frames of a signal are
//! read where they lie.

mod text;

use tercet_ir::ops::unit_root;
use tercet_ir::{CompileError, DType, Dim, Graph, Node, Op, OpKind, Support, Tensor, TensorType};

use self::text::{Plan, Way, text};
use super::rows::{Rows, WORKGROUP};
use super::{Family, missing};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::kernel::{Access, Params};
use crate::num::Num;

crate::params! {
    /// The block of the kernels.
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

/// `Fft`, `RFft`, `IRFft` and `Stft`.
pub(crate) static FFTS: Family = Family {
    name: "fft",
    ops: &[OpKind::Fft, OpKind::RFft, OpKind::IRFft, OpKind::Stft],
    kernels: &[],
    supports,
    lower,
};

/// A transform of complex numbers: how many, in which way, and the scale of results.
struct Transform {
    n: usize,
    way: Way,
    scale: f64,
}

impl Transform {
    /// None of an odd number of real numbers.
    fn of(graph: &Graph, node: &Node) -> Option<Transform> {
        let shape = &graph.ty(node.inputs[0]).shape;
        let (n, way, scale) = match &node.op {
            Op::Fft(o) => {
                let n = shape[shape.rank() - 2].known()?;
                let way = if o.inverse {
                    Way::Inverse
                } else {
                    Way::Forward
                };
                (n, way, o.norm.scale(o.inverse, n))
            }
            // Sums and differences of two, of which a half is meant.
            Op::RFft(o) => {
                let n = shape[shape.rank() - 1].known()?;
                (n, Way::OfReals, 0.5 * o.norm.scale(false, n))
            }
            Op::Stft(o) => (o.n, Way::OfFrames, 0.5),
            Op::IRFft(o) => (o.n, Way::ToReals, o.norm.scale(true, o.n)),
            _ => unreachable!("invariant: the family's operators only"),
        };
        let reals = way.reals() as usize;
        n.is_multiple_of(reals).then_some(Transform {
            n: n / reals,
            way,
            scale,
        })
    }

    fn plan(&self, caps: &Caps) -> Option<Plan> {
        Plan::of(self.n, caps.workgroup_bytes)
    }
}

fn supports(graph: &Graph, node: &Node, caps: &Caps) -> Support {
    let Some(transform) = Transform::of(graph, node) else {
        return missing("an odd number of real numbers makes no whole complex ones");
    };
    match transform.plan(caps) {
        Some(_) => Support::Native,
        None => {
            missing("the length is above what a workgroup holds, or has a prime factor above 7")
        }
    }
}

/// Rows of complex numbers: sizes and strides count numbers, not their parts.
struct Numbers {
    rows: Rows,
    stride: Num,
    /// True where neighbours lie in neighbouring rows.
    across: bool,
}

impl Numbers {
    /// The rows of `[.., n, 2]`; nothing where the parts of a number are not side by side in a place that
    /// a kernel can address.
    fn of(e: &mut Emit<'_>, x: &View) -> Result<Option<Numbers>, CompileError> {
        let rank = x.layout.shape().len();
        let mut rows = Rows::of(e, x, &[rank - 2, rank - 1])?;
        let at = rows.kept as usize;
        let along = [
            rows.strides[at],
            rows.strides[at + usize::from(rows.along == 2)],
        ];
        let stride = match rows.along {
            1 => Num::Const(2),
            _ => along[0],
        };
        let kept = &mut rows.strides[..at];
        let tape = e.tape();
        let even = kept.iter().chain([&stride, &rows.offset]);
        if along[1] != Num::ONE || even.into_iter().any(|s| !tape.is_multiple(*s, 2)) {
            return Ok(None);
        }
        for stride in kept.iter_mut() {
            *stride = tape.div(*stride, 2u32);
        }
        let across = stride != Num::Const(2) && kept.last() == Some(&Num::ONE);
        rows.offset = tape.div(rows.offset, 2u32);
        let stride = tape.div(stride, 2u32);
        Ok(Some(Numbers {
            rows,
            stride,
            across,
        }))
    }
}

impl Numbers {
    /// The rows of `x` where it lies or as a copy, which is then `x`.
    fn found(e: &mut Emit<'_>, x: &mut View) -> Result<Numbers, CompileError> {
        if let Some(numbers) = Numbers::of(e, x)? {
            return Ok(numbers);
        }
        *x = e.dense(x)?;
        let numbers = Numbers::of(e, x)?;
        Ok(numbers.unwrap_or_else(|| {
            unreachable!("invariant: the pairs of a dense tensor lie side by side")
        }))
    }

    /// Frames of signals, `hop` apart; strides count elements.
    fn frames(
        e: &mut Emit<'_>,
        x: &View,
        frames: &Dim,
        hop: usize,
    ) -> Result<Numbers, CompileError> {
        let mut rows = Rows::of(e, x, &[x.layout.shape().len() - 1])?;
        let (at, stride) = (rows.kept as usize, rows.stride());
        let frames = e.num(frames);
        let tape = e.tape();
        rows.sizes[at] = frames;
        rows.strides[at] = tape.mul(stride, Num::Const(hop as i64));
        rows.kept += 1;
        rows.rows = tape.mul(rows.rows, frames);
        Ok(Numbers {
            rows,
            stride,
            across: false,
        })
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let transform = Transform::of(e.graph, node);
    let Some((t, plan)) = transform.and_then(|t| t.plan(e.caps).map(|plan| (t, plan))) else {
        unreachable!("invariant: the family supports the node")
    };
    let mut x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let numbers = match &node.op {
        Op::Stft(op) => {
            let shape = y.layout.shape();
            Numbers::frames(e, &x, &shape[shape.len() - 3], op.hop)?
        }
        Op::RFft(_) => {
            x = in_pairs(e, &x)?;
            Numbers::found(e, &mut x)?
        }
        _ => Numbers::found(e, &mut x)?,
    };
    let Numbers {
        rows,
        stride,
        across,
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
    let mut access = vec![Access::Read];
    let mut args = vec![x.slot];
    if t.way == Way::OfFrames {
        let window = e.view(node.inputs[1]);
        access.push(Access::Read);
        args.push(e.dense(&window)?.slot);
    }
    if plan.has_roots(t.way) {
        access.push(Access::Read);
        args.push(roots(e, t.n * t.way.reals() as usize)?.slot);
    }
    access.push(Access::Write);
    args.push(y.slot);
    let groups = e.tape().ceil_div(rows.rows, plan.rows());
    let grid = e.flat_grid(groups);
    let name = format!(
        "{} n={} x={} across={}",
        match t.way {
            Way::Forward => "fft",
            Way::Inverse => "fft_inverse",
            Way::OfReals => "rfft",
            Way::ToReals => "irfft",
            Way::OfFrames => "stft",
        },
        t.n * t.way.reals() as usize,
        x.dtype,
        u8::from(across)
    );
    let text = text(&plan, x.dtype, t.way, across);
    e.dispatch_wgsl(&name, text, &access, &args, &params.words(), grid);
    Ok(())
}

/// Real numbers `[.., n]` as `[.., n / 2, 2]`; a copy where they do not lie so.
fn in_pairs(e: &mut Emit<'_>, x: &View) -> Result<View, CompileError> {
    let mut shape = x.layout.shape().to_vec();
    let n = shape.pop().and_then(|n| n.known()).unwrap_or(0);
    shape.extend([Dim::Known(n / 2), Dim::Known(2)]);
    let mut x = x.clone();
    if x.layout.reshape(&shape).is_none() {
        x = e.dense(&x)?;
    }
    let layout = x.layout.reshape(&shape);
    let layout = layout.unwrap_or_else(|| unreachable!("invariant: dense views reshape"));
    Ok(View { layout, ..x })
}

/// `e^(-2 pi i k / n)` for `k` below `n`.
fn roots(e: &mut Emit<'_>, n: usize) -> Result<View, CompileError> {
    let values: Vec<f64> = (0..n).flat_map(|k| unit_root(k, n)).collect();
    let ty = TensorType::new(DType::F32, &[n, 2]);
    let table = Tensor::from_f64s(ty, &values);
    e.constant(table.unwrap_or_else(|_| unreachable!("invariant: two values a root")))
}

impl Plan {
    /// Rows of a workgroup.
    fn rows(&self) -> u32 {
        WORKGROUP / self.threads
    }
}
