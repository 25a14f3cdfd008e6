//! Limits of schemas, regular expressions and grammars.

use serde_json::{Map, Value, json};
use tercet_text::internals::{MAX_BYTES, check_lark, check_regex, check_schema};

fn patterns(count: usize) -> Vec<Value> {
    let one = |at| json!({"type": "string", "pattern": format!(".*a{at}.*")});
    (0..count).map(one).collect()
}

#[test]
fn patterns_of_one_text_are_limited_wherever_they_stand() {
    let many = patterns(20);
    let by_name: Map<String, Value> = (0..20)
        .map(|at| (format!(".*a{at}.*"), json!({"type": "string"})))
        .collect();
    let nested = many
        .iter()
        .cloned()
        .reduce(|all, one| json!({"allOf": [all, one]}));
    let objects: Vec<Value> = (many.iter())
        .map(|one| json!({"type": "object", "properties": {"x": one}}))
        .collect();
    let definitions = json!({"a": {"allOf": patterns(4)}});
    let chained = json!({"a": {"allOf": patterns(4)}, "b": {"$ref": "#/$defs/a"}, "c": {"$ref": "#/$defs/b"}});
    for schema in [
        json!({"allOf": many}),
        nested.unwrap(),
        json!({"type": "object", "properties": {"x": {"allOf": many}}}),
        json!({"allOf": objects}),
        json!({"type": "array", "items": {"allOf": many}}),
        json!({"type": "object", "patternProperties": by_name}),
        json!({"allOf": vec![json!({"anyOf": [{"minimum": 1}, {"maximum": 0}]}); 20]}),
        json!({"allOf": vec![json!({"$ref": "#anchor"}); 3]}),
        json!({"anyOf": [{"type": "null"}, {"allOf": many}]}),
        json!({"$defs": {"a": {"allOf": many}}, "$ref": "#/$defs/a"}),
        json!({"$defs": definitions, "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}),
        json!({"$defs": chained, "allOf": [{"$ref": "#/$defs/c"}, {"$ref": "#/$defs/c"}]}),
    ] {
        let said = check_schema(&schema).unwrap_err();
        assert!(said.contains("the same text"), "{schema}: {said}");
    }
}

#[test]
fn what_people_write_is_accepted() {
    let fields: Map<String, Value> = (0..200)
        .map(|at| {
            (
                format!("p{at}"),
                json!({"type": "string", "pattern": "^[a-z]{2,40}$"}),
            )
        })
        .collect();
    let prefixes: Map<String, Value> = (0..10).map(|at| (format!("^x{at}-"), json!({}))).collect();
    let tree = json!({
        "type": "object",
        "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "name": {"pattern": "^a"}},
    });
    let list = json!({
        "$defs": {"n": {"properties": {"next": {"$ref": "#/$defs/n"}, "v": {"pattern": "x"}}}},
        "$ref": "#/$defs/n",
    });
    // The schema of a syntax tree: each of 20 nodes has three nodes of any kind.
    let node = json!({"anyOf": (0..20).map(|at| json!({"$ref": format!("#/$defs/n{at}")})).collect::<Vec<_>>()});
    let nodes: Map<String, Value> = (0..20)
        .map(|at| {
            let name = json!({"type": "string", "pattern": "^[a-z_]+$"});
            let own =
                json!({"name": name, "a": node, "b": node, "c": {"type": "array", "items": node}});
            (
                format!("n{at}"),
                json!({"type": "object", "properties": own}),
            )
        })
        .collect();
    for schema in [
        json!({"$defs": nodes, "anyOf": node["anyOf"]}),
        json!({"type": "object", "properties": fields}),
        json!({"anyOf": patterns(40)}),
        json!({"allOf": patterns(2)}),
        json!({"type": "object", "patternProperties": prefixes}),
        tree,
        list,
        json!(true),
    ] {
        assert_eq!(check_schema(&schema), Ok(()), "{schema}");
    }
}

#[test]
fn sizes_are_limited() {
    let fields: Map<String, Value> = (0..6900).map(|at| (format!("p{at}"), json!({}))).collect();
    let said = check_schema(&json!({"type": "object", "properties": fields})).unwrap_err();
    assert!(said.contains("6900 members"), "{said}");
    let wide = vec![vec![json!({}); 4000]; 20];
    assert!(check_schema(&json!({"enum": wide})).is_err());
    assert!(
        check_regex(&"(".repeat(1000))
            .unwrap_err()
            .contains("nested")
    );
    assert!(check_regex(&"a".repeat(MAX_BYTES + 1)).is_err());
    assert_eq!(check_regex(r"\((a|b[(]*)\)"), Ok(()));
}

#[test]
fn grammars_and_their_schemas_are_limited() {
    assert_eq!(
        check_lark("start: \"((((&&&&&&\" A /[&~(]&&&&/\nA: B & C"),
        Ok(())
    );
    assert!(check_lark("start: A\nA: B & C & D & E &\n  F & G & H & I").is_err());
    assert!(check_lark(&format!("start: {}", "(".repeat(1000))).is_err());
    let schema = json!({"allOf": patterns(20)});
    assert!(check_lark(&format!("start: %json {schema}\n")).is_err());
}
