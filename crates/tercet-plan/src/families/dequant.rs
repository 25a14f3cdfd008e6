//! `Dequantize`: the F32 values of packed weights, bit for bit; and what every kernel that decodes
//! blocks shares.

use tercet_ir::{CompileError, DType, Node, Op, OpKind, Scheme};

use super::{Family, code, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

/// Weights to floats.
pub(crate) static DEQUANTIZE: Family = Family {
    name: "dequantize",
    ops: &[OpKind::Dequantize],
    kernels: &[&UNPACK.def, &WIDEN.def],
    supports: super::always,
    lower,
};

crate::params! {
    /// The block of `dequant/unpack.wgsl`.
    pub struct UnpackParams {
        count: U32,
        offset: U32,
    }
    /// The block of `dequant/widen.wgsl`.
    pub struct WidenParams {
        count: U32,
    }
}

/// Decoding of every scheme; a kernel with it has `packed_word`.
pub(super) const BLOCKS: &str = portable!("dequant/blocks.wgsl");

/// Decoding of pieces, for kernels that decode many at a time; after [`BLOCKS`] and one of [`WORDS`] and
/// [`QUADS`], which bind the blocks.
pub(super) const PIECES: &str = portable!("dequant/pieces.wgsl");
pub(super) const WORDS: &str = portable!("dequant/packed_words.wgsl");
/// Blocks whose sizes and offsets are multiples of 16 bytes.
pub(super) const QUADS: &str = portable!("dequant/packed_quads.wgsl");

static UNPACK: Kernel<UnpackParams> = Kernel::wgsl(
    "dequantize",
    &[PRELUDE, BLOCKS, portable!("dequant/unpack.wgsl")],
    &[Access::Read, Access::Write],
    &["SCHEME", "BLOCK_LEN", "BLOCK_BYTES", "HAS_MIN"],
);

static WIDEN: Kernel<WidenParams> = Kernel::wgsl(
    "dequantize_floats",
    &[PRELUDE, portable!("dequant/widen.wgsl")],
    &[Access::Read, Access::Write],
    &["X_TYPE"],
);

/// The constants `SCHEME`, `BLOCK_LEN`, `BLOCK_BYTES` and `HAS_MIN` of `dequant/blocks.wgsl`.
pub(super) fn scheme_consts(scheme: Scheme) -> [u32; 4] {
    let (at, has_min) = match scheme {
        Scheme::F16 | Scheme::BF16 => unreachable!("invariant: {scheme:?} is not packed"),
        Scheme::Q4_0 => (0, false),
        Scheme::Q4_1 => (1, true),
        Scheme::Q5_0 => (2, false),
        Scheme::Q5_1 => (3, true),
        Scheme::Q8_0 => (4, false),
        Scheme::Q2K => (5, true),
        Scheme::Q3K => (6, false),
        Scheme::Q4K => (7, true),
        Scheme::Q5K => (8, true),
        Scheme::Q6K => (9, false),
    };
    [
        at,
        scheme.block_len() as u32,
        scheme.block_bytes() as u32,
        u32::from(has_min),
    ]
}

/// The constants `GROUPS` and `SECOND` of `dequant/pieces.wgsl`.
pub(super) fn piece_consts(scheme: Scheme) -> [u32; 2] {
    match scheme {
        Scheme::F16 | Scheme::BF16 => unreachable!("invariant: {scheme:?} is not packed"),
        // One group: the distance is not used.
        Scheme::Q8_0 => [1, 32],
        Scheme::Q4_0 | Scheme::Q4_1 | Scheme::Q5_0 | Scheme::Q5_1 => [2, 16],
        Scheme::Q2K | Scheme::Q3K | Scheme::Q4K | Scheme::Q5K => [2, 32],
        Scheme::Q6K => [2, 64],
    }
}

/// Packed weights as kernels take them: dense, from an even byte on.
pub(super) fn blocks(e: &mut Emit<'_>, w: &View) -> Result<View, CompileError> {
    let even = w.layout.offset().iter().all(|t| t.factor() % 2 == 0);
    match even && w.layout.is_contiguous() {
        true => Ok(w.clone()),
        false => e.dense(w),
    }
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Dequantize(op) = &node.op else {
        unreachable!("invariant: the family lowers `Dequantize` alone");
    };
    let w = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let count = e.numel(y.layout.shape());
    if op.scheme.storage() != DType::U8 {
        let w = e.dense(&w)?;
        let words = e.words(w.dtype, y.layout.shape());
        let grid = e.grid_of(words, 256);
        let params = WidenParams { count };
        e.dispatch(&WIDEN, &[code(w.dtype)], &[w.slot, y.slot], &params, grid);
        return Ok(());
    }
    let w = blocks(e, &w)?;
    let params = UnpackParams {
        count,
        offset: e.offset(&w),
    };
    let quads = e.tape().div(count, Num::Const(4));
    let grid = e.grid_of(quads, 256);
    let consts = scheme_consts(op.scheme);
    e.dispatch(&UNPACK, &consts, &[w.slot, y.slot], &params, grid);
    Ok(())
}
