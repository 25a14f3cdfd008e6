//! What kernels that move elements by bits share: sizes and strides as blocks take them, and elements
//! taken as whole words where they lie so.

use tercet_ir::{CompileError, DType};

use super::portable;
use crate::emit::{Emit, View};
use crate::num::Num;

/// What writes a word of each invocation, of elements that a kernel moves by bits.
pub(crate) const WORD_OF_BITS: &str = portable!("word_of_bits.wgsl");

/// A list of at most eight numbers, the rest zero.
pub(crate) fn eight(list: &[Num]) -> [Num; 8] {
    let mut out = [Num::ZERO; 8];
    out[..list.len()].copy_from_slice(list);
    out
}

/// The elements of a word.
pub(crate) fn lanes(dtype: DType) -> u32 {
    4 / dtype.size_bytes() as u32
}

/// True if every number is known and whole words long in elements of this dtype.
pub(crate) fn are_whole_words(dtype: DType, numbers: &[Num]) -> bool {
    let lanes = i64::from(lanes(dtype));
    numbers
        .iter()
        .all(|n| n.known().is_some_and(|n| n % lanes == 0))
}

/// A known number of elements as words.
pub(crate) fn in_words(dtype: DType, n: Num) -> Num {
    match n {
        Num::Const(n) => Num::Const(n / i64::from(lanes(dtype))),
        Num::Expr(_) => unreachable!("invariant: only known numbers are whole words"),
    }
}

/// The product of numbers.
pub(crate) fn product(e: &mut Emit<'_>, list: &[Num]) -> Num {
    let tape = e.tape();
    list.iter().fold(Num::ONE, |n, &m| tape.mul(n, m))
}

/// A slot of this many words that lives as long as steps use it.
pub(crate) fn words(e: &mut Emit<'_>, count: usize) -> Result<View, CompileError> {
    e.temp(DType::U32, &[count.max(1).into()])
}
