//! Decomposition of Gaussian splatting into projection and rasterization.

use super::{LegalizeRule, RuleResult};
use crate::graph::Value;
use crate::legalize::LegalizeBuilder;
use crate::ops::splat::BACKGROUND_AT;
use crate::ops::{GaussianSplatPrepare, GaussianSplatRasterize, Op, OpKind};

pub(super) const RULES: &[LegalizeRule] = &[LegalizeRule {
    name: "gaussian_splat_render_as_prepare_and_rasterize",
    on: OpKind::GaussianSplatRender,
    apply: render,
}];

fn render(b: &mut LegalizeBuilder<'_>, op: &Op, inputs: &[Value]) -> RuleResult {
    let (Op::GaussianSplatRender(o), &[.., camera]) = (op, inputs) else {
        return Ok(None);
    };
    let (size, options) = ([o.width, o.height], o.options());
    let projected = b.add_all(GaussianSplatPrepare::new(size, options), inputs)?;
    let background = b.slice(camera, 0, BACKGROUND_AT as i64, i64::MAX, 1)?;
    let operands = [projected[0], projected[1], background];
    b.add_all(GaussianSplatRasterize::new(size, options), &operands)
        .map(Some)
}
