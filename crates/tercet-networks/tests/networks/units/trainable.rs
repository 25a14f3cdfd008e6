use tercet_networks::internals::uniform;
use tercet_networks::low_rank::matches_module;

#[test]
fn first_values_follow_seed_and_name() {
    let draw = |name: &str, seed| {
        let mut to = [0f32; 1000];
        uniform(name, seed, 0.25, &mut to);
        to
    };
    let first = draw("a", 0);
    assert_eq!(first, draw("a", 0));
    assert_ne!(first, draw("b", 0));
    assert_ne!(first, draw("a", 1));
    assert!(first.iter().all(|x| x.abs() <= 0.25));
    let mean = first.iter().map(|x| f64::from(*x)).sum::<f64>() / 1000.0;
    let square = first.iter().map(|x| f64::from(x * x)).sum::<f64>() / 1000.0;
    assert!(mean.abs() < 0.02, "{mean}");
    assert!((square - 0.0625 / 3.0).abs() < 0.002, "{square}");
}

#[test]
fn targets_are_whole_components() {
    assert!(matches_module("model.layers.0.self_attn.q_proj", "q_proj"));
    assert!(matches_module(
        "model.layers.0.self_attn.q_proj",
        "self_attn.q_proj"
    ));
    assert!(matches_module("lm_head", "lm_head"));
    assert!(!matches_module("model.layers.0.self_attn.q_proj", "proj"));
}
