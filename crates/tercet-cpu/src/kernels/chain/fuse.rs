//! Fuses steps of a chain, so that fewer passes over a tile compute the same bits.

use super::{ChainOp, ChainSource, ChainStep, ChainSteps, ChainTarget, is_bound};
use crate::kernels::vmath::VmathComparison;

/// Replaces the last steps of a quantization by one. As they are the last steps, no other step
/// reads their tiles.
pub(super) fn quantization(steps: &mut ChainSteps) {
    let is_tile = |source, target| match target {
        ChainTarget::Tile(tile) => source == ChainSource::Tile(tile),
        ChainTarget::Out(_) => false,
    };
    // A conversion to an integer may follow.
    let truncated = match steps.as_slice() {
        [.., before, last] => match last.action {
            ChainOp::Truncate(x) if is_tile(x, before.to) => Some(last.to),
            _ => None,
        },
        _ => None,
    };
    let end = steps.len() - usize::from(truncated.is_some());
    let Some(first) = end.checked_sub(5) else {
        return;
    };
    let [divided, rounded, moved, raised, lowered] = &steps[first..end] else {
        return;
    };
    let (ChainOp::Div(x, scale), ChainOp::Round(of)) = (divided.action, rounded.action) else {
        return;
    };
    let (ChainOp::Add(code, zero), ChainTarget::Tile(of_moved)) = (moved.action, moved.to) else {
        return;
    };
    let (low, of_raised) = match raised.action {
        ChainOp::Relu(x) => (0.0, x),
        ChainOp::Max(x, ChainSource::Const(low)) if is_bound(low) => (low, x),
        _ => return,
    };
    let ChainOp::Min(last, ChainSource::Const(high)) = lowered.action else {
        return;
    };
    let follows = is_tile(of, divided.to)
        && is_tile(code, rounded.to)
        && !is_tile(zero, rounded.to)
        && !is_tile(zero, divided.to)
        && of_raised == ChainSource::Tile(of_moved)
        && is_tile(last, raised.to)
        && is_bound(high);
    if !follows {
        return;
    }
    let step = ChainStep {
        action: ChainOp::Quantize {
            x,
            scale,
            zero,
            bounds: [low, high],
            truncates: truncated.is_some(),
        },
        to: truncated.unwrap_or(lowered.to),
    };
    // A step must not read the tile that it writes.
    let reads = |source| is_tile(source, step.to);
    if reads(x) || reads(scale) || reads(zero) {
        return;
    }
    steps.truncate(first);
    steps.push(step);
}

/// Replaces a step and the only step that reads its tile by one, if there is a single operation for
/// both.
pub(super) fn pairs(steps: &mut ChainSteps) {
    let mut at = 0;
    while at < steps.len() {
        let Some((before, action)) = fused(steps, at) else {
            at += 1;
            continue;
        };
        steps[at].action = action;
        steps.remove(before);
        // The new step may be fused again.
        at = before;
    }
}

/// The step whose tile step `at` reads, and the operation that replaces both.
fn fused(steps: &[ChainStep], at: usize) -> Option<(usize, ChainOp)> {
    let constant = |source| match source {
        ChainSource::Const(c) => Some(c),
        ChainSource::Input(_) | ChainSource::Tile(_) => None,
    };
    // A constant and the other operand, in any order.
    let with_constant = |a, b| match (constant(a), constant(b)) {
        (_, Some(c)) => Some((a, c)),
        (Some(c), None) => Some((b, c)),
        (None, None) => None,
    };
    let action = steps[at].action;
    let read = match action {
        ChainOp::Min(a, b) | ChainOp::Add(a, b) => with_constant(a, b)?.0,
        ChainOp::Pick(a, ..) => a,
        _ => return None,
    };
    let ChainSource::Tile(tile) = read else {
        return None;
    };
    let before = producer(steps, at, tile)?;
    let fused = match (steps[before].action, action) {
        (ChainOp::Relu(x), ChainOp::Min(a, b)) => {
            let (_, high) = with_constant(a, b)?;
            is_bound(high).then_some(ChainOp::Clamp(x, [0.0, high]))?
        }
        (ChainOp::Max(x, y), ChainOp::Min(a, b)) => {
            let ((x, low), (_, high)) = (with_constant(x, y)?, with_constant(a, b)?);
            (is_bound(low) && is_bound(high)).then_some(ChainOp::Clamp(x, [low, high]))?
        }
        (ChainOp::Mul(x, y), ChainOp::Add(a, b)) => {
            let ((x, scale), (_, shift)) = (with_constant(x, y)?, with_constant(a, b)?);
            ChainOp::Affine(x, [scale, shift])
        }
        (ChainOp::Compare(op, x, y), ChainOp::Pick(_, b, c)) => match (constant(x), constant(y)) {
            (_, Some(with)) => ChainOp::Choose(op, with, [x, b, c]),
            (Some(with), None) => ChainOp::Choose(swapped(op), with, [y, b, c]),
            (None, None) => return None,
        },
        _ => return None,
    };
    // A step must not read the tile that it writes.
    let own = match steps[at].to {
        ChainTarget::Tile(own) => Some(own),
        ChainTarget::Out(_) => None,
    };
    let clashes = fused.reads(tile) || own.is_some_and(|own| fused.reads(own));
    (!clashes).then_some((before, fused))
}

/// The step that writes the tile for step `at`, if no other step reads it, and its operands are
/// unchanged at step `at`.
fn producer(steps: &[ChainStep], at: usize, tile: usize) -> Option<usize> {
    let writes = |step: &ChainStep, tile| step.to == ChainTarget::Tile(tile);
    let before = steps[..at].iter().rposition(|step| writes(step, tile))?;
    let between = &steps[before + 1..at];
    let changed = |step: &ChainStep| match step.to {
        ChainTarget::Tile(t) => steps[before].action.reads(t),
        ChainTarget::Out(_) => false,
    };
    if between
        .iter()
        .any(|step| step.action.reads(tile) || changed(step))
    {
        return None;
    }
    let mut later = steps[at + 1..].iter();
    let is_dead = writes(&steps[at], tile)
        || later
            .find_map(|step| match step.action.reads(tile) {
                true => Some(false),
                false => writes(step, tile).then_some(true),
            })
            .unwrap_or(true);
    is_dead.then_some(before)
}

/// The comparison with its operands swapped.
fn swapped(op: VmathComparison) -> VmathComparison {
    match op {
        VmathComparison::Eq => VmathComparison::Eq,
        VmathComparison::Ne => VmathComparison::Ne,
        VmathComparison::Lt => VmathComparison::Gt,
        VmathComparison::Le => VmathComparison::Ge,
        VmathComparison::Gt => VmathComparison::Lt,
        VmathComparison::Ge => VmathComparison::Le,
    }
}
