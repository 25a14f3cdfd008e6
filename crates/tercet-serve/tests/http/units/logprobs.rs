use tercet_serve::internals::{LogProbRow, MIN_LOGPROB};

#[test]
fn logarithms_of_probabilities() {
    let logits = [1.0, f32::NAN, 3.0, 3.0, f32::NEG_INFINITY, 2.0];
    let logs = LogProbRow::new(&logits);
    let known = [0u32, 2, 3, 5];
    let sum: f64 = known.iter().map(|id| logs.log(*id).exp()).sum();
    assert!((sum - 1.0).abs() < 1e-12, "{sum}");
    assert!((logs.log(2) - logs.log(5) - 1.0).abs() < 1e-12);
    assert_eq!([logs.log(1), logs.log(4), logs.log(99)], [MIN_LOGPROB; 3]);
    assert!(logs.top_tokens(0).is_empty());
    assert_eq!(logs.top_tokens(3), [2, 3, 5]);
    assert_eq!(logs.top_tokens(99), [2, 3, 5, 0, 1, 4]);
    assert!(LogProbRow::new(&[]).top_tokens(2).is_empty());
    assert_eq!(LogProbRow::new(&[f32::NEG_INFINITY]).log(0), MIN_LOGPROB);
}
