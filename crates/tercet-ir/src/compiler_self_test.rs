//! A trial of the compiler that built this program.
//!
//! rustc 1.95.0 (LLVM 22.1.2), with thin LTO, `opt-level = 3` and 4 codegen units, took out the zeroing of a part
//! of a buffer that was allocated zeroed (`vec![0; n]`), in a loop that writes the buffer and zeroes another part
//! of it in each turn: what was written in an earlier turn stayed. Index walks had that form, and broadcasts gave
//! wrong answers without an error. The code does not have the form any more, and the profile that ships does not
//! have these settings; a profile of a user may. So the form is kept here, where it can do no harm, and asked for
//! what it must give.

use std::fmt;

use crate::types::row_major_strides;

/// The compiler that built this program changed what a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miscompiled {
    /// The form of the function.
    pub form: &'static str,
}

impl fmt::Display for Miscompiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the compiler that built this program breaks {}: build it without LTO, or with another version of rustc",
            self.form
        )
    }
}

impl std::error::Error for Miscompiled {}

/// A function of that form: the flat index of each element of a broadcast.
type Form = fn(from: &[usize], to: &[usize]) -> Vec<usize>;

const FORMS: [(&str, Form); 2] = [
    ("zeroing a part of a zeroed buffer by `fill`", by_fill),
    ("zeroing a part of a zeroed buffer in a loop", by_loop),
];

/// Tries the forms that compilers were seen to break; takes some microseconds.
///
/// # Errors
/// The first form that does not do what it says.
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

/// With [`walk_by_loop`] one of two nearly equal functions on purpose: their exact form is what is tried.
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_compiler_of_this_build_keeps_the_meaning() {
        assert_eq!(super::compiler_trial(), Ok(()));
    }
}
