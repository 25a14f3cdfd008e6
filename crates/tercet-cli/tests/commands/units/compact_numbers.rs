use serde::Serialize;
use serde_json::{Serializer, Value, json};
use tercet_cli::internals::CompactNumberFormatter;

fn shown(value: &impl Serialize) -> String {
    let mut bytes = Vec::new();
    let formatter = CompactNumberFormatter::default();
    let mut writer = Serializer::with_formatter(&mut bytes, formatter);
    value.serialize(&mut writer).unwrap();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn numbers_are_in_one_line() {
    let value = json!({
        "a": [1, -2.5, 3], "b": [], "c": ["x", 1], "d": [[1, 2], [3]], "e": [1, "x", 2],
        "f": [{"g": [1]}, 2], "h": [true, null],
    });
    let text = shown(&value);
    assert_eq!(
        serde_json::from_str::<Value>(&text).unwrap(),
        value,
        "{text}"
    );
    for part in [
        "\"a\": [1, -2.5, 3],\n",
        "\"b\": []",
        "      \"g\": [1]\n",
        "    [1, 2],\n    [3]\n",
    ] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
    // A vector has numbers that JSON does not have.
    assert_eq!(shown(&[1.5f32, f32::NAN, 2.0]), "[1.5, null, 2.0]");
    assert_eq!(shown(&[0.1f32]), "[0.1]");
    let plain = json!({"a": ["x", {"b": true}, []], "c": {}});
    assert_eq!(shown(&plain), serde_json::to_string_pretty(&plain).unwrap());
    assert_eq!(shown(&json!([])), "[]");
}
