use tercet::TunedProblem;
use tercet_cli::internals::tune::{line, shape};

#[test]
fn a_line_begins_with_the_best() {
    let product = TunedProblem {
        name: "f16 nn 1x2x3".to_string(),
        flops: 3e12,
        candidates: vec![
            ("a".to_string(), Ok(1.0)),
            ("b".to_string(), Ok(2.0)),
            ("c".to_string(), Err("no".to_string())),
        ],
    };
    assert_eq!(
        line(&product),
        "f16 nn 1x2x3             best a 3.0 | b 1.5 | c failed: no"
    );
}

#[test]
fn shapes_are_three_sizes() {
    const HUGE: &str = "4294967295x4294967295x4294967295";
    assert_eq!(shape("4096x768x3072"), Ok(([4096, 768, 3072], false)));
    assert_eq!(shape("512x64x8nt"), Ok(([512, 64, 8], true)));
    for wrong in ["", "1x2", "1x2x0", "1x2x3x4", "axbxc", "nt", HUGE] {
        assert!(shape(wrong).is_err(), "{wrong}");
    }
}
