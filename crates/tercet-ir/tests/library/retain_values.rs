//! Names of the outputs that keep values.

use tercet_ir::{DType, Graph, NodeId, RetainValues, Type, Value, one_line};

#[test]
fn what_is_kept_has_names_of_its_own() {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [4])).unwrap();
    let e = g.exp(x).unwrap();
    let top = g.top_k(e, 2, 0, true).unwrap();
    g.output("%1", top.port(1)).unwrap();
    g.output("again", top.port(1)).unwrap();
    let (open, kept) = RetainValues::All.add_outputs(&g).unwrap();
    let names: Vec<&str> = kept.iter().map(|k| k.output.as_str()).collect();
    assert_eq!(names, ["%1'", "%2", "%1"]);
    assert_eq!(open.outputs().len(), 4);
    assert_eq!(open.outputs()[..2], g.outputs()[..]);
    let foreign = Value {
        node: NodeId(9),
        port: 0,
    };
    let refused = RetainValues::Values(vec![foreign])
        .add_outputs(&g)
        .unwrap_err();
    assert!(one_line(&refused).contains("%9 is not in this graph"));
    assert_eq!(
        RetainValues::Outputs.add_outputs(&g).unwrap(),
        (g, Vec::new())
    );
}
