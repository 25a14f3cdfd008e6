//! Maps of a single function of integers: computed in the integers' own width, without registers of 64 bits.

use bytemuck::{Pod, Zeroable};
use tercet_ir::ops::{IndexMap, Map, MapArg};
use tercet_ir::scalar::{BinaryFn, Scalar, ScalarOp, UnaryFn, convert};
use tercet_ir::{DType, EvalError};

use super::TASKS_PER_THREAD;
use super::body::{MapBodyInput, MapRegister, MapRegisterClass};
use super::geometry::{MapBlock, MapGeometry};
use crate::args::KernelArgs;
use crate::kernels::native_int::NativeInt;
use crate::kernels::parallel::{SharedMut, for_each};
use crate::kernels::{KernelThreads, SimdLevel};
use crate::lower::{AcceptedLayout, LoweredNode};

/// Elements of a block: operands that are not contiguous fill a buffer of this size.
const BLOCK: usize = 2048;
/// Minimum elements of a parallel task.
const TASK: usize = 1 << 14;

/// The function of the single step.
#[derive(Clone, Copy, Debug)]
enum NativeFn {
    Unary(UnaryFn),
    Binary(BinaryFn),
}

/// An operand of the step.
#[derive(Clone, Copy, Debug)]
enum NativeArg {
    Input(usize),
    Const(i64),
}

/// Lowers a map of one function of booleans, or of integers of a width below 64 bits. `None` for other maps.
pub(super) fn lower(map: &Map, inputs: &[DType], dtypes: &[DType]) -> Option<LoweredNode> {
    let last = map.body.len().checked_sub(1)?;
    let dtype = *dtypes.get(last)?;
    let run = match dtype {
        DType::I16 => run::<i16>,
        DType::I8 => run::<i8>,
        // Booleans are bytes of 0 and 1.
        DType::U8 | DType::Bool => run::<u8>,
        DType::I32 => run::<i32>,
        DType::U32 => run::<u32>,
        DType::I64 | DType::F32 | DType::F16 | DType::BF16 | DType::F64 => {
            return None;
        }
    };
    let constant = |op: &ScalarOp| matches!(op, ScalarOp::Const(..));
    let (step, others) = map.body.split_last()?;
    let plain = others.iter().all(|step| constant(&step.op))
        && map.results == [last]
        && inputs.iter().chain(dtypes).all(|d| *d == dtype)
        && map
            .inputs
            .iter()
            .flat_map(|input| &input.axes)
            .all(|axis| axis.shift == 0);
    if !plain {
        return None;
    }
    let negates = step.op == ScalarOp::Unary(UnaryFn::Not) && dtype == DType::Bool;
    let f = match step.op {
        _ if negates => NativeFn::Binary(BinaryFn::Xor),
        ScalarOp::Unary(
            f @ (UnaryFn::Relu | UnaryFn::Neg | UnaryFn::Abs | UnaryFn::Sign | UnaryFn::Not),
        ) => NativeFn::Unary(f),
        ScalarOp::Binary(BinaryFn::Pow | BinaryFn::Atan2) => return None,
        ScalarOp::Binary(f) => NativeFn::Binary(f),
        _ => return None,
    };
    let arg = |arg: &MapArg| match *arg {
        MapArg::Input(i) => NativeArg::Input(i),
        MapArg::Step(s) => match map.body[s].op {
            ScalarOp::Const(_, value) => match convert(Scalar::F(value.0), dtype) {
                Scalar::I(i) => NativeArg::Const(i),
                Scalar::F(x) => NativeArg::Const(x as i64),
            },
            _ => NativeArg::Const(0),
        },
    };
    let mut args: Vec<NativeArg> = step.args.iter().map(arg).collect();
    args.extend(negates.then_some(NativeArg::Const(1)));
    let input = |map: &IndexMap| MapBodyInput {
        map: map.clone(),
        dtype,
        // Operands are read in place, or through a buffer.
        reg: MapRegister {
            offset: 0,
            class: MapRegisterClass::Int,
        },
    };
    let body: Vec<MapBodyInput> = map.inputs.iter().map(input).collect();
    let level = SimdLevel::detect();
    Some(LoweredNode {
        accepts: vec![AcceptedLayout::Any; inputs.len()],
        ..LoweredNode::new(inputs.len(), move |call: &mut KernelArgs<'_>| {
            run(level, f, &args, &body, call);
            Ok::<(), EvalError>(())
        })
    })
}

fn run<T: NativeInt + FromWord>(
    level: SimdLevel,
    f: NativeFn,
    args: &[NativeArg],
    inputs: &[MapBodyInput],
    call: &mut KernelArgs<'_>,
) {
    let (ins, out) = (&call.ins, &mut call.outs[0]);
    let geometry = MapGeometry::new(inputs, ins, out.layout.shape(), BLOCK);
    let blocks = geometry.blocks();
    if blocks == 0 {
        return;
    }
    let threads = KernelThreads::parallel(call.parallel);
    let tasks = match threads.count() {
        1 => 1,
        n => (n * TASKS_PER_THREAD)
            .min(out.layout.numel() / TASK)
            .clamp(1, blocks),
    };
    let to: SharedMut<T> = SharedMut::new(bytemuck::cast_slice_mut(out.bytes));
    for_each(threads, tasks, |task| {
        let mut buffers = [[T::zeroed(); BLOCK]; 2];
        // A constant fills its buffer once.
        for (buffer, arg) in buffers.iter_mut().zip(args) {
            if let NativeArg::Const(value) = arg {
                buffer.fill(T::from_word(*value));
            }
        }
        for nth in task * blocks / tasks..(task + 1) * blocks / tasks {
            let block = geometry.block(nth);
            // SAFETY: blocks are disjoint ranges of the result, and each belongs to one task.
            let out = unsafe { to.slice(block.start, block.len) };
            let [first, second] = &mut buffers;
            let mut slices: [&[T]; 2] = [&[]; 2];
            for ((slice, buffer), arg) in slices.iter_mut().zip([first, second]).zip(args) {
                *slice = match *arg {
                    NativeArg::Const(_) => &buffer[..block.len],
                    NativeArg::Input(i) => load(&geometry, &block, i, ins[i].root_as(), buffer),
                };
            }
            match f {
                NativeFn::Unary(f) => T::run_unary(level, f, slices[0], out),
                NativeFn::Binary(f) => T::run_binary(level, f, slices[0], slices[1], out),
            };
        }
    });
}

/// The elements of an operand for a block: its own memory, or the buffer.
fn load<'a, T: Pod>(
    geometry: &MapGeometry,
    block: &MapBlock,
    input: usize,
    root: &'a [T],
    buffer: &'a mut [T; BLOCK],
) -> &'a [T] {
    let walk = &geometry.walks[input];
    if let Some(start) = geometry.contiguous(walk, block) {
        return &root[start..][..block.len];
    }
    let buffer = &mut buffer[..block.len];
    let stride = geometry.row(walk, block.row).1;
    let starts = geometry.row_starts(walk, block.row);
    for (part, at) in buffer.chunks_mut(block.cols).zip(starts) {
        let mut at = at + block.col as isize * stride;
        match stride {
            0 => part.fill(root[at as usize]),
            1 => part.copy_from_slice(&root[at as usize..][..part.len()]),
            _ => {
                for x in part {
                    *x = root[at as usize];
                    at += stride;
                }
            }
        }
    }
    buffer
}

/// Conversion of a constant.
trait FromWord: Zeroable {
    fn from_word(x: i64) -> Self;
}

macro_rules! words {
    ($($t:ty),*) => {$(impl FromWord for $t {
        fn from_word(x: i64) -> $t { x as $t }
    })*};
}
words!(i8, u8, i16, i32, u32);
