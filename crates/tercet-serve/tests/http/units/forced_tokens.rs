use tercet_models::constraint::Constraint;
use tercet_serve::internals::ForcedTokens;

#[test]
fn tokens_are_allowed_in_their_order() {
    let mut forced = ForcedTokens::new(vec![2, 0], None);
    let mut masked = |token: u32| {
        let mut logits = [0.5, f32::NAN, f32::NEG_INFINITY];
        forced.mask(&mut logits).unwrap();
        forced.take(token).unwrap();
        logits
    };
    let none = f32::NEG_INFINITY;
    assert_eq!(masked(2), [none, none, 0.0]);
    assert_eq!(masked(0), [0.0, none, none]);
    assert_eq!(masked(0)[0], 0.5);
}
