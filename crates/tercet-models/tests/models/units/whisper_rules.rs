use std::collections::BTreeMap;

use tercet_models::SpeechTokens;
use tercet_models::internals::{exp, log_sum, restrict};

/// Test tokens: words 0 to 3, end 4, start 5, no-timestamps 6, timestamps 7 to 12.
fn tokens() -> SpeechTokens {
    SpeechTokens {
        start: 5,
        end: 4,
        previous: None,
        no_timestamps: 6,
        languages: BTreeMap::new(),
        tasks: BTreeMap::new(),
        multilingual: false,
        forced: Vec::new(),
        language: None,
        task: None,
        suppressed: vec![1],
        suppressed_first: vec![0, 4],
        latest_first: Some(2),
        max_length: 16,
    }
}

#[test]
fn sums_of_exponentials_are_as_near_as_f32_is() {
    for n in [1, 15, 16, 1500, 51_865] {
        let logits: Vec<f32> = (0..n)
            .map(|i| (i * 7919 % 1777) as f32 / 40.0 - 20.0)
            .collect();
        let exact: f64 = logits.iter().map(|x| f64::from(*x).exp()).sum();
        let found = log_sum(&logits);
        assert!((found - exact.ln()).abs() < 3e-6, "{n}: {found}");
    }
    let mut none = vec![f32::NEG_INFINITY; 40];
    assert_eq!(log_sum(&none), f64::NEG_INFINITY);
    none[33] = -3.5;
    assert!((log_sum(&none) + 3.5).abs() < 3e-6);
    assert_eq!(exp(0.0), 1.0);
}

/// Allowed tokens; `words` sets how much more likely words are than timestamps.
fn allowed(text: &[u32], timestamps: bool, words: f32) -> Vec<usize> {
    let mut logits = [words; 13];
    logits[7..].fill(0.0);
    restrict(&mut logits, &tokens(), text, timestamps);
    let finite = logits.iter().enumerate().filter(|(_, x)| x.is_finite());
    finite.map(|(i, _)| i).collect()
}

#[test]
fn tokens_follow_the_rules_of_timestamps() {
    for (text, words, want) in [
        (&[][..], 9.0, vec![7, 8, 9]),
        (&[8], 9.0, vec![0, 2, 3, 4, 5]),
        (&[8, 2], 9.0, vec![0, 2, 3, 4, 5, 9, 10, 11, 12]),
        (&[8, 2], 0.0, vec![9, 10, 11, 12]),
        (&[8, 2, 10], 9.0, vec![4, 5, 10, 11, 12]),
        (&[8, 2, 10, 10], 9.0, vec![0, 2, 3, 4, 5]),
        (&[8, 2, 10, 10, 3], 0.0, vec![11, 12]),
        (&[8, 2, 12], 9.0, vec![4, 5, 12]),
    ] {
        assert_eq!(allowed(text, true, words), want, "{text:?}");
    }
}

#[test]
fn without_timestamps_only_lists_count() {
    assert_eq!(allowed(&[], false, 9.0), [2, 3, 5, 6, 7, 8, 9, 10, 11, 12]);
    assert_eq!(allowed(&[2], false, 9.0).len(), 12);
}
