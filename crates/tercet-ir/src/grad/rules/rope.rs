//! Rotations: the cotangent is turned back.

use crate::grad::{Ruled, Vjp};
use crate::ops::Rope;

pub(crate) fn rope(op: &Rope, v: &mut Vjp<'_>) -> Ruled {
    if v.wants(1) || v.wants(2) {
        return v.through_decomposition();
    }
    let (cos, sin, dy) = (v.x(1), v.x(2), v.dy(0)?);
    let back = v.neg(sin)?;
    let dx = v.add(op.clone(), &[dy, cos, back])?;
    Ok(v.give(0, dx)?)
}
