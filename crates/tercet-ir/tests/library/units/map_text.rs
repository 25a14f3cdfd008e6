//! The text form of a map's attributes.

use tercet_ir::attr::{AttrLiteral, AttrValue};
use tercet_ir::ops::{AxisMap, MapStep};
use tercet_ir::scalar::{BinaryFn, CompareFn, UnaryFn};

#[test]
fn functions_have_distinct_names() {
    let mut names: Vec<&str> = ["const", "where", "fma", "clamp", "cast"].into();
    names.extend(UnaryFn::ALL.iter().map(|f| f.name()));
    names.extend(BinaryFn::ALL.iter().map(|f| f.name()));
    names.extend(CompareFn::ALL.iter().map(|f| f.name()));
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
}

#[test]
fn bad_spellings_are_refused() {
    let call = |name: &str, args: Vec<AttrLiteral>| AttrLiteral::Call(name.into(), args);
    let ident = |s: &str| AttrLiteral::Ident(s.into());
    assert!(MapStep::from_literal(&call("what", vec![ident("i0")])).is_err());
    assert!(MapStep::from_literal(&call("relu", vec![ident("x0")])).is_err());
    assert!(MapStep::from_literal(&call("const", vec![ident("f32")])).is_err());
    assert!(MapStep::from_literal(&ident("relu")).is_err());
    assert!(AxisMap::from_literal(&call("at", vec![])).is_err());
    assert!(AxisMap::from_literal(&AttrLiteral::Int(-1)).is_err());
}
