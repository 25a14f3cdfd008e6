//! Tiles of 16-bit activations and packed weights on matrices: the weights are decoded to the type of the
//! activations first, into memory that the arena lends for it.
//!
//! Rounding weights to 16 bits is one rounding among those that products of 16-bit activations make
//! anyway. F16 holds no large numbers, and few digits of tiny ones: where the scales of a parameter are
//! such, which is found when it is set, runs take the other way.

use tercet_ir::{CompileError, DType};

use super::coop::Coop;
use super::narrowed::{self, Rounding};
use super::portable::given;
use super::product::{Product, Side};
use crate::emit::{Emit, View};
use crate::families::dequant::{Blocks, UnpackHalfParams, piece_consts, unpack_half};
use crate::num::Num;
use crate::program::SlotId;

/// The least rows for which decoding every weight costs less than it gains.
pub(super) fn least_rows(e: &Emit<'_>) -> u32 {
    e.caps.device.rates.rows.decoded_rows
}

/// Weights that take more than this in 16 bits are multiplied from where they lie.
const MOST_BYTES: usize = 512 << 20;

/// A product that may run this way.
pub(super) struct Half {
    product: Product,
    /// Its rows as they are given.
    rows: SlotId,
    /// Where its rows are F32 and may be rounded.
    rounding: Option<Rounding>,
    coop: Coop,
    weights: View,
}

impl Half {
    /// The way of a product with packed weights; none where it does not exist.
    pub(super) fn of(
        e: &mut Emit<'_>,
        p: &Product,
        blocks: &Blocks,
        y: &View,
    ) -> Result<Option<Half>, CompileError> {
        let narrow = narrowed::dtype_of(e, p);
        let dtype = narrow.unwrap_or(p.a.dtype);
        let (n, k) = (e.bound(&p.n)?, e.bound(&p.k)?);
        let bytes = n.saturating_mul(k).saturating_mul(dtype.size_bytes());
        let some = bytes > 0 && bytes <= MOST_BYTES && e.bound(&p.m)? > least_rows(e) as usize;
        let known = dtype == DType::BF16 || (dtype == DType::F16 && blocks.params.is_some());
        let has_matrices = e.caps.spirv && !e.caps.coop.is_empty();
        if !some || !known || !has_matrices || bytes as u64 > e.caps.max_binding_bytes {
            return Ok(None);
        }
        let weights = e.temp(dtype, &[p.n.clone(), p.k.clone()])?;
        let rounding = narrow.map(|to| Rounding::of(e, p, to)).transpose()?;
        let rows = rounding.as_ref().map_or(p, |r| &r.product);
        let product = Product {
            b: Side::of(e, &weights, Some(0), 1, &[]),
            ..rows.clone()
        };
        let coop = Coop::of(e, &product, y)?;
        Ok(coop.map(|coop| Half {
            product,
            rows: p.a.slot,
            rounding,
            coop,
            weights,
        }))
    }

    /// 1 where the values of the weights keep their digits in the type, else 0.
    pub(super) fn fits(&self, e: &mut Emit<'_>, blocks: &Blocks) -> Num {
        match (self.weights.dtype, &blocks.params) {
            (DType::F16, Some(params)) => {
                let params = params.clone();
                params.into_iter().fold(Num::ONE, |all, at| {
                    let fits = e.tape().fits_half(at);
                    e.tape().mul(all, fits)
                })
            }
            _ => Num::ONE,
        }
    }

    /// Decodes, beside a product before this one where there is one (`emit/decoding.rs`), then multiplies.
    pub(super) fn dispatch(
        &self,
        e: &mut Emit<'_>,
        blocks: &Blocks,
        y: &View,
    ) -> Result<(), CompileError> {
        if let Some(rounding) = &self.rounding {
            rounding.emit(e);
        }
        let given = given(e, &self.product, y)?;
        let k = e.num(&self.product.k);
        let [groups, _] = piece_consts(blocks.scheme);
        let weights = e.numel(&[self.product.n.clone(), self.product.k.clone()]);
        let pieces = e.tape().div(weights, Num::Const(i64::from(16 * groups)));
        let params = UnpackHalfParams {
            pieces,
            offset: e.offset(&blocks.view),
            row_len: k,
            row_stride: e.strides(&blocks.view)[0],
        };
        let taken = self.product.a.slot;
        let order = e.order_of_decoding(self.rows, taken, self.weights.slot);
        unpack_half(e, blocks, order, &self.weights, &params)?;
        self.coop.dispatch(e, &given, &self.product)
    }
}
