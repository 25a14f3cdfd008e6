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

/// True if every number of elements is known and whole units of so many.
pub(crate) fn are_whole(per: u32, numbers: &[Num]) -> bool {
    let is_whole = |n: i64| n % i64::from(per) == 0;
    numbers.iter().all(|n| n.known().is_some_and(is_whole))
}

/// A known number of elements as units of so many.
pub(crate) fn in_units(per: u32, n: Num) -> Num {
    match n {
        Num::Const(n) => Num::Const(n / i64::from(per)),
        Num::Expr(_) => unreachable!("invariant: only known numbers are whole units"),
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
