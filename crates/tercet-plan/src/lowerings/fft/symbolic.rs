//! Transforms whose length is known only at run time. The rows are copied to F32 pairs; each pass
//! then multiplies by roots of unity that the kernel computes. Passes that a length does not need
//! have no workgroups.

use tercet_ir::ops::{Fft, FftNorm, MAX_FFT_LENGTH};
use tercet_ir::{CompileError, DType, Dim, Node};

use super::ComplexRows;
use crate::emit::LoweringCtx;
use crate::lowerings::{code, portable, rows::product};
use crate::scalar::PRELUDE;
use tercet_program::{ArgAccess, TypedKernel};
use tercet_program::{FftPassValue, SymInt, fft_pass_count};

crate::params! {
    /// Parameter block of `fft_load.wgsl`.
    pub struct FftLoadParams {
        sizes: U32x8,
        strides: U32x8,
        kept: U32,
        offset: U32,
        rows: U32,
        stride: U32,
        n: U32,
    }
}

crate::params! {
    /// Parameter block of `fft_pass.wgsl`.
    pub struct FftPassParams {
        rows: U32,
        n: U32,
        radix: U32,
        before: U32,
    }
}

pub(super) static LOAD: TypedKernel<FftLoadParams> = TypedKernel::wgsl(
    "fft_load",
    &[
        PRELUDE,
        portable!("halves.wgsl"),
        portable!("strided.wgsl"),
        portable!("fft_load.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["DTYPE"],
);

pub(super) static PASS: TypedKernel<FftPassParams> = TypedKernel::wgsl(
    "fft_pass",
    &[
        PRELUDE,
        portable!("halves.wgsl"),
        portable!("fft_pass.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write],
    &["DTYPE", "INVERSE", "NORM"],
);

/// Greatest prime factor of a length. Each result of a pass is a sum of that many terms.
const GREATEST_RADIX: i64 = 1 << 13;

pub(super) fn lower(e: &mut LoweringCtx<'_>, node: &Node, op: &Fft) -> Result<(), CompileError> {
    let mut x = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let shape = y.layout.shape().to_vec();
    let length = &shape[shape.len() - 2];
    let passes = fft_pass_count(e.bound(length)?);
    let ComplexRows { rows, stride, .. } = ComplexRows::locate(e, &mut x)?;
    let n = e.num(length);
    check_length(e, n, passes);
    let all = [product(&shape), Dim::Known(1)];
    let halves = [e.temp(DType::F32, &all)?, e.temp(DType::F32, &all)?];
    let numbers = e.tape().mul(rows.rows, n);
    let first = e.tape().fft_pass(n, passes, FftPassValue::First);
    let load = FftLoadParams {
        sizes: rows.sizes,
        strides: rows.strides,
        kept: rows.kept.into(),
        offset: rows.offset,
        rows: rows.rows,
        stride,
        n,
    };
    // The first active pass reads the half of its parity.
    let is_odd = parity(e, first);
    let is_even = e.tape().sub(SymInt::ONE, is_odd);
    for (half, enabled) in halves.iter().zip([is_even, is_odd]) {
        let items = e.tape().mul(numbers, enabled);
        let grid = e.grid_of(items, 128);
        e.dispatch(&LOAD, &[code(x.dtype)], &[x.slot, half.slot], &load, grid);
    }
    for pass in 0..passes {
        let radix = e.tape().fft_pass(n, passes, FftPassValue::Radix { pass });
        let before = e.tape().fft_pass(n, passes, FftPassValue::Before { pass });
        let params = FftPassParams {
            rows: rows.rows,
            n,
            radix,
            before,
        };
        let enabled = e.tape().min(radix, SymInt::ONE);
        let items = e.tape().mul(numbers, enabled);
        let grid = e.grid_of(items, 128);
        let is_last = pass + 1 == passes;
        let norm = match (is_last, op.norm, op.inverse) {
            (false, ..) | (_, FftNorm::Backward, false) | (_, FftNorm::Forward, true) => 0,
            (_, FftNorm::Backward, true) | (_, FftNorm::Forward, false) => 1,
            (_, FftNorm::Ortho, _) => 2,
        };
        let [from, to] = [pass, pass + 1].map(|at| halves[at as usize % 2].slot);
        let (dtype, to) = match is_last {
            true => (y.dtype, y.slot),
            false => (DType::F32, to),
        };
        let consts = [code(dtype), op.inverse.into(), norm];
        e.dispatch(&PASS, &consts, &[from, to], &params, grid);
    }
    Ok(())
}

/// `n` modulo 2.
fn parity(e: &mut LoweringCtx<'_>, n: SymInt) -> SymInt {
    let tape = e.tape();
    let half = tape.div(n, 2u32);
    let even = tape.mul(half, SymInt::Const(2));
    tape.sub(n, even)
}

fn check_length(e: &mut LoweringCtx<'_>, n: SymInt, passes: u32) {
    let reason = "the length of x is 0; expected at least 1".to_string();
    e.check_less_equal(SymInt::ONE, n, reason);
    let reason = "the length of x is {less}; transforms have at most {more} elements".to_string();
    e.check_less_equal(n, SymInt::Const(MAX_FFT_LENGTH as i64), reason);
    let greatest = e.tape().fft_pass(n, passes, FftPassValue::Greatest);
    let reason = "the length of x has the prime factor {less}; symbolic lengths have prime factors \
                  of at most {more}; fix the symbol with `Graph::with_sizes`";
    e.check_less_equal(greatest, SymInt::Const(GREATEST_RADIX), reason.to_string());
}
