//! Layouts of views.

use tercet_ir::layout::{AxisSlice, SymLayout};
use tercet_ir::{Bindings, Dim};

fn k(n: &[usize]) -> Vec<Dim> {
    n.iter().map(|&n| Dim::Known(n)).collect()
}

#[test]
fn views_compose() {
    let root = SymLayout::dense(&k(&[4, 6])).unwrap();
    let cut = |start, step| AxisSlice {
        start: Dim::Known(start),
        step,
    };
    let v = root
        .slice(&[cut(1, 1), cut(5, -2)], &k(&[2, 3]))
        .unwrap()
        .transpose(&[1, 0]);
    let l = v.eval(&Bindings::new()).unwrap();
    assert_eq!(
        (l.offset, l.shape(), l.strides()),
        (11, &[3, 2][..], &[-2, 6][..])
    );
    assert!(!v.has_dense_rows());
    assert_eq!(v.reshape(&k(&[6])), None);
}

#[test]
fn reshapes_split_and_merge_symbolic_axes() {
    let s = Dim::sym("s");
    let qkv = SymLayout::dense(&[s.clone(), Dim::Known(12)]).unwrap();
    let cut = |start| AxisSlice {
        start: Dim::Known(start),
        step: 1,
    };
    let q = qkv
        .slice(&[cut(0), cut(4)], &[s.clone(), Dim::Known(4)])
        .unwrap();
    let heads = q
        .reshape(&[s.clone(), Dim::Known(2), Dim::Known(2)])
        .unwrap();
    let l = heads.eval(&Bindings::new().with("s", 3)).unwrap();
    assert_eq!((l.offset, l.strides()), (4, &[12, 2, 1][..]));
    assert_eq!(heads.reshape(&[s.clone(), Dim::Known(4)]), Some(q.clone()));
    let flat = s.checked_mul(&Dim::Known(4)).unwrap();
    assert_eq!(q.reshape(&[flat]), None);
    let batched = q
        .reshape(&[Dim::Known(1), s, Dim::Known(4), Dim::Known(1)])
        .unwrap();
    let l = batched.eval(&Bindings::new().with("s", 3)).unwrap();
    assert_eq!(&l.strides()[1..3], &[12, 1]);
}

#[test]
fn expanded_axes_have_stride_zero() {
    let v = SymLayout::dense(&k(&[3, 1])).unwrap();
    let l = v
        .expand(&k(&[2, 3, 5]))
        .unwrap()
        .eval(&Bindings::new())
        .unwrap();
    assert_eq!(l.strides(), [0, 1, 0]);
    assert!(!l.is_dense());
}
