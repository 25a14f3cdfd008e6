//! Rows that go through matrices of a stack, each through the one that its key numbers: products of one row side by side.

use tercet_ir::{CompileError, Dim};

use super::gemv;
use super::portable::given;
use super::product::{Axis, Product, Side};
use crate::emit::{Emit, View};
use crate::families::dequant::Blocks;
use crate::num::Num;
use crate::program::SlotId;

/// A stack of matrices.
pub(in crate::families) struct Stack<'a> {
    /// Floats `[count, k, n]`, or the rows of blocks of all matrices, `[count * n, row bytes]`.
    pub(in crate::families) view: &'a View,
    pub(in crate::families) blocks: Option<&'a Blocks>,
    /// From one matrix to the next: elements, or bytes of blocks.
    pub(in crate::families) step: Num,
    pub(in crate::families) columns: Dim,
}

/// Whether the kernels take rows `x` `[rows, k]` through such matrices.
pub(in crate::families) fn takes_keyed(
    e: &mut Emit<'_>,
    x: &View,
    stack: &Stack<'_>,
) -> Result<bool, CompileError> {
    let product = product(e, x, stack);
    let some =
        e.bound(&product.k)? > 0 && e.bound(&product.n)? > 0 && e.bound(&product.batch[0])? > 0;
    Ok(some
        && match stack.blocks {
            Some(_) => true,
            None => stack.view.dtype.is_float() && gemv::floats_take_keyed(e, &product)?,
        })
}

/// Emits `y` `[rows, n]`, dense, F32 or with whole words in a row.
pub(in crate::families) fn keyed(
    e: &mut Emit<'_>,
    x: &View,
    stack: &Stack<'_>,
    keys: SlotId,
    y: &View,
) -> Result<(), CompileError> {
    let product = product(e, x, stack);
    let given = given(e, &product, y)?.keyed(keys);
    match stack.blocks {
        Some(blocks) => {
            let given = given.of_blocks(e, blocks)?;
            gemv::packed_keyed(e, &product, &given, blocks)
        }
        None => gemv::floats_keyed(e, &product, &given),
    }
}

/// The rows as batches of one row each.
fn product(e: &mut Emit<'_>, x: &View, stack: &Stack<'_>) -> Product {
    let shape = x.layout.shape();
    let batch = vec![shape[0].clone()];
    let a = Side::of(e, x, None, 1, &batch);
    let mut b = match stack.blocks {
        Some(_) => Side::packed(e, stack.view).0,
        None => Side::of(
            e,
            stack.view,
            Some(2),
            1,
            &[stack.view.layout.shape()[0].clone()],
        ),
    };
    b.batch = vec![Axis {
        stride: stack.step,
        unit: false,
        multiple: match stack.blocks {
            // Whole rows of blocks.
            Some(_) => b.own.multiple,
            None => b.batch.first().map_or(1, |axis| axis.multiple),
        },
    }];
    Product {
        batch,
        m: Dim::Known(1),
        n: stack.columns.clone(),
        k: shape[1].clone(),
        a,
        b,
        bias: None,
        activation: None,
        norm: None,
        gate: None,
        residual: None,
        weights: None,
    }
}
