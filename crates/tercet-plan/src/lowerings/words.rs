//! Shared code of kernels that move elements bitwise: sizes and strides in parameter block format,
//! and access in whole words.

use tercet_ir::{CompileError, DType};

use super::portable;
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SymInt;

/// WGSL fragment of kernels in which each thread writes one 32-bit word of elements.
pub(crate) const WORD_OF_BITS: &str = portable!("word_of_bits.wgsl");

/// Pads a list of at most eight numbers with zeros.
pub(crate) fn eight(list: &[SymInt]) -> [SymInt; 8] {
    let mut out = [SymInt::ZERO; 8];
    out[..list.len()].copy_from_slice(list);
    out
}

/// Elements of a dtype per 32-bit word.
pub(crate) fn lanes(dtype: DType) -> u32 {
    4 / dtype.size_bytes() as u32
}

/// True if every number is known at compile time and a multiple of `per`.
pub(crate) fn are_whole(per: u32, numbers: &[SymInt]) -> bool {
    let is_whole = |n: i64| n % i64::from(per) == 0;
    numbers.iter().all(|n| n.known().is_some_and(is_whole))
}

/// Divides a number of elements, known at compile time, by `per`, the number of elements per unit.
pub(crate) fn in_units(per: u32, n: SymInt) -> SymInt {
    match n {
        SymInt::Const(n) => SymInt::Const(n / i64::from(per)),
        SymInt::ExprNode(_) => unreachable!("invariant: only known numbers are whole units"),
    }
}

/// Product of symbolic integers.
pub(crate) fn product(e: &mut LoweringCtx<'_>, list: &[SymInt]) -> SymInt {
    let tape = e.tape();
    list.iter().fold(SymInt::ONE, |n, &m| tape.mul(n, m))
}

/// A temporary slot of `count` words, which lives until the last step that uses it.
pub(crate) fn words(e: &mut LoweringCtx<'_>, count: usize) -> Result<SlotView, CompileError> {
    e.temp(DType::U32, &[count.max(1).into()])
}
