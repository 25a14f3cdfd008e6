use tercet_cli::internals::bias;

#[test]
fn biases_are_those_of_both_notations() {
    assert_eq!(bias("13=-inf"), Ok((13, f32::NEG_INFINITY)));
    assert_eq!(bias("15+5"), Ok((15, 5.0)));
    assert_eq!(bias("15-1.5"), Ok((15, -1.5)));
    assert_eq!(bias("15-inf"), Ok((15, f32::NEG_INFINITY)));
    assert_eq!(bias("15=+2"), Ok((15, 2.0)));
    for wrong in ["15", "+5", "a+5", "15+", "15+nan", "15+inf", "-3+1"] {
        assert!(bias(wrong).is_err(), "{wrong}");
    }
}
