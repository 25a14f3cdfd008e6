//! Comparison of a device with the reference, node by node.

use tercet::{DType, Device, Graph, NodeId, Tensor, Type, verify};

#[test]
fn agreement_is_reported_node_by_node() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [2, 3])).unwrap();
    let e = g.exp(x).unwrap();
    let y = g.softmax(e, 1).unwrap();
    g.output("y", y).unwrap();
    let x = Tensor::from_slice(&[2, 3], &[0f32, 1.0, 2.0, 3.0, -4.0, 5.0]).unwrap();
    let v = verify(&g, &[("x", &x)], &Device::cpu()).unwrap();
    assert_eq!(v.nodes.len(), 2);
    assert_eq!(v.nodes[0].value.node, NodeId(1));
    assert_eq!(v.first_divergence(), None);
    assert!(v.to_string().ends_with("cpu agrees with the reference"));
}

#[test]
fn missing_tensors_are_named() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [1])).unwrap();
    g.output("x", x).unwrap();
    let e = verify(&g, &[], &Device::cpu()).unwrap_err();
    assert!(e.to_string().contains("`x`"));
}
