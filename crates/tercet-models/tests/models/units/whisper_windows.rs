use tercet_models::internals::{FallbackRng, compression, drawn, greatest};

#[test]
fn repetition_compresses() {
    let same = compression(&[300; 92], 1800);
    // Reference value from Python's zlib.
    assert_eq!(same, 184.0 / 13.0);
    let others: Vec<u32> = (0..92).map(|i| i * 7919 % 1777).collect();
    let others = compression(&others, 1800);
    assert!(others < 1.5, "{others}");
}

#[test]
fn tokens_are_drawn_by_probability() {
    let logits = [f32::NEG_INFINITY, 0.0, 3f32.ln(), f32::NEG_INFINITY];
    let draws = FallbackRng {
        seed: 7,
        window: 1,
        attempt: 2,
    };
    let drawn = (0..4000).filter_map(|i| drawn(&logits, 1.0, draws.unit(i)));
    let counts = drawn.fold([0usize; 4], |mut counts, token| {
        counts[token as usize] += 1;
        counts
    });
    assert_eq!((counts[0], counts[3]), (0, 0));
    assert!((2900..3100).contains(&counts[2]), "{counts:?}");
    assert_eq!(greatest(&logits), Some(2));
    assert_eq!(greatest(&[f32::NAN, f32::NEG_INFINITY]), None);
}
