use tercet_serve::internals::{MAX_TOKENS, ReadHistory};

#[test]
fn tokens_after_the_same_tokens_count_again() {
    let mut history = ReadHistory::default();
    let mut record =
        |scope: &str, tokens: &[u32], cached| history.record(scope, tokens.iter().copied(), cached);
    assert_eq!(record("", &[1, 2, 3], 0), 0);
    assert_eq!(record("", &[1, 2, 3, 4], 0), 3);
    assert_eq!(record("", &[1, 2, 3, 4, 5], 3), 1);
    // The same tokens elsewhere are others.
    assert_eq!(record("", &[2, 3], 0), 0);
    assert_eq!(record("a", &[1, 2, 3], 0), 0);
    assert_eq!(record("a", &[1, 2, 3], 3), 0);
}

#[test]
fn the_oldest_tokens_are_forgotten() {
    let mut history = ReadHistory::default();
    history.record("", 0..100, 0);
    history.record("", 1000..1000 + MAX_TOKENS as u32, 0);
    assert_eq!(history.digests.len(), MAX_TOKENS);
    assert_eq!(history.record("", 0..100, 0), 0);
    assert_eq!(history.digests.len(), history.order.len());
}
