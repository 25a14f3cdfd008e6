use tercet_networks::internals::parts;

#[test]
fn factors_are_parted_without_rounding() {
    for factor in [1.0, 3e-4, 1.2e-5, -0.75, 6e4, 0.0, 1e-45, f32::MAX] {
        let (before, after) = parts(factor);
        assert_eq!(before * after, factor);
        assert_eq!(before.to_bits() & 0x7F_FFFF, 0, "{factor}: a power of two");
        let even = before.log2() - after.abs().log2();
        assert!(
            factor == 0.0 || even.abs() <= 1.0,
            "{factor}: {before} and {after}"
        );
    }
}
