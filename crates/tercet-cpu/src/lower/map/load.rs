//! Loads operands into registers, and stores registers into results.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use smallvec::SmallVec;
use tercet_ir::DType;

use super::body::{MapRegister, MapRegisterClass};
use super::geometry::{MapBlock, MapOperandWalk};
use super::{BLOCK, MapTaskArgs};
use crate::kernels::{SimdLevel, convert};

/// Location of an operand's elements for one block.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapOperandSource {
    /// The elements are in the operand's memory, from this element on.
    Root(usize),
    /// The elements were loaded into the operand's register.
    Reg,
}

/// Loads the operands that cannot be read in place.
pub(super) fn load(
    job: &MapTaskArgs<'_>,
    block: &MapBlock,
    outs: &[&mut [u8]],
    scratch: &mut [u8],
    first: bool,
) -> SmallVec<[MapOperandSource; 8]> {
    let inputs = job.body.inputs.iter().zip(job.ins).zip(&job.geometry.walks);
    inputs
        .map(|((input, view), walk)| {
            if let Some(start) = direct(job, block, walk, input.dtype)
                && !view.root.is_empty()
            {
                return MapOperandSource::Root(start);
            }
            if first || !walk.uniform {
                let to = &mut scratch[input.reg.range(block_capacity(block, walk))];
                // An operand that shares the memory of a result is read from the result's block.
                match view.root.is_empty() {
                    true => {
                        let held = &*outs[usize::from(view.within)];
                        widen(job, block, input.dtype, &MapLoadSource::Block(held), to);
                    }
                    false => gather(job, block, input.dtype, view.root, walk, to),
                }
            }
            MapOperandSource::Reg
        })
        .collect()
}

/// Number of elements to load into the register. An operand that is one element for the whole
/// result fills the register, which then serves blocks of any length.
fn block_capacity(block: &MapBlock, walk: &MapOperandWalk) -> usize {
    if walk.uniform { BLOCK } else { block.len }
}

/// Start element of the operand if the block is contiguous in its memory; otherwise `None`.
pub(super) fn direct(
    job: &MapTaskArgs<'_>,
    block: &MapBlock,
    walk: &MapOperandWalk,
    dtype: DType,
) -> Option<usize> {
    let start = job.geometry.contiguous(walk, block);
    start.filter(|_| MapRegisterClass::is_native(dtype))
}

/// Loads the elements of a block from an operand's memory.
pub(super) fn gather(
    job: &MapTaskArgs<'_>,
    block: &MapBlock,
    dtype: DType,
    root: &[u8],
    walk: &MapOperandWalk,
    to: &mut [u8],
) {
    widen(job, block, dtype, &MapLoadSource::Walk(root, walk), to);
}

enum MapLoadSource<'a> {
    /// Contiguous memory that contains exactly the elements of the block.
    Block(&'a [u8]),
    /// The whole memory of the operand, and its strides.
    Walk(&'a [u8], &'a MapOperandWalk),
}

fn widen(
    job: &MapTaskArgs<'_>,
    block: &MapBlock,
    dtype: DType,
    from: &MapLoadSource<'_>,
    to: &mut [u8],
) {
    match dtype {
        DType::F32 => each::<f32, f32>(job, block, from, to, |x| x),
        DType::F64 => each::<f64, f64>(job, block, from, to, |x| x),
        DType::Bool => each::<u8, u8>(job, block, from, to, |x| x),
        DType::I32 => each::<i32, i64>(job, block, from, to, i64::from),
        DType::U32 => each::<u32, i64>(job, block, from, to, i64::from),
        DType::I64 => each::<i64, i64>(job, block, from, to, |x| x),
        DType::I16 => each::<i16, i64>(job, block, from, to, i64::from),
        DType::I8 => each::<i8, i64>(job, block, from, to, i64::from),
        DType::U8 => each::<u8, i64>(job, block, from, to, i64::from),
        DType::F16 | DType::BF16 => {
            let mut halves = [0u16; BLOCK];
            let to: &mut [f32] = cast_slice_mut(to);
            let halves = &mut halves[..to.len()];
            each::<u16, u16>(job, block, from, cast_slice_mut(halves), |x| x);
            match dtype {
                DType::F16 => convert::f16_to_f32(job.level, halves, to),
                _ => convert::bf16_to_f32(job.level, halves, to),
            }
        }
    }
}

fn each<T: Pod, U: Pod>(
    job: &MapTaskArgs<'_>,
    block: &MapBlock,
    from: &MapLoadSource<'_>,
    to: &mut [u8],
    f: impl Fn(T) -> U,
) {
    let to: &mut [U] = cast_slice_mut(to);
    let (root, walk) = match from {
        MapLoadSource::Block(bytes) => {
            let elements = cast_slice::<u8, T>(bytes);
            to.iter_mut().zip(elements).for_each(|(o, &x)| *o = f(x));
            return;
        }
        MapLoadSource::Walk(root, walk) => (root, walk),
    };
    let root: &[T] = cast_slice(&root[..root.len() / size_of::<T>() * size_of::<T>()]);
    if walk.uniform {
        to.fill(f(root[walk.offset as usize]));
        return;
    }
    let shift = job.geometry.row_shift(walk);
    let stride = job.geometry.row(walk, block.row).1;
    let starts = job.geometry.row_starts(walk, block.row);
    for (part, at) in to.chunks_mut(block.cols).zip(starts) {
        if shift > 0 {
            for (j, o) in part.iter_mut().enumerate() {
                let index = ((block.col + j) >> shift) as isize;
                *o = f(root[(at + index * stride) as usize]);
            }
            continue;
        }
        let at = at + block.col as isize * stride;
        match stride {
            0 => part.fill(f(root[at as usize])),
            1 => {
                let run = &root[at as usize..][..part.len()];
                part.iter_mut().zip(run).for_each(|(o, &x)| *o = f(x));
            }
            _ => {
                let mut at = at;
                for o in part {
                    *o = f(root[at as usize]);
                    at += stride;
                }
            }
        }
    }
}

/// Loads the elements of a block as floats, either from an operand's memory or from the result that
/// shares it.
pub(super) fn floats(
    job: &MapTaskArgs<'_>,
    block: &MapBlock,
    dtype: DType,
    root: &[u8],
    walk: Option<&MapOperandWalk>,
    to: &mut [u8],
) {
    let from = match walk {
        Some(walk) => MapLoadSource::Walk(root, walk),
        None => MapLoadSource::Block(root),
    };
    let start = match walk {
        None => Some(0),
        Some(walk) => job
            .geometry
            .contiguous(walk, block)
            .filter(|_| !walk.uniform),
    };
    if let Some(at) = start {
        let to: &mut [f32] = cast_slice_mut(to);
        match dtype {
            DType::U8 => return convert::u8_to_f32(job.level, &root[at..][..to.len()], to),
            DType::I8 => return convert::i8_to_f32(job.level, &root[at..][..to.len()], to),
            DType::I16 => {
                let bytes = &root[at * size_of::<i16>()..][..to.len() * size_of::<i16>()];
                return convert::i16_to_f32(job.level, cast_slice(bytes), to);
            }
            DType::I32 => {
                let bytes = &root[at * size_of::<i32>()..][..size_of_val(to)];
                return convert::i32_to_f32(job.level, cast_slice(bytes), to);
            }
            _ => {}
        }
    }
    match dtype {
        DType::U8 => each::<u8, f32>(job, block, &from, to, f32::from),
        DType::I16 => each::<i16, f32>(job, block, &from, to, f32::from),
        DType::I8 => each::<i8, f32>(job, block, &from, to, f32::from),
        DType::I32 => each::<i32, f32>(job, block, &from, to, |x| x as f32),
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::F64
        | DType::U32
        | DType::I64
        | DType::Bool => widen(job, block, dtype, &from, to),
    }
}

/// Stores integral floats of small magnitude as a result of this dtype.
pub(super) fn store_integral(level: SimdLevel, dtype: DType, from: &[f32], out: &mut [u8]) {
    match dtype {
        DType::I32 => convert::integral_to_i32(level, from, cast_slice_mut(out)),
        DType::I16 => convert::integral_to_i16(level, from, cast_slice_mut(out)),
        // The low byte is the same for signed and unsigned values.
        DType::U8 | DType::I8 => convert::integral_to_bytes(level, from, out),
        DType::F32
        | DType::F16
        | DType::BF16
        | DType::F64
        | DType::U32
        | DType::I64
        | DType::Bool => {
            unreachable!("invariant: results of such maps are F32, U8, I8, I16 or I32")
        }
    }
}

/// Stores a register as a result of this dtype.
pub(super) fn store(
    level: SimdLevel,
    reg: MapRegister,
    dtype: DType,
    scratch: &[u8],
    out: &mut [u8],
) {
    let len = out.len() / dtype.size_bytes();
    let from = &scratch[reg.range(len)];
    match dtype {
        DType::F32 | DType::F64 | DType::Bool | DType::I64 => out.copy_from_slice(from),
        DType::F16 => convert::f32_to_f16(level, cast_slice(from), cast_slice_mut(out)),
        DType::BF16 => convert::f32_to_bf16(level, cast_slice(from), cast_slice_mut(out)),
        DType::I32 => narrow::<i32>(from, out, |x| x as i32),
        DType::U32 => narrow::<u32>(from, out, |x| x as u32),
        DType::I16 => narrow::<i16>(from, out, |x| x as i16),
        DType::I8 => narrow::<i8>(from, out, |x| x as i8),
        DType::U8 => narrow::<u8>(from, out, |x| x as u8),
    }
}

fn narrow<T: Pod>(from: &[u8], out: &mut [u8], f: impl Fn(i64) -> T) {
    let from = cast_slice::<u8, i64>(from);
    let out = cast_slice_mut::<u8, T>(out);
    out.iter_mut().zip(from).for_each(|(o, &x)| *o = f(x));
}

/// Rounds f32 values to a narrower float dtype, in place.
pub(super) fn round(level: SimdLevel, dtype: DType, x: &mut [f32]) {
    let mut halves = [0u16; BLOCK];
    let halves = &mut halves[..x.len()];
    match dtype {
        DType::F16 => {
            convert::f32_to_f16(level, x, halves);
            convert::f16_to_f32(level, halves, x);
        }
        DType::BF16 => {
            convert::f32_to_bf16(level, x, halves);
            convert::bf16_to_f32(level, halves, x);
        }
        DType::F32
        | DType::F64
        | DType::I32
        | DType::U32
        | DType::I64
        | DType::I16
        | DType::I8
        | DType::U8
        | DType::Bool => {}
    }
}
