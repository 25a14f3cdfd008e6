//! Large numbers of JSON schemas.

use serde_json::json;
use tercet_text::constraint::exact_schema;
use tercet_text::internals::MAX_I64_FLOAT;

#[test]
fn large_bounds_move_inwards_to_exact_numbers() {
    const ODD: i64 = (1 << 53) + 1;
    for (schema, expected) in [
        (
            json!({"minimum": ODD, "maximum": ODD + 6}),
            json!({"minimum": ODD + 1, "maximum": ODD + 5}),
        ),
        (
            json!({"minimum": -ODD, "maximum": 0}),
            json!({"minimum": 1 - ODD, "maximum": 0}),
        ),
        (
            json!({"exclusiveMinimum": 1i64 << 53, "maximum": i64::MAX}),
            json!({"minimum": ODD + 1, "maximum": i64::MAX}),
        ),
        (
            json!({"minimum": ODD, "exclusiveMinimum": true}),
            json!({"minimum": ODD + 1, "maximum": i64::MAX}),
        ),
        (
            json!({"minimum": i64::MIN, "maximum": u64::MAX}),
            json!({"minimum": -MAX_I64_FLOAT as i64, "maximum": i64::MAX}),
        ),
        (
            json!({"properties": {"minimum": {"minimum": ODD, "maximum": i64::MAX}}}),
            json!({"properties": {"minimum": {"minimum": ODD + 1, "maximum": i64::MAX}}}),
        ),
    ] {
        assert_eq!(exact_schema(&schema).unwrap(), expected, "{schema}");
    }
    let small = json!({"minimum": 1.5, "exclusiveMaximum": 1000, "enum": [3, "9", 1e300]});
    assert_eq!(exact_schema(&small).unwrap(), small);
}

#[test]
fn constants_that_would_be_rounded_are_refused() {
    for schema in [
        json!({"const": 9_007_199_254_740_993i64}),
        json!({"items": {"enum": [1, [u64::MAX]]}}),
        json!({"minimum": u64::MAX}),
    ] {
        let e = exact_schema(&schema).unwrap_err().to_string();
        assert!(
            e.contains("90071992547409") || e.contains("18446744073709551615"),
            "{e}"
        );
    }
    // Beyond 64 bits.
    for text in [
        r#"{"const": 18446744073709551617}"#,
        r#"{"enum": [1, -123456789012345678901]}"#,
        r#"{"type": "integer", "minimum": 18446744073709551617}"#,
        r#"{"type": ["integer", "null"], "exclusiveMaximum": -18446744073709551617}"#,
    ] {
        let schema = serde_json::from_str(text).unwrap();
        assert!(exact_schema(&schema).is_err(), "{text}");
    }
    for text in [
        r#"{"enum": [1e20, 100000000000000000000, 1e300, -2.5e25]}"#,
        r#"{"type": "number", "minimum": 18446744073709551617}"#,
    ] {
        let schema = serde_json::from_str(text).unwrap();
        assert_eq!(exact_schema(&schema).unwrap(), schema, "{text}");
    }
    let wide = r#"{"type": "integer", "minimum": 0, "maximum": 18446744073709551617}"#;
    let schema = serde_json::from_str(wide).unwrap();
    let exact = exact_schema(&schema).unwrap();
    assert_eq!(exact["maximum"], i64::MAX);
    let even = json!({"const": 9_007_199_254_740_994i64});
    assert_eq!(exact_schema(&even).unwrap(), even);
}
