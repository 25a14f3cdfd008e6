//! The text form of tensors.

use tercet_ir::attr::{AttrLiteral, AttrValue};
use tercet_ir::{DType, Tensor, Type};

#[test]
fn elements_are_those_of_the_dtype() {
    let read = |dtype, items: &[AttrLiteral]| {
        let ty = AttrLiteral::Type(Type::new(dtype, [items.len()]));
        let items = AttrLiteral::List(items.to_vec());
        Tensor::from_literal(&AttrLiteral::Call("dense".into(), vec![ty, items]))
    };
    let word = |w: &str| AttrLiteral::Ident(w.into());
    let truths = [
        word("true"),
        word("false"),
        AttrLiteral::Int(1),
        AttrLiteral::Int(0),
    ];
    let truths = read(DType::Bool, &truths).unwrap();
    assert_eq!(truths.to_i64s(), [1, 0, 1, 0]);
    let e = read(DType::Bool, &[AttrLiteral::Int(2)]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "expected true or false, or 1 or 0, found `2`"
    );
    let e = read(DType::U8, &[AttrLiteral::Int(255), AttrLiteral::Int(256)]).unwrap_err();
    assert_eq!(
        e.to_string(),
        "expected an integer that fits u8, found `256`"
    );
    for (dtype, bad) in [
        (DType::I16, 32_768),
        (DType::I8, -129),
        (DType::I32, 1 << 31),
        (DType::U32, -1),
        (DType::I64, 1 << 63),
    ] {
        assert!(read(dtype, &[AttrLiteral::Int(bad)]).is_err(), "{dtype}");
    }
}

#[test]
fn tensors_round_trip_with_their_bits() {
    let nan = f32::from_bits(0x7fc0_1234);
    for data in [vec![1.5f32, -0.0, f32::INFINITY], vec![nan, 0.0, 1e-45]] {
        let t = Tensor::from_slice(&[3], &data).unwrap();
        assert_eq!(Tensor::from_literal(&t.to_literal()).unwrap(), t);
    }
    let big = Tensor::from_slice(&[100], &[7i32; 100]).unwrap();
    assert_eq!(Tensor::from_literal(&big.to_literal()).unwrap(), big);
    let odd = AttrLiteral::Call(
        "hex".into(),
        vec![
            AttrLiteral::Type(Type::new(DType::U8, [1])),
            AttrLiteral::Str("abc".into()),
        ],
    );
    assert!(Tensor::from_literal(&odd).is_err());
}
