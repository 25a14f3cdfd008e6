//! Sizes of symbols from the shapes of inputs.

use tercet_ir::{Bindings, DType, Dim, Graph, Signature, Tensor, TensorType, Type, one_line};

/// The symbol sizes, or the error, for inputs of these types and these shapes.
fn bound(types: &[&[Dim]], shapes: &[&[usize]]) -> Result<Bindings, String> {
    let mut graph = Graph::new();
    for (i, dims) in types.iter().enumerate() {
        let ty = Type::new(DType::U8, dims.to_vec());
        graph.input(&format!("x{i}"), ty).unwrap();
    }
    let tensors = shapes.iter().enumerate().map(|(i, shape)| {
        let ty = TensorType::new(DType::U8, shape);
        (format!("x{i}"), Tensor::zeros(ty).unwrap())
    });
    let tensors: Vec<(String, Tensor)> = tensors.collect();
    let inputs: Vec<(&str, &Tensor)> = tensors.iter().map(|(n, t)| (n.as_str(), t)).collect();
    let mut sizes = Bindings::new();
    let bounds = Bindings::new().with("s", 9);
    let done = Signature::of(&graph).bind(&inputs, &bounds, &mut sizes);
    done.map(|()| sizes).map_err(|e| one_line(&e))
}

fn times(n: usize, symbol: &str, plus: i64) -> Dim {
    let product = Dim::sym(symbol).checked_mul(&Dim::Known(n)).unwrap();
    let plus_or_minus = Dim::Known(plus.unsigned_abs() as usize);
    match plus < 0 {
        true => product.checked_sub(&plus_or_minus).unwrap(),
        false => product.checked_add(&plus_or_minus).unwrap(),
    }
}

#[test]
fn expressions_give_their_symbol() {
    let one = |dim: Dim, size: usize| bound(&[&[dim]], &[&[size]]);
    assert_eq!(one(times(2, "s", 0), 4), Ok(Bindings::new().with("s", 2)));
    assert_eq!(one(times(3, "s", -2), 7), Ok(Bindings::new().with("s", 3)));
    let e = one(times(2, "s", 0), 3).unwrap_err();
    assert_eq!(
        e,
        "the sizes of this run are invalid: axis 0 of `x0` has size 3, which `2*s` cannot be: \
         3 is not a multiple of 2"
    );
    let e = one(times(2, "s", 1), 4).unwrap_err();
    assert!(
        e.ends_with("4 minus the known terms is 3, which is not a multiple of 2"),
        "{e}"
    );
    let e = one(times(2, "s", 5), 3).unwrap_err();
    assert!(e.ends_with("`s` would be -1"), "{e}");
    assert!(
        one(times(2, "s", 0), 20)
            .unwrap_err()
            .contains("above its bound 9")
    );
    // An axis that is the symbol itself is bound first and determines its value.
    let both = [&[times(2, "s", 0)][..], &[Dim::sym("s")]];
    assert_eq!(
        bound(&both, &[&[4], &[2]]),
        Ok(Bindings::new().with("s", 2))
    );
    let e = bound(&both, &[&[5], &[2]]).unwrap_err();
    assert_eq!(e, "input `x0` is u8[5]; expected u8[2*s]");
    // An expression with two unknown symbols determines neither.
    let two = times(1, "s", 0).checked_add(&Dim::sym("t")).unwrap();
    assert!(one(two, 4).unwrap_err().contains("symbol `s` has no value"));
}
