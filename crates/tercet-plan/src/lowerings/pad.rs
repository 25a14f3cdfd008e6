//! Lowering of `Pad`, for any dtype and strides.

use tercet_ir::ops::{Op, Pad, PadMode};
use tercet_ir::{CompileError, DType, Node, OpKind, Tensor, TensorType};

use super::words::{WORD_OF_BITS, eight};
use super::{Lowering, always, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `pad.wgsl`.
    pub struct PadParams {
        shape: U32x8,
        sizes: U32x8,
        before: U32x8,
        strides: U32x8,
        numel: U32,
        offset: U32,
        value: U32,
    }
}

static KERNEL: TypedKernel<PadParams> = TypedKernel::wgsl(
    "pad",
    &[PRELUDE, WORD_OF_BITS, portable!("pad.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["ELEM_BYTES", "RANK", "MODE"],
);

/// Lowering of `Pad`.
pub(crate) static PADS: Lowering = Lowering {
    name: "pad",
    ops: &[OpKind::Pad],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Pad(pad) = &node.op else {
        unreachable!("invariant: a lowering receives only its own operators")
    };
    let x = e.view(node.inputs[0]);
    check_sizes(e, pad, &x);
    let y = e.result(0)?;
    let before: Vec<SymInt> = pad
        .before
        .iter()
        .map(|&n| SymInt::Const(n as i64))
        .collect();
    let params = PadParams {
        shape: eight(&e.sizes(y.layout.shape())),
        sizes: eight(&e.sizes(x.layout.shape())),
        before: eight(&before),
        strides: eight(&e.strides(&x)),
        numel: e.numel(y.layout.shape()),
        offset: e.offset(&x),
        value: bits(pad.value.0, x.dtype).into(),
    };
    let mode = match pad.mode {
        PadMode::Constant => 0,
        PadMode::Reflect => 1,
        PadMode::Edge => 2,
        PadMode::Wrap => 3,
    };
    let words = e.words(y.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let consts = [x.dtype.size_bytes() as u32, before.len() as u32, mode];
    e.dispatch(&KERNEL, &consts, &[x.slot, y.slot], &params, grid);
    Ok(())
}

/// Checks that the axes are long enough for the padding mode ([`PadMode::is_valid_for`]).
fn check_sizes(e: &mut LoweringCtx<'_>, pad: &Pad, x: &SlotView) {
    for (axis, n) in x.layout.shape().iter().enumerate() {
        let (before, after, mode) = (pad.before[axis], pad.after[axis], pad.mode.name());
        let most = before.max(after);
        let least = match pad.mode {
            PadMode::Constant => 0,
            PadMode::Edge => most.min(1),
            PadMode::Reflect if most == 0 => 0,
            PadMode::Reflect => most + 1,
            PadMode::Wrap => most,
        };
        let n = e.num(n);
        let reason = format!(
            "axis {axis} of size {{more}} is too short for {before} before and {after} after by \
             {mode}"
        );
        e.check_less_equal(SymInt::Const(least as i64), n, reason);
    }
}

/// The bit pattern of a number in a dtype, in the low bits.
fn bits(value: f64, dtype: DType) -> u32 {
    let tensor = Tensor::from_f64s(TensorType::new(dtype, &[]), &[value]);
    let tensor = tensor.unwrap_or_else(|e| unreachable!("invariant: one value is a scalar: {e}"));
    let bytes = tensor.bytes().iter().rev();
    bytes.fold(0, |bits, &b| bits << 8 | u32::from(b))
}
