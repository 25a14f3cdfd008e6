use serde_json::{Map, Value, json};
use tercet_networks::config::family_names;
use tercet_networks::internals::{ConfigClass, KEYS, is_base, is_same, scaling_reads};

#[test]
fn every_line_is_read() {
    for (i, line) in KEYS.lines().enumerate() {
        let parsed: Map<String, Value> = serde_json::from_str(line).unwrap();
        assert_eq!(parsed.contains_key("model_type"), i > 0, "{line}");
    }
    assert!(is_base("architectures") && scaling_reads("yarn", "beta_fast"));
    assert!(!scaling_reads("linear", "beta_fast"));
}

#[test]
fn every_family_has_its_class() {
    let kinds = family_names().into_iter();
    let names = kinds.flat_map(|of| of.model_types);
    for name in names.chain(["gemma3_text", "qwen3_5_moe_text"]) {
        // Kimi K2 has the class of DeepSeek V3.
        let known = ConfigClass::new(name).is_some();
        assert_eq!(known, name != "kimi_k2", "{name}");
    }
}

#[test]
fn defaults_are_compared_as_numbers_and_null_as_off() {
    assert!(is_same(&json!(1), &json!(1.0)) && is_same(&json!(false), &Value::Null));
    assert!(is_same(&json!([]), &Value::Null) && !is_same(&json!(2), &Value::Null));
    assert!(!is_same(&json!(false), &json!(true)) && !is_same(&json!(0), &json!(1)));
}
