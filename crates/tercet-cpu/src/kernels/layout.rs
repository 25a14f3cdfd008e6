//! Data movement: blocked transpose, strided copy, gather of rows.

use super::simd::{Simd, simd_dispatch};

/// Rows and columns of a block that is transposed in registers.
pub(crate) const TURNED: usize = 8;

simd_dispatch!(
    /// Computes `to[r row + c] = x[c stride + r]` for `rows` times `columns` elements, both
    /// multiples of [`TURNED`].
    ///
    /// # Panics
    /// If an element is outside of the slices.
    pub(crate) fn transpose_words(x: &[f32], stride: usize, to: &mut [f32], row: usize, rows: usize, columns: usize) = transpose_words_body
);

/// # Safety
/// Requires the instructions of `S`.
#[inline(always)]
unsafe fn transpose_words_body<S: Simd>(
    x: &[f32],
    stride: usize,
    to: &mut [f32],
    row: usize,
    rows: usize,
    columns: usize,
) {
    assert!(rows.is_multiple_of(TURNED) && columns.is_multiple_of(TURNED));
    if rows == 0 || columns == 0 {
        return;
    }
    assert!((columns - 1) * stride + rows <= x.len() && (rows - 1) * row + columns <= to.len());
    for c in (0..columns).step_by(TURNED) {
        for r in (0..rows).step_by(TURNED) {
            // SAFETY: the assertion covers all elements of the blocks.
            unsafe {
                let from = x.as_ptr().add(c * stride + r);
                S::transpose8(from, stride, to.as_mut_ptr().add(r * row + c), row);
            }
        }
    }
}

/// Computes `out[c, r] = x[r, c]` for a contiguous `rows x cols` matrix of elements of any size.
/// Works in blocks, so that reads and writes stay in cache.
///
/// # Panics
/// If the lengths are not `rows * cols`.
pub fn transpose<T: Copy>(x: &[T], rows: usize, cols: usize, out: &mut [T]) {
    assert!(
        x.len() == rows * cols && out.len() == rows * cols,
        "input and output must have {rows}x{cols} elements"
    );
    const BLOCK: usize = 16;
    for r0 in (0..rows).step_by(BLOCK) {
        for c0 in (0..cols).step_by(BLOCK) {
            for c in c0..cols.min(c0 + BLOCK) {
                for r in r0..rows.min(r0 + BLOCK) {
                    out[c * rows + r] = x[r * cols + c];
                }
            }
        }
    }
}

/// Copies a view of any strides to a contiguous tensor: element `offset + sum(index * strides)` of
/// `x`, with the last axis varying fastest. Negative strides reverse an axis; stride 0 broadcasts.
///
/// # Panics
/// If `strides` and `shape` differ in rank, `out` does not have the size of `shape`, or an index is
/// outside `x`.
pub fn strided_copy<T: Copy>(
    x: &[T],
    offset: usize,
    shape: &[usize],
    strides: &[isize],
    out: &mut [T],
) {
    assert_eq!(
        shape.len(),
        strides.len(),
        "shape and strides differ in rank"
    );
    assert_eq!(
        out.len(),
        shape.iter().product::<usize>(),
        "the output length differs from the shape's number of elements"
    );
    if out.is_empty() {
        return;
    }
    let at = |base: usize, i: usize, stride: isize| {
        base.checked_add_signed(i as isize * stride)
            .expect("invariant: a view is inside its tensor")
    };
    match (shape, strides) {
        ([], []) => out[0] = x[offset],
        ([n], [1]) => out.copy_from_slice(&x[offset..offset + n]),
        ([_], [0]) => out.fill(x[offset]),
        ([_], [stride]) => {
            for (i, out) in out.iter_mut().enumerate() {
                *out = x[at(offset, i, *stride)];
            }
        }
        // The last two axes are a transposed matrix: copy by blocks.
        ([rows, cols], [1, step]) if *cols > 1 && *step > 1 => {
            const BLOCK: usize = 16;
            for c0 in (0..*cols).step_by(BLOCK) {
                for r0 in (0..*rows).step_by(BLOCK) {
                    for r in r0..(*rows).min(r0 + BLOCK) {
                        for c in c0..(*cols).min(c0 + BLOCK) {
                            out[r * cols + c] = x[at(offset + r, c, *step)];
                        }
                    }
                }
            }
        }
        ([_, inner @ ..], [stride, rest @ ..]) => {
            let size = inner.iter().product::<usize>();
            for (i, out) in out.chunks_exact_mut(size).enumerate() {
                strided_copy(x, at(offset, i, *stride), inner, rest, out);
            }
        }
        ([], [_, ..]) | ([_, ..], []) => unreachable!("ranks were compared above"),
    }
}

/// Computes `out[i] = table[index[i]]` for rows of `row_len`; negative indices count from the end.
///
/// # Errors
/// The first index outside `[-rows, rows)`.
///
/// # Panics
/// If `out` does not have `index.len() * row_len` elements.
pub fn gather_rows<T: Copy>(
    table: &[T],
    row_len: usize,
    rows: usize,
    index: &[i64],
    out: &mut [T],
) -> Result<(), i64> {
    assert_eq!(
        out.len(),
        index.len() * row_len,
        "the output length must be the number of indices times row_len"
    );
    for (n, i) in index.iter().enumerate() {
        let row = if *i < 0 {
            i.checked_add_unsigned(rows as u64)
        } else {
            Some(*i)
        };
        let row = row
            .and_then(|r| usize::try_from(r).ok())
            .filter(|r| *r < rows)
            .ok_or(*i)?;
        out[n * row_len..(n + 1) * row_len]
            .copy_from_slice(&table[row * row_len..(row + 1) * row_len]);
    }
    Ok(())
}
