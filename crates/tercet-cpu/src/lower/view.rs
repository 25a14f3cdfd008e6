//! Operators that only change how their operand is looked at.

use tercet_ir::{Node, Op, Type};

use crate::layout::SymLayout;

/// What becomes of a view operator.
pub(crate) enum View {
    /// The result is the operand's memory under another layout.
    Free(SymLayout),
    /// The operand must be made dense first.
    NeedsDense,
}

/// The layout of the result of a view operator over an operand of this type and layout.
pub(crate) fn view_of(node: &Node, operand: &Type, from: &SymLayout) -> View {
    let _ = operand;
    let to = &node.outputs[0].shape;
    let view = match &node.op {
        _ => from.reshape(to),
    };
    view.map_or(View::NeedsDense, View::Free)
}
