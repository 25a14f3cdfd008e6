//! A self-test for a miscompilation by rustc.
//!
//! rustc 1.95.0 (LLVM 22.1.2) miscompiles a loop with thin LTO, `opt-level = 3` and 4 codegen
//! units. The loop writes a buffer that was allocated zeroed (`vec![0; n]`) and zeroes a part of it
//! in each iteration. The compiler removes the zeroing, so values of earlier iterations remain. If
//! the iteration over tensor indices is compiled in that form, broadcasts are wrong without an
//! error. The rest of the code avoids the form, and the release profile avoids these settings, but
//! a user's profile may have them. This module therefore contains the miscompiled code form only to
//! check its result.

use std::fmt;

use crate::types::row_major_strides;

/// The compiler that built this program changed the result of a function.
///
/// ```
/// use tercet_tensor::{Miscompiled, compiler_trial};
/// assert_eq!(compiler_trial(), Ok(()));
/// let error = Miscompiled { form: "a loop" };
/// assert!(error.to_string().contains("miscompiles a loop"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miscompiled {
    /// A description of the miscompiled code.
    pub form: &'static str,
}

impl fmt::Display for Miscompiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the compiler that built this program miscompiles {}; build it without LTO, or with another version of rustc",
            self.form
        )
    }
}

impl std::error::Error for Miscompiled {}

/// A function with the miscompiled code form: it computes the flat index of each element of a
/// broadcast.
type SelfTestFn = fn(from: &[usize], to: &[usize]) -> Vec<usize>;

const FORMS: [(&str, SelfTestFn); 2] = [
    ("zeroing a part of a zeroed buffer by `fill`", by_fill),
    ("zeroing a part of a zeroed buffer in a loop", by_loop),
];

/// Tests the code forms that compilers are known to miscompile; takes a few microseconds.
///
/// # Errors
/// The first form with a wrong result.
pub fn compiler_trial() -> Result<(), Miscompiled> {
    let (from, to) = ([7, 1], [3, 7, 2]);
    for (form, flat) in FORMS {
        let got = flat(std::hint::black_box(&from), std::hint::black_box(&to));
        let want = (0..3 * 7 * 2).map(|at| at / 2 % 7);
        if !got.into_iter().eq(want) {
            return Err(Miscompiled { form });
        }
    }
    Ok(())
}

/// Intentionally almost equal to [`walk_by_loop`]: the test depends on the exact form of both
/// functions.
fn walk_by_fill(shape: &[usize], mut f: impl FnMut(&[usize])) {
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let Some(axis) = (0..shape.len()).rev().find(|&a| index[a] + 1 < shape[a]) else {
            return;
        };
        index[axis] += 1;
        index[axis + 1..].fill(0);
    }
}

fn walk_by_loop(shape: &[usize], mut f: impl FnMut(&[usize])) {
    let mut index = vec![0; shape.len()];
    loop {
        f(&index);
        let Some(axis) = (0..shape.len()).rev().find(|&a| index[a] + 1 < shape[a]) else {
            return;
        };
        index[axis] += 1;
        for i in &mut index[axis + 1..] {
            *i = 0;
        }
    }
}

fn by_fill(from: &[usize], to: &[usize]) -> Vec<usize> {
    let (strides, missing) = (row_major_strides(from), to.len() - from.len());
    let most = to.iter().product();
    let mut flat = Vec::with_capacity(most);
    walk_by_fill(to, |index| {
        let own = index[missing..].iter().zip(from).zip(&strides);
        let own = own.map(|((&i, &n), &s)| if n == 1 { 0 } else { i * s });
        flat.push(own.sum());
    });
    flat
}

fn by_loop(from: &[usize], to: &[usize]) -> Vec<usize> {
    let (strides, missing) = (row_major_strides(from), to.len() - from.len());
    let most = to.iter().product();
    let mut flat = Vec::with_capacity(most);
    walk_by_loop(to, |index| {
        let own = index[missing..].iter().zip(from).zip(&strides);
        let own = own.map(|((&i, &n), &s)| if n == 1 { 0 } else { i * s });
        flat.push(own.sum());
    });
    flat
}
