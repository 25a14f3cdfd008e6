//! Rows of F32 that may be rounded to 16 bits on their way into a product ([`CompileOptions::products`]), so that it runs on
//! cooperative matrices: one kernel rounds the rows, everything after it is as for rows of 16 bits, but for results, which
//! stay F32.
//!
//! Products of few rows are bound by their weights and take the rows as they are, with what is fused around them.
//!
//! [`CompileOptions::products`]: tercet_ir::CompileOptions::products

use tercet_ir::{CompileError, DType};

use super::kernels::{NARROW_ROWS, NarrowRowsParams};
use super::product::{Product, Side};
use crate::emit::Emit;
use crate::families::code;

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
    /// The rows as they are given.
    from: Side,
    to: DType,
}

impl Rounding {
    /// Takes room for the rows of a product in this dtype.
    pub(super) fn of(e: &mut Emit<'_>, p: &Product, to: DType) -> Result<Rounding, CompileError> {
        let rows = e.temp(to, &[p.m.clone(), p.k.clone()])?;
        let product = Product {
            a: Side::of(e, &rows, Some(0), 1, &[]),
            ..p.clone()
        };
        Ok(Rounding {
            product,
            from: p.a.clone(),
            to,
        })
    }

    /// Rounds the rows.
    pub(super) fn emit(&self, e: &mut Emit<'_>) {
        let p = &self.product;
        let count = e.numel(&[p.m.clone(), p.k.clone()]);
        let params = NarrowRowsParams {
            count,
            row_len: e.num(&p.k),
            offset: self.from.offset,
            row: self.from.own.stride,
        };
        let words = e.tape().ceil_div(count, 2u32);
        let grid = e.grid_of(words, 256);
        let args = [self.from.slot, p.a.slot];
        e.dispatch(&NARROW_ROWS, &[code(self.to)], &args, &params, grid);
    }
}
