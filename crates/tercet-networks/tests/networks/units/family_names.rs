use tercet_networks::config::{family_names, near_any};
use tercet_networks::internals::{MAX_NEAR, similarity};

#[test]
fn near_names_are_few_and_in_order() {
    let of = |name: &str| near_any(name);
    for (name, nearest) in [
        ("qwen3_nextt", "qwen3"),
        ("Llama", "llama"),
        ("deepseek_v4", "deepseek_v"),
        ("robertaa", "roberta"),
        ("whisper2", "whisper"),
        ("gemma5", "gemma"),
    ] {
        assert!(of(name).starts_with(nearest), "{name}: {}", of(name));
        assert!(of(name).ends_with("`tercet models` lists"), "{name}");
        assert!(of(name).matches(',').count() <= MAX_NEAR, "{name}");
    }
    for name in ["", "x", "zzz", "\u{1f600}\u{1f600}"] {
        assert_eq!(of(name), "the families that `tercet models` lists");
    }
    assert!(of(&"llama".repeat(1000)).len() < 120);
}

#[test]
fn every_name_is_nearest_to_itself() {
    for of in family_names() {
        for name in [of.model_types, of.architectures].concat() {
            let rated = similarity(name, name);
            assert!((rated - 1.0).abs() < 1e-9, "{name}: {rated}");
        }
    }
}
