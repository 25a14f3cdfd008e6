use serde_json::json;
use tercet_serve::internals::bound_integers;

#[test]
fn integers_are_bounded_unless_the_schema_says_more() {
    let (least, most) = (i64::MIN, i64::MAX);
    let bounded = json!({"type": "integer", "minimum": least, "maximum": most});
    for (schema, want) in [
        (json!({"type": "integer"}), bounded.clone()),
        (
            json!({"type": ["integer", "null"], "minimum": 0}),
            json!({"type": ["integer", "null"], "minimum": 0, "maximum": most}),
        ),
        (
            json!({"properties": {"type": {"anyOf": [{"type": "integer"}, {"type": "null"}]}}}),
            json!({"properties": {"type": {"anyOf": [bounded, {"type": "null"}]}}}),
        ),
    ] {
        let mut schema = schema;
        bound_integers(&mut schema);
        assert_eq!(schema, want);
    }
    for schema in [
        json!({"type": "number"}),
        json!({"type": ["integer", "number"]}),
        json!({"type": "integer", "enum": [1, 2]}),
        json!({"type": "integer", "multipleOf": 3}),
        json!({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 5}),
        json!({"type": "object", "default": {"type": "integer"}}),
        json!({"properties": {"type": {"const": "integer"}}}),
    ] {
        let mut same = schema.clone();
        bound_integers(&mut same);
        assert_eq!(same, schema);
    }
}
