//! `Philox`, `RngUniform` and `RngNormal`.
//!
//! Each block of random words gives four elements (two of F64), as defined by
//! [`tercet_ir::random`]. The results equal those of the reference bit for bit.

use half::{bf16, f16};
use tercet_ir::random::{PhiloxStream, UniformRange, philox4x32};
use tercet_ir::{DType, Element, Graph, Node, Op, OpKind};

use crate::args::KernelArgs;
use crate::lower::elem::parts;
use crate::lower::{CpuKernel, LoweredNode, always, kernel};
use tercet_ir::layout::Layout;

/// The kernels of this file.
pub(super) const KERNELS: &[CpuKernel] = &[
    kernel("rng_uniform", OpKind::RngUniform, always, lower),
    kernel("rng_normal", OpKind::RngNormal, always, lower),
    kernel("philox", OpKind::Philox, always, lower_words),
];

/// Elements per parallel task; a multiple of a block of random words.
const TASK: usize = 1 << 12;
/// Elements that are generated together.
const GROUP: usize = 4;

/// Distribution of the elements of four consecutive positions.
#[derive(Clone, Copy, Debug)]
enum RngDistribution {
    Uniform(UniformRange),
    Normal { mean: f64, std: f64 },
}

impl RngDistribution {
    /// The elements from position `4 * group` on.
    fn group(self, stream: PhiloxStream, dtype: DType, group: u64) -> [f64; GROUP] {
        match self {
            RngDistribution::Uniform(range) => stream.units(dtype, group).map(|u| range.value(u)),
            RngDistribution::Normal { mean, std } => {
                stream.normals(dtype, group).map(|z| mean + std * z)
            }
        }
    }
}

pub(crate) fn lower(_: &Graph, node: &Node) -> LoweredNode {
    let dtype = node.outputs[0].dtype;
    let (draw, seed, stream) = match &node.op {
        Op::RngUniform(op) => {
            let range = UniformRange::new(dtype, op.lo.0, op.hi.0);
            let range = range.expect("invariant: inference checked the range");
            (RngDistribution::Uniform(range), op.seed, op.stream)
        }
        Op::RngNormal(op) => {
            let draw = RngDistribution::Normal {
                mean: op.mean.0,
                std: op.std.0,
            };
            (draw, op.seed, op.stream)
        }
        _ => unreachable!("invariant: the kernel table maps only random tensors to this row"),
    };
    LoweredNode {
        work: |layouts| layouts.iter().map(Layout::numel).sum::<usize>() * 16,
        ..LoweredNode::new(0, move |args: &mut KernelArgs<'_>| {
            let stream = args.ctx.random.stream(seed, stream);
            match dtype {
                DType::F16 => fill(draw, stream, args, |x| {
                    f16::from_f64(DType::F16.round_f64(x))
                }),
                DType::BF16 => {
                    fill(draw, stream, args, |x| {
                        bf16::from_f64(DType::BF16.round_f64(x))
                    });
                }
                DType::F64 => fill(draw, stream, args, |x| x),
                DType::F32
                | DType::I32
                | DType::U32
                | DType::I64
                | DType::I16
                | DType::I8
                | DType::U8
                | DType::Bool => fill(draw, stream, args, |x| x as f32),
            }
            Ok(())
        })
    }
}

/// Lowers `Philox`: the random words of the provided counters.
pub(crate) fn lower_words(_: &Graph, _: &Node) -> LoweredNode {
    LoweredNode::new(2, |args: &mut KernelArgs<'_>| {
        let (counters, key) = (args.ins[0].dense::<u32>(), args.ins[1].dense::<u32>());
        let key = [key[0], key[1]];
        parts(args.parallel, args.outs[0].as_mut(), TASK, |i, out| {
            let counters = counters[i * TASK..].as_chunks::<GROUP>().0;
            let (words, _) = out.as_chunks_mut::<GROUP>();
            for (words, counter) in words.iter_mut().zip(counters) {
                *words = philox4x32(*counter, key);
            }
        });
        Ok(())
    })
}

fn fill<T: Element>(
    draw: RngDistribution,
    stream: PhiloxStream,
    args: &mut KernelArgs<'_>,
    round: impl Fn(f64) -> T + Send + Sync,
) {
    parts(args.parallel, args.outs[0].as_mut::<T>(), TASK, |i, out| {
        for (j, out) in out.chunks_mut(GROUP).enumerate() {
            let group = (i * TASK / GROUP + j) as u64;
            let values = draw.group(stream, T::DTYPE, group);
            out.iter_mut().zip(values).for_each(|(y, x)| *y = round(x));
        }
    });
}
