//! Gradient of rotary embedding: the inverse rotation of the cotangent.

use crate::grad::{Vjp, VjpResult};
use crate::ops::Rope;

pub(crate) fn rope(op: &Rope, v: &mut Vjp<'_>) -> VjpResult {
    if v.needs_cotangent(1) || v.needs_cotangent(2) {
        return v.through_decomposition();
    }
    let (cos, sin, dy) = (v.x(1), v.x(2), v.dy(0)?);
    let back = v.neg(sin)?;
    let dx = v.add(op.clone(), &[dy, cos, back])?;
    Ok(v.accumulate(0, dx)?)
}
