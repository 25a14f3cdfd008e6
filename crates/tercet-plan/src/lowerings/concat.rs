//! Lowering of `Concat`: operands of any number, dtype and strides, up to seven per dispatch.

use tercet_ir::ops::Op;
use tercet_ir::{CompileError, Node, OpKind};

use super::words::{are_whole, eight, in_units, product};
use super::{Lowering, always, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `concat.wgsl`.
    pub struct ConcatParams {
        shape: U32x8,
        starts: U32x8,
        offsets: U32x8,
        strides0: U32x8,
        strides1: U32x8,
        strides2: U32x8,
        strides3: U32x8,
        strides4: U32x8,
        strides5: U32x8,
        strides6: U32x8,
        numel: U32,
        axis: U32,
        operands: U32,
        keep: U32,
    }
}

/// Operands per dispatch. With seven operands and the result, a dispatch binds eight storage
/// buffers, the limit of browsers.
const OPERANDS: usize = 7;

const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];

static WORDS: TypedKernel<ConcatParams> = TypedKernel::wgsl(
    "concat",
    &[
        PRELUDE,
        portable!("concat.wgsl"),
        portable!("concat_words.wgsl"),
    ],
    ARGS,
    &["ELEM_BYTES", "RANK"],
);

static VECTORS: TypedKernel<ConcatParams> = TypedKernel::wgsl(
    "concat_vectors",
    &[
        PRELUDE,
        portable!("concat.wgsl"),
        portable!("concat_vectors.wgsl"),
    ],
    ARGS,
    &["RANK"],
);

/// Number of bytes of a 32-bit word (`WORD`) and of a vector of four words (`VECTOR`).
const WORD: u32 = 4;
const VECTOR: u32 = 16;

/// Lowering of `Concat`.
pub(crate) static CONCATS: Lowering = Lowering {
    name: "concat",
    ops: &[OpKind::Concat],
    kernels: &[&WORDS.def, &VECTORS.def],
    supports: always,
    lower,
};

/// Sizes of the result. For each operand: its size along the concatenation axis, its strides and
/// its offset. All sizes, strides and offsets count units of `bytes` bytes.
struct ConcatProblem {
    bytes: u32,
    axis: usize,
    sizes: Vec<SymInt>,
    parts: Vec<ConcatOperand>,
}

struct ConcatOperand {
    slot: SlotId,
    along: SymInt,
    strides: Vec<SymInt>,
    offset: SymInt,
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Concat(op) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let views: Vec<SlotView> = node.inputs.iter().map(|v| e.view(*v)).collect();
    if let [only] = &views[..] {
        e.forward(0, only.clone());
        return Ok(());
    }
    let y = e.result(0)?;
    let joined = build_problem(e, &views, &y, op.axis);
    let numel = product(e, &joined.sizes);
    let rank = joined.sizes.len() as u32;
    let consts = [joined.bytes, rank];
    let (kernel, consts, invocations) = match joined.bytes {
        VECTOR => (&VECTORS, &consts[1..], numel),
        bytes => {
            let words = e.tape().ceil_div(numel, WORD / bytes);
            (&WORDS, &consts[..], words)
        }
    };
    let grid = e.grid_of(invocations, 256);
    let mut start = SymInt::ZERO;
    for (i, parts) in joined.parts.chunks(OPERANDS).enumerate() {
        let mut starts = vec![start];
        for part in parts {
            start = e.tape().add(start, part.along);
            starts.push(start);
        }
        let strides = |k: usize| {
            parts
                .get(k)
                .map_or([SymInt::ZERO; 8], |p| eight(&p.strides))
        };
        let offsets: Vec<SymInt> = parts.iter().map(|p| p.offset).collect();
        let params = ConcatParams {
            shape: eight(&joined.sizes),
            starts: eight(&starts),
            offsets: eight(&offsets),
            strides0: strides(0),
            strides1: strides(1),
            strides2: strides(2),
            strides3: strides(3),
            strides4: strides(4),
            strides5: strides(5),
            strides6: strides(6),
            numel,
            axis: SymInt::Const(joined.axis as i64),
            operands: SymInt::Const(parts.len() as i64),
            // Keep the other elements of words at the borders, because the previous dispatch wrote
            // them.
            keep: (i > 0).into(),
        };
        // If there are fewer than seven operands, the first operand fills the unused bindings.
        let slot = |k: usize| parts.get(k).unwrap_or(&parts[0]).slot;
        let mut args: Vec<SlotId> = (0..OPERANDS).map(slot).collect();
        args.push(y.slot);
        e.dispatch(kernel, consts, &args, &params, grid);
    }
    Ok(())
}

/// Merges axes to simplify the copy. If all operands are dense from the concatenation axis on, this
/// axis and all later axes become one axis; if the operands are fully dense, all earlier axes are
/// merged, too. The copy moves 16-byte vectors or 32-bit words if the merged sizes are multiples of
/// them, otherwise elements.
fn build_problem(
    e: &mut LoweringCtx<'_>,
    views: &[SlotView],
    y: &SlotView,
    axis: usize,
) -> ConcatProblem {
    let shape = y.layout.shape();
    let bytes = y.dtype.size_bytes() as u32;
    if !views.iter().all(|v| v.layout.is_dense_from(axis)) {
        let parts = views.iter().map(|v| ConcatOperand {
            slot: v.slot,
            along: e.num(&v.layout.shape()[axis]),
            strides: e.strides(v).to_vec(),
            offset: e.offset(v),
        });
        return ConcatProblem {
            bytes,
            axis,
            parts: parts.collect(),
            sizes: e.sizes(shape).to_vec(),
        };
    }
    let is_dense = views.iter().all(|v| v.layout.is_contiguous());
    let parts = views.iter().map(|v| {
        let along = e.numel(&v.layout.shape()[axis..]);
        let mut strides = match is_dense {
            true => vec![along],
            false => e.strides(v)[..axis].to_vec(),
        };
        strides.push(SymInt::ONE);
        ConcatOperand {
            slot: v.slot,
            along,
            strides,
            offset: e.offset(v),
        }
    });
    let mut parts: Vec<ConcatOperand> = parts.collect();
    let mut row = e.numel(&shape[axis..]);
    let mut sizes = match is_dense {
        true => vec![e.numel(&shape[..axis])],
        false => e.sizes(&shape[..axis]).to_vec(),
    };
    let axis = sizes.len();
    let is_whole = |unit: &&u32| {
        let per = *unit / bytes;
        let mut parts = parts.iter();
        per > 1
            && parts
                .all(|p| are_whole(per, &[p.along, p.offset]) && are_whole(per, &p.strides[..axis]))
    };
    let unit = [VECTOR, WORD].iter().find(is_whole).copied();
    if let Some(unit) = unit {
        let per = unit / bytes;
        for p in &mut parts {
            p.along = in_units(per, p.along);
            p.offset = in_units(per, p.offset);
            for stride in &mut p.strides[..axis] {
                *stride = in_units(per, *stride);
            }
        }
        row = in_units(per, row);
    }
    sizes.push(row);
    ConcatProblem {
        bytes: unit.unwrap_or(bytes),
        axis,
        sizes,
        parts,
    }
}
