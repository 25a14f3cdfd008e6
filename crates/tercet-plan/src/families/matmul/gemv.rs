//! Products of few rows: which kernel, its constants and its grid.

use tercet_ir::Scheme;

use super::kernels::{
    ACROSS_ACTIVATED, ACROSS_PLAIN, ALONG_ACTIVATED, ALONG_PLAIN, GEMV_PACKED, ProductParams,
};
use super::portable::{Given, Pair};
use super::product::Product;
use crate::emit::Emit;
use crate::families::code;
use crate::families::dequant::scheme_consts;
use crate::kernel::Kernel;

static ALONG: Pair = Pair {
    plain: &ALONG_PLAIN,
    activated: &ALONG_ACTIVATED,
};
static ACROSS: Pair = Pair {
    plain: &ACROSS_PLAIN,
    activated: &ACROSS_ACTIVATED,
};

/// Up to `rows` rows (1 or 8) of a product of floats.
pub(super) fn floats(e: &mut Emit<'_>, p: &Product, given: &Given, rows: u32) {
    let b_type = code(p.b.dtype);
    if p.b.summed.unit {
        let words = u32::from(p.b.has_words(p.b.summed, p.b.own));
        let kernel = ALONG.pick(p.activation);
        dispatch(e, given, kernel, &[b_type, rows, words], 8);
    } else {
        let per = 1 + u32::from(p.b.has_words(p.b.own, p.b.summed));
        let kernel = ACROSS.pick(p.activation);
        dispatch(e, given, kernel, &[b_type, rows, per], 16 * per);
    }
}

/// Up to `rows` rows (1 or 8) times weights in packed blocks.
pub(super) fn packed(e: &mut Emit<'_>, given: &Given, scheme: Scheme, rows: u32) {
    let own: Vec<u32> = scheme_consts(scheme).into_iter().chain([rows]).collect();
    dispatch(e, given, &GEMV_PACKED, &own, 8);
}

/// Runs a kernel that gives each workgroup so many columns.
fn dispatch(
    e: &mut Emit<'_>,
    given: &Given,
    kernel: &Kernel<ProductParams>,
    own: &[u32],
    columns: u32,
) {
    let groups = e.tape().ceil_div(given.params.n, columns);
    let [x, y, _] = e.flat_grid(groups);
    given.dispatch(e, kernel, own, [x, y, given.batches]);
}
