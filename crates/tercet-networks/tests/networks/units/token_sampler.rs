use tercet_networks::internals::{leader, spread};

#[test]
fn the_first_of_equals_leads_by_nothing() {
    let of = |row: &[f32]| leader(row.iter().copied());
    assert_eq!(of(&[1.0, 3.0, 2.5, 3.0]), Some((1, 0.0)));
    assert_eq!(of(&[1.0, f32::NAN, 2.5]), Some((2, 1.5)));
    assert_eq!(
        of(&[f32::NEG_INFINITY, -2.0]),
        Some((1, f64::INFINITY)),
        "nothing else is allowed"
    );
    assert_eq!(of(&[f32::NEG_INFINITY; 2]), None);
    assert_eq!(of(&[f32::INFINITY, 0.0]), None);
    assert_eq!(of(&[]), None);
    assert_eq!(spread(&[1.0, f32::NEG_INFINITY, -3.0, f32::NAN]), 4.0);
}
