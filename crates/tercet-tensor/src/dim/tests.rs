use super::*;

#[test]
fn powers_of_two_that_divide_at_all_sizes() {
    let s = Dim::sym("s");
    let times = |n| s.checked_mul(&Dim::Known(n)).unwrap();
    let sum = times(12).checked_add(&Dim::Known(6)).unwrap();
    let all = [Dim::Known(0), Dim::Known(96), s.clone(), times(384), sum];
    assert_eq!(all.map(|d| d.twos()), [16, 5, 0, 7, 1]);
}

#[test]
fn constants_beyond_i64_overflow() {
    let huge = Dim::Known(usize::MAX);
    assert_eq!(huge.checked_mul(&huge), None);
    assert_eq!(huge.checked_mul(&Dim::sym("s")), None);
    assert_eq!(huge.checked_add(&Dim::Known(1)), None);
}

fn k(n: usize) -> Dim {
    Dim::Known(n)
}

#[test]
fn arithmetic_is_canonical() {
    let s = Dim::sym("s");
    let a = s.checked_add(&k(1)).unwrap().checked_mul(&k(2)).unwrap();
    let b = s.checked_mul(&k(2)).unwrap().checked_add(&k(2)).unwrap();
    assert_eq!(a, b);
    assert_eq!(a.to_string(), "2*s+2");
    assert_eq!(a.checked_sub(&b), Some(k(0)));
    assert_eq!(a.div_exact(&k(2)).unwrap(), s.checked_add(&k(1)).unwrap());
}

#[test]
fn products_divide_back() {
    let (b, s) = (Dim::sym("b"), Dim::sym("s"));
    let bs = b.checked_mul(&s).unwrap().checked_mul(&k(12)).unwrap();
    assert_eq!(bs.to_string(), "12*b*s");
    assert_eq!(
        bs.div_exact(&s)
            .unwrap()
            .div_exact(&k(4))
            .unwrap()
            .to_string(),
        "3*b"
    );
    assert_eq!(bs.div_exact(&k(5)), None);
    assert_eq!(b.div_exact(&s), None);
}

#[test]
fn evaluation_reports_unbound_and_negative() {
    let d = Dim::sym("s").checked_sub(&k(3)).unwrap();
    assert_eq!(d.to_string(), "s-3");
    assert_eq!(d.eval(&Bindings::new().with("s", 5)), Ok(2));
    assert!(matches!(
        d.eval(&Bindings::new()),
        Err(DimError::Unbound { .. })
    ));
    assert!(matches!(
        d.eval(&Bindings::new().with("s", 1)),
        Err(DimError::Negative { value: -2, .. })
    ));
    assert_eq!(d.upper_bound(&Bindings::new().with("s", 5)), Ok(5));
}
