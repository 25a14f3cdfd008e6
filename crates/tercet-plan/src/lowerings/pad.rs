//! `Pad`: elements added around any dtype and strides.

use tercet_ir::ops::{Op, Pad, PadMode};
use tercet_ir::{CompileError, DType, Node, OpKind, Tensor, TensorType};

use super::words::{WORD_OF_BITS, eight};
use super::{Family, always, portable};
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;
use crate::scalar::PRELUDE;

crate::params! {
    /// The block of `pad.wgsl`.
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

static KERNEL: Kernel<PadParams> = Kernel::wgsl(
    "pad",
    &[PRELUDE, WORD_OF_BITS, portable!("pad.wgsl")],
    &[Access::Read, Access::Write],
    &["ELEM_BYTES", "RANK", "MODE"],
);

/// `Pad`.
pub(crate) static PADS: Family = Family {
    name: "pad",
    ops: &[OpKind::Pad],
    kernels: &[&KERNEL.def],
    supports: always,
    lower,
};

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Pad(pad) = &node.op else {
        unreachable!("invariant: a family lowers its own operators")
    };
    let x = e.view(node.inputs[0]);
    check_sizes(e, pad, &x);
    let y = e.result(0)?;
    let before: Vec<Num> = pad.before.iter().map(|&n| Num::Const(n as i64)).collect();
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

/// The axes long enough for the mode, as [`PadMode::fits`] has it.
fn check_sizes(e: &mut Emit<'_>, pad: &Pad, x: &View) {
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
        e.check_at_most(Num::Const(least as i64), n, reason);
    }
}

/// The bits of a number in a dtype, in the low end.
fn bits(value: f64, dtype: DType) -> u32 {
    let tensor = Tensor::from_f64s(TensorType::new(dtype, &[]), &[value]);
    let tensor = tensor.unwrap_or_else(|e| unreachable!("invariant: one value is a scalar: {e}"));
    let bytes = tensor.bytes().iter().rev();
    bytes.fold(0, |bits, &b| bits << 8 | u32::from(b))
}
