//! Graphs that builder methods refuse before they add a node. The refusals of operators are text
//! files of the crate `tercet-cases`.

use tercet_ir::{DType, Graph, OpError, Type, Value, one_line};

/// The error of a builder method on an input of this shape.
fn refused<const RANK: usize>(
    shape: [usize; RANK],
    build: impl Fn(&mut Graph, Value) -> Result<Value, OpError>,
) -> String {
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, shape));
    let x = x.expect("an input");
    one_line(&build(&mut g, x).expect_err("must be refused"))
}

#[test]
fn reshapes_need_one_answer() {
    let of = |sizes: &'static [i32]| refused([2, 3], move |g, x| g.reshape(x, sizes));
    assert!(of(&[-1, -1]).contains("at most one size"));
    assert!(of(&[-2, 3]).contains("-2 is not a size"));
    assert!(of(&[4, -1]).contains("are not a multiple of"));
    assert!(of(&[0, -1]).contains("are not a multiple of"));
}

#[test]
fn axes_that_reshapes_name_must_exist() {
    let squeezed = refused([2, 3], |g, x| g.squeeze(x, 0));
    assert!(squeezed.contains("size 1"), "{squeezed}");
    for error in [
        refused([2, 3], |g, x| g.unsqueeze(x, 3)),
        refused([2, 3], |g, x| g.flatten(x, 0..3)),
    ] {
        assert!(
            error.contains("axis 3 is out of range for rank 2"),
            "{error}"
        );
    }
}

#[test]
fn parts_of_an_axis_must_exist() {
    let too_far = refused([4], |g, x| g.narrow(x, 0, 2, 3));
    assert!(
        too_far.contains("elements 2..5 of axis 0 of size 4"),
        "{too_far}"
    );
    let overflow = refused([4], |g, x| g.narrow(x, 0, usize::MAX, 2));
    assert!(overflow.contains("of axis 0 of size 4"), "{overflow}");
    let reversed = refused([4], |g, x| g.reverse(x, 1));
    assert!(
        reversed.contains("axis 1 is out of range for rank 1"),
        "{reversed}"
    );
}

/// The text format limits the depth itself, so only builders can nest graphs this deep.
#[test]
fn graphs_nest_only_so_deep() -> Result<(), OpError> {
    let arguments = |g: &mut Graph| -> Result<[Value; 2], OpError> {
        Ok([
            g.input("a0", Type::new(DType::Bool, [0usize; 0]))?,
            g.input("a1", Type::new(DType::F32, [2]))?,
        ])
    };
    let mut inner = Graph::new();
    let [_, x] = arguments(&mut inner)?;
    inner.output("r0", x)?;
    let mut refused = None;
    for _ in 0..21 {
        let mut g = Graph::new();
        let [p, x] = arguments(&mut g)?;
        match g.if_else(p, &[p, x], inner.clone(), inner) {
            Ok(y) => g.output("r0", y)?,
            Err(e) => {
                refused = Some(one_line(&e));
                break;
            }
        }
        inner = g;
    }
    let error = refused.expect("21 levels are too many");
    assert!(error.contains("expected at most 16 levels"), "{error}");
    Ok(())
}
