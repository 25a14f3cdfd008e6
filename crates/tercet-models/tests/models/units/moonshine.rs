use tercet_models::config::speech::RATE;
use tercet_models::internals::piece;

#[test]
fn pieces_end_where_it_is_quiet() {
    let mut samples = vec![0.5; 45 * RATE];
    samples[25 * RATE..25 * RATE + 3200].fill(0.0);
    let first = piece(&samples);
    assert!((25 * RATE..25 * RATE + 3200).contains(&first), "{first}");
    assert_eq!(piece(&samples[first..]), samples.len() - first);
    // With uniform silence the chunk ends as late as possible.
    let silence = vec![0.0; 31 * RATE];
    assert!(piece(&silence) > 29 * RATE);
}
