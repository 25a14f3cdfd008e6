//! Reports of infinities and NaNs.

use tercet_ir::{NodeId, NonFinite, NonFiniteKind, Tensor, TensorSummary, Value};

#[test]
fn tensors_are_said_in_a_few_words() {
    let at = |node| Value {
        node: NodeId(node),
        port: 0,
    };
    let x = Tensor::from_slice(&[2, 3], &[1f32, -2.0, 88.0, 0.0, 89.0, 90.0]).unwrap();
    let inf = f32::INFINITY;
    let y = Tensor::from_slice(&[2, 3], &[3f32, 0.0, 1e38, 1.0, inf, inf]).unwrap();
    let operand = TensorSummary::new(at(0), "input", Some("x".to_string()), &x);
    let report = NonFinite {
        result: TensorSummary::new(at(1), "unary", None, &y),
        kind: NonFiniteKind::detect(&y, vec![operand]),
    };
    assert_eq!(
        report.to_string(),
        "%1 (unary) is inf at element 4 [1, 1] of f32[2, 3]; 2 of 6 elements are not finite; operands: \
         %0 (input `x`) f32[2, 3] in [-2e0, 9e1]"
    );
    assert_eq!(NonFiniteKind::detect(&x, Vec::new()), None);
    let none = Tensor::from_slice(&[0], &[0f32; 0]).unwrap();
    let none = TensorSummary::new(at(0), "input", None, &none).to_string();
    assert_eq!(none, "%0 (input) f32[0] without elements");
}
