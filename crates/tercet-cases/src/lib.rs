//! Test cases of every operator: small graphs with data, and graphs that must be refused.
//!
//! The folder `cases` has one text file for each operator; [`cases`] and [`refusals`] return its
//! contents. An executor and the reference interpreter must agree on each case within the tolerance
//! table. The files are embedded, so test programs run without the source tree.
//!
//! ```text
//! case odd_rows_7x33: softmax{axis=1}(x: T[7, 33] normal)
//! case symbolic [f32 f16] s=5<=9: softmax{axis=1}(x: T[s, 3] uniform(-1, 1))
//! case two_results runs=2:
//!   %x = state T[4] [1, 5, 2, 3]
//!   %y = top_k{k=2, axis=0, largest=true}(%x)
//!   return %y == [5, 3]
//!   return %y.1 == [1, 3]
//! refuse axis "axis 2 is out of range": softmax{axis=2}(x: f32[2, 3])
//! ```
//!
//! A case has a name, then options:
//!
//! - `[f32 f16]`: the dtypes that the case runs with; all dtypes of the operator by default. A case
//!   may be repeated with other dtypes if their graphs differ.
//! - `s=5<=9`: the size of a symbol in the case, and its upper bound.
//! - `runs=2`: the number of runs of the graph.
//! - `fault="text"`: a part of the error that every run must return.
//!
//! After the colon follows the value of the only result, or a body of indented statements. A
//! statement ends with its line, outside of brackets. Statements are those of the text format of
//! graphs (`docs/reference/text-format.md`), with these abbreviations:
//!
//! - `T` is the dtype of the case.
//! - `%x = input T[7, 33] normal` adds an input named `x` and its data. `param` and `state` add a
//!   parameter and a state. A name that is no identifier stands in quotes before the type.
//! - An operand `x: T[7, 33] normal` adds such an input right before the node. `param w: T[3]` and
//!   `state s: T[3]` add a parameter and a state.
//! - `return VALUE` adds the output `out0`, `out1`, ... The value may be a node.
//! - `return VALUE == [1, 2]` also gives the values that the reference must produce.
//!
//! | data | values |
//! |---|---|
//! | `normal`, `special`, `bytes` | see [`InputFill`](tercet_ir::fill::InputFill) |
//! | `uniform(-1, 1)`, `index(5)`, `blocks(q4_0)` | see [`InputFill`](tercet_ir::fill::InputFill) |
//! | `[1, -0.5, inf]` | these values, row-major |
//! | `all(2)` | the same value everywhere |
//! | `count`, `count(1, 2)` | 0, 1, 2, ...; or a start and a step |
//! | `cycle([1, 2, 3])` | the values of the list, again and again |
//! | `each(FORMULA)` | a formula of the position |
//!
//! Formulas have the numbers of the list and `negative_nan`, the row-major position `i` and the
//! indices along the axes `i0`, `i1`, ... Functions of any number of operands are `add` and `mul`.
//! The others are `sub`, `div`, `mod`, `pow`, `abs`, `floor`, `round`, `eq` and `lt` (1 or 0), `if(c, a,
//! b)`, `select(k, a0, a1, ...)`, and `lehmer(seed, n)`, the `n`th random number from 0 to 1.
//!
//! Lines that start with `//` are comments.
#![forbid(unsafe_code)]

mod case;
mod fill;
mod reader;
mod scan;
mod statement;

use std::collections::HashMap;
use std::sync::LazyLock;

use tercet_ir::OpKind;

pub use case::{CaseError, CaseGraph, OpCase};
pub use reader::{CaseFile, CaseFileError, Refusal};
/// The library whose types the cases use. Unit tests of that library see a second copy of it.
pub use tercet_ir;

/// The names of the operators and the texts of their files.
const FILES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/files.rs"));

static READ: LazyLock<HashMap<&'static str, CaseFile>> = LazyLock::new(|| {
    let read = |&(operator, text): &(&'static str, &str)| {
        let file = CaseFile::read(&format!("cases/{operator}.txt"), text);
        (operator, file.unwrap_or_else(|e| panic!("{e}")))
    };
    FILES.iter().map(read).collect()
});

/// The names of the operators that have a file.
pub fn operators() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(operator, _)| *operator)
}

/// The cases of an operator, in the order of its file. A test checks that each operator has some.
///
/// ```
/// use tercet_ir::{DType, OpKind};
/// let cases = tercet_cases::cases(OpKind::Softmax);
/// assert!(cases[0].build(DType::F32)?.graph.len() > 1);
/// # Ok::<(), tercet_cases::CaseError>(())
/// ```
///
/// # Panics
/// With file and line, when a file is malformed.
pub fn cases(kind: OpKind) -> &'static [OpCase] {
    READ.get(kind.doc().name)
        .map_or(&[], |file| file.cases.as_slice())
}

/// The graphs of an operator that must be refused.
///
/// # Panics
/// As [`cases`].
pub fn refusals(kind: OpKind) -> &'static [Refusal] {
    READ.get(kind.doc().name)
        .map_or(&[], |file| file.refusals.as_slice())
}
