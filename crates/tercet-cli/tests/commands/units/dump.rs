use tercet::{DType, Graph, Type};
use tercet_cli::internals::file_name;

#[test]
fn files_are_named_by_node_operator_and_result() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [4])).unwrap();
    let y = g.top_k(x, 2, 0, true).unwrap();
    g.output("../a b\u{202e}", y).unwrap();
    assert_eq!(file_name(&g, y, 3), "001_top_k_.._a_b_.npy");
    assert_eq!(file_name(&g, y.port(1), 1), "1.1_top_k.npy");
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [4])).unwrap();
    g.output(&"n".repeat(500), x).unwrap();
    assert!(file_name(&g, x, 1).len() < 100);
}
