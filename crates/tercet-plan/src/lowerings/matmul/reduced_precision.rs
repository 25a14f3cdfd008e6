//! Rows of F32 that may be rounded to 16 bits on their way into a product ([`CompileOptions::products`]), so that it runs on
//! cooperative matrices: the kernel that makes the rows also writes them rounded where it can (norms, gates), else one kernel
//! rounds them; everything after it is as for rows of 16 bits, but for results, which stay F32.
//!
//! Products of few rows are bound by their weights and take the rows as they are, with what is fused around them.
//!
//! [`CompileOptions::products`]: tercet_ir::CompileOptions::products

use tercet_ir::{CompileError, DType};

use super::kernels::{NARROW_ROWS, NarrowRowsParams};
use super::product::{Product, Side};
use crate::emit::{Emit, View};
use crate::families::code;
use crate::num::Num;

/// The dtype that rows of this product may be rounded to where that puts it on matrices.
pub(super) fn dtype_of(e: &Emit<'_>, p: &Product) -> Option<DType> {
    let to = e.facts.products?;
    let lies = p.a.dtype == DType::F32 && p.a.summed.unit && p.batch.is_empty();
    (lies && e.caps.products().contains(&to)).then_some(to)
}

/// A product of rows that are rounded first.
pub(super) struct Rounding {
    /// That of the rounded rows.
    pub(super) product: Product,
    /// The rows as they are given, unless they are there in 16 bits already.
    from: Option<Side>,
    to: DType,
}

impl Rounding {
    /// The rows of a product in this dtype, or room for them.
    pub(super) fn of(e: &mut Emit<'_>, p: &Product, to: DType) -> Result<Rounding, CompileError> {
        let shape = [p.m.clone(), p.k.clone()];
        let is_dense = p.a.offset == Num::ZERO && p.a.own.stride == e.num(&p.k);
        let known = e.rounded(p.a.slot, to).filter(|_| is_dense);
        let rows = match known {
            Some(slot) => View {
                slot,
                layout: e.dense_layout(&shape)?,
                dtype: to,
            },
            None => e.temp(to, &shape)?,
        };
        let product = Product {
            a: Side::of(e, &rows, Some(0), 1, &[]),
            ..p.clone()
        };
        Ok(Rounding {
            product,
            from: known.is_none().then(|| p.a.clone()),
            to,
        })
    }

    /// Rounds the rows where nothing did.
    pub(super) fn emit(&self, e: &mut Emit<'_>) {
        let Some(from) = &self.from else { return };
        let p = &self.product;
        let count = e.numel(&[p.m.clone(), p.k.clone()]);
        let params = NarrowRowsParams {
            count,
            row_len: e.num(&p.k),
            offset: from.offset,
            row: from.own.stride,
        };
        let words = e.tape().ceil_div(count, 2u32);
        let grid = e.grid_of(words, 256);
        let args = [from.slot, p.a.slot];
        e.dispatch(&NARROW_ROWS, &[code(self.to)], &args, &params, grid);
    }
}
