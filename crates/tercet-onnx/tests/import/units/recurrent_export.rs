//! Axes in exports of recurrent layers.

use tercet_ir::{DType, Graph, Type};
use tercet_onnx::internals::{steps_first, with_rank};

#[test]
fn axes_are_appended_and_exchanged() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [2, 3])).unwrap();
    let wide = with_rank(&mut g, x, 4).unwrap();
    assert_eq!(g.ty(wide).to_string(), "f32[2, 3, 1, 1]");
    let turned = steps_first(&mut g, wide).unwrap();
    assert_eq!(g.ty(turned).to_string(), "f32[3, 2, 1, 1]");
}
