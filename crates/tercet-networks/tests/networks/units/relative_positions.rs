use tercet_networks::config::RelativePositionBias;
use tercet_networks::internals::{both_ways, bucket};

#[test]
fn buckets_are_exact_near_and_shared_far() {
    let terms = RelativePositionBias {
        buckets: 32,
        farthest: 128,
    };
    let of = |d| both_ways(d, terms);
    assert_eq!([0, -1, -7, -8, -11, -12].map(of), [0, 1, 7, 8, 8, 9]);
    assert_eq!([1, 7, 8, 127, 128, 5000].map(of), [17, 23, 24, 31, 31, 31]);
    assert_eq!(of(-5000), 15);
    assert_eq!(
        [0, 15, 16, 5000].map(|d| bucket(d, 32, 128)),
        [0, 15, 16, 31]
    );
}
