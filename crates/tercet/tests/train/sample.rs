//! The batches of evaluations during training.

use tercet::internals::FORWARD_PASSES;
use tercet::train::EvaluationSample;

#[test]
fn evaluations_take_at_most_their_share() {
    for trained in [1, 7, 60, 100, 12_345] {
        for evaluations in [1, 2, 6, 101] {
            for share in [0.0, 0.05, 0.2, 0.5, 0.9] {
                for of in [1, 5, 400, 100_000] {
                    let sample = EvaluationSample::new(trained, evaluations, share, of);
                    let own = (0..of).filter(|batch| sample.contains(*batch)).count();
                    assert_eq!(own, sample.count());
                    assert!((1..=of).contains(&own));
                    let passes = (own * evaluations) as f64;
                    let part = passes / (passes + trained as f64 * FORWARD_PASSES);
                    assert!(
                        own == 1 || part <= share + 1e-9,
                        "{trained} {evaluations} {of}: {part}"
                    );
                    // One more batch would exceed the share.
                    let more = passes + evaluations as f64;
                    let part = more / (more + trained as f64 * FORWARD_PASSES);
                    assert!(
                        own == of || part > share - 1e-9,
                        "{trained} {evaluations} {of}: {part}"
                    );
                }
            }
        }
    }
}

#[test]
fn batches_are_spread_evenly() {
    let sample = EvaluationSample::new(40, 1, 0.2, 100);
    let own: Vec<usize> = (0..100).filter(|batch| sample.contains(*batch)).collect();
    assert_eq!(own.len(), 20);
    assert!(own.windows(2).all(|pair| pair[1] - pair[0] == 5), "{own:?}");
    assert!(!EvaluationSample::new(10, 1, 0.2, 0).contains(0));
}
