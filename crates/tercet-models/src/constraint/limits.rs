//! Limits of grammars before they are compiled.
//!
//! The compiler limits its own work, but not within one step: the derivative of an intersection of
//! regular expressions has up to the product of their sizes of branches. It also recurses over the
//! parts of a grammar. These checks bound both, so that no request takes a thread, its stack or the
//! memory of the process.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

/// Maximum size of a schema or grammar, in bytes.
pub(super) const MAX_BYTES: usize = 1 << 20;
/// Maximum number of values in a schema.
const MAX_VALUES: usize = 1 << 16;
/// Maximum number of properties, required names or alternatives of one schema.
const MAX_MEMBERS: usize = 4096;
/// Maximum nesting of groups in a regular expression or grammar.
const MAX_NESTING: usize = 128;
/// Maximum product of the sizes of expressions that must match the same text.
const MAX_PRODUCT: u64 = 1 << 14;
/// Assumed size of the expression of a `format`, and of a schema that is not found in the document.
const ASSUMED_SIZE: u64 = 64;
/// The place of the number of alternatives.
const ALTERNATIVES: &str = "/(alternatives)";
/// The place of the names of an object's properties.
const NAMES: &str = "/(names)";
/// References that are followed one after the other at the same text.
const MAX_CHAIN: usize = 8;
/// References that are followed from a schema to those of its properties and items. Every
/// definition is checked on its own, so this only finds conjunctions across definitions.
const MAX_REFERENCES: usize = 1;
/// Maximum places of a schema that are compared, with references counted each time.
const MAX_PLACES: usize = 1 << 19;

/// The references that may still be followed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct References {
    /// At the same text.
    chain: usize,
    /// From a schema to those of its properties and items.
    inner: usize,
}

impl References {
    const ALL: References = References {
        chain: MAX_CHAIN,
        inner: MAX_REFERENCES,
    };

    /// Those for properties and items.
    fn of_members(self) -> References {
        let chain = if self.inner > 0 { MAX_CHAIN } else { 0 };
        References { chain, ..self }
    }

    /// Those of a reference's target; `None` if it is not followed.
    fn of_target(self) -> Option<References> {
        Some(References {
            chain: self.chain.checked_sub(1)?,
            inner: self.inner.saturating_sub(1),
        })
    }
}

/// The products of sizes of expressions, by the place of the text in the document.
type Products = BTreeMap<String, u64>;

/// Checks a JSON schema.
///
/// # Errors
/// The limit that it exceeds.
pub(super) fn check_schema(schema: &Value) -> Result<(), String> {
    let mut values = 0;
    check_values(schema, &mut values)?;
    let mut places = Places {
        root: schema,
        visited: 0,
        targets: HashMap::new(),
    };
    let products = places.products(schema, References::ALL)?;
    check_products(&products)?;
    // Definitions are compiled separately, also if their use lies behind the followed references.
    for name in ["$defs", "definitions"] {
        let all = schema.get(name).and_then(Value::as_object);
        for definition in all.into_iter().flat_map(Map::values) {
            check_products(&places.products(definition, References::ALL)?)?;
        }
    }
    Ok(())
}

fn check_products(products: &Products) -> Result<(), String> {
    match products.iter().find(|(_, product)| **product > MAX_PRODUCT) {
        None => Ok(()),
        Some((place, _)) => Err(format!(
            "too many or too long patterns or alternatives apply to the same text{}{place}; \
             use fewer patterns, or one that is equivalent",
            if place.is_empty() { "" } else { " at " }
        )),
    }
}

fn check_values(value: &Value, count: &mut usize) -> Result<(), String> {
    *count += 1;
    if *count > MAX_VALUES {
        return Err(format!("it has more than {MAX_VALUES} values"));
    }
    let members = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => return Ok(()),
    };
    if members > MAX_MEMBERS {
        return Err(format!(
            "an object or list of it has {members} members; at most {MAX_MEMBERS} are supported"
        ));
    }
    match value {
        Value::Array(items) => items.iter().try_for_each(|item| check_values(item, count)),
        Value::Object(fields) => fields
            .values()
            .try_for_each(|field| check_values(field, count)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}

/// A walk over the places of a schema.
struct Places<'a> {
    root: &'a Value,
    visited: usize,
    /// The products of targets that were already followed.
    targets: HashMap<(&'a str, References), Products>,
}

impl<'a> Places<'a> {
    /// The products of a schema: those of everything that applies to the same text are multiplied,
    /// those of alternatives are compared.
    fn products(&mut self, schema: &'a Value, references: References) -> Result<Products, String> {
        self.visited += 1;
        if self.visited > MAX_PLACES {
            return Err(format!(
                "with its references it has more than {MAX_PLACES} places"
            ));
        }
        let Value::Object(fields) = schema else {
            return Ok(Products::new());
        };
        let mut all = Products::new();
        let text = |name: &str| fields.get(name).and_then(Value::as_str);
        if let Some(pattern) = text("pattern") {
            check_nesting(pattern)?;
            multiply(&mut all, "", pattern_size(pattern));
        }
        if text("format").is_some() {
            multiply(&mut all, "", ASSUMED_SIZE);
        }
        self.children(fields, references, &mut all)?;
        for member in list(fields, "allOf") {
            let own = self.products(member, references)?;
            combine(&mut all, own);
        }
        for name in ["anyOf", "oneOf"] {
            let mut most = Products::new();
            for member in list(fields, name) {
                for (place, product) in self.products(member, references)? {
                    let known = most.entry(place).or_insert(1);
                    *known = product.max(*known);
                }
            }
            // Alternatives of one schema are combined with those of the others.
            let count = list(fields, name).len() as u64;
            if count > 1 {
                multiply(&mut most, ALTERNATIVES, count);
            }
            combine(&mut all, most);
        }
        for name in ["not", "if", "then", "else"] {
            if let Some(member) = fields.get(name) {
                let own = self.products(member, references)?;
                combine(&mut all, own);
            }
        }
        if let (Some(target), Some(references)) = (text("$ref"), references.of_target()) {
            let own = self.target(target, references)?;
            combine(&mut all, own);
        }
        Ok(all)
    }

    /// The products of a reference's target in this document.
    fn target(&mut self, name: &'a str, references: References) -> Result<Products, String> {
        if let Some(known) = self.targets.get(&(name, references)) {
            return Ok(known.clone());
        }
        let found = name.strip_prefix('#').and_then(|at| self.root.pointer(at));
        let products = match found {
            // A schema that refers to its root is compiled once.
            Some(found) if std::ptr::eq(found, self.root) => Products::new(),
            Some(found) => self.products(found, references)?,
            None => Products::from([(String::new(), ASSUMED_SIZE)]),
        };
        self.targets.insert((name, references), products.clone());
        Ok(products)
    }

    /// Adds the products of an object's properties and a list's items.
    fn children(
        &mut self,
        fields: &'a Map<String, Value>,
        references: References,
        all: &mut Products,
    ) -> Result<(), String> {
        let references = references.of_members();
        let object = |name: &str| fields.get(name).and_then(Value::as_object);
        // Names of other properties must match none of the patterns, values of matching properties
        // all schemas of the patterns.
        let mut matching = Products::new();
        for (pattern, member) in object("patternProperties").into_iter().flatten() {
            check_nesting(pattern)?;
            multiply(all, NAMES, pattern_size(pattern));
            let own = self.products(member, references)?;
            combine(&mut matching, own);
        }
        for (name, member) in object("properties").into_iter().flatten() {
            let mut own = self.products(member, references)?;
            combine(&mut own, matching.clone());
            below(all, name, own);
        }
        below(all, "*", matching);
        if let Some(names) = fields.get("propertyNames") {
            let own = self.products(names, references)?;
            multiply(all, NAMES, own.get("").copied().unwrap_or(1));
        }
        for name in [
            "additionalProperties",
            "items",
            "additionalItems",
            "contains",
        ] {
            if let Some(member) = fields.get(name) {
                let own = self.products(member, references)?;
                below(all, name, own);
            }
        }
        for (at, member) in list(fields, "prefixItems").iter().enumerate() {
            let own = self.products(member, references)?;
            below(all, &at.to_string(), own);
        }
        Ok(())
    }
}

fn list<'a>(fields: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    fields
        .get(name)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn multiply(all: &mut Products, place: &str, factor: u64) {
    match all.get_mut(place) {
        Some(product) => *product = product.saturating_mul(factor),
        None => drop(all.insert(place.to_string(), factor)),
    }
}

fn combine(all: &mut Products, other: Products) {
    for (place, factor) in other {
        multiply(all, &place, factor);
    }
}

fn below(all: &mut Products, name: &str, inner: Products) {
    for (place, factor) in inner {
        multiply(all, &format!("/{name}{place}"), factor);
    }
}

/// An upper bound of the branches of an expression's derivative. The literal beginning of an
/// anchored expression has one: the next character.
fn pattern_size(pattern: &str) -> u64 {
    let rest = match pattern.strip_prefix('^') {
        Some(anchored) => anchored.trim_start_matches(|c: char| !"\\.*+?()|[]{}^$".contains(c)),
        None => pattern,
    };
    rest.chars().count() as u64 + 2
}

/// Checks a regular expression.
///
/// # Errors
/// The limit that it exceeds.
pub(super) fn check_regex(regex: &str) -> Result<(), String> {
    check_length(regex)?;
    check_nesting(regex)
}

/// Checks a Lark grammar and the JSON schemas inside it.
///
/// # Errors
/// The limit that it exceeds.
pub(super) fn check_lark(grammar: &str) -> Result<(), String> {
    check_length(grammar)?;
    check_nesting(&without_texts(grammar))?;
    // Intersections are the only operator whose cost is a product, also across rules.
    let operators = without_texts(grammar).matches(['&', '~']).count();
    if operators > MAX_OPERATORS {
        return Err(format!(
            "it has {operators} of the operators & and ~; at most {MAX_OPERATORS} are supported"
        ));
    }
    for (at, keyword) in grammar.match_indices("%json") {
        let rest = &grammar[at + keyword.len()..];
        let mut schemas = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        // The compiler reports what is not JSON.
        if let Some(Ok(schema)) = schemas.next() {
            check_schema(&schema)?;
        }
    }
    Ok(())
}

/// Maximum number of intersections and complements in a Lark grammar.
const MAX_OPERATORS: usize = 6;

/// The grammar without JSON schemas, texts in quotes and regular expressions between slashes, whose
/// brackets and operators are not those of the grammar.
fn without_texts(grammar: &str) -> String {
    let mut kept = String::with_capacity(grammar.len());
    let mut chars = grammar.chars();
    while let Some(c) = chars.next() {
        kept.push(c);
        if !matches!(c, '"' | '/') {
            continue;
        }
        while let Some(inner) = chars.next() {
            match inner {
                '\\' => drop(chars.next()),
                '\n' => {
                    kept.push('\n');
                    break;
                }
                _ if inner == c => break,
                _ => {}
            }
        }
    }
    kept
}

fn check_length(text: &str) -> Result<(), String> {
    match text.len() <= MAX_BYTES {
        true => Ok(()),
        false => Err(format!(
            "it has {} bytes; at most {MAX_BYTES} are supported",
            text.len()
        )),
    }
}

fn check_nesting(text: &str) -> Result<(), String> {
    let mut depth = 0usize;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '(' | '[' | '{' => depth += 1,
            ')' | ']' | '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > MAX_NESTING {
            return Err(format!(
                "its groups are nested more than {MAX_NESTING} deep"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

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
        let prefixes: Map<String, Value> =
            (0..10).map(|at| (format!("^x{at}-"), json!({}))).collect();
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
                let own = json!({"name": name, "a": node, "b": node, "c": {"type": "array", "items": node}});
                (format!("n{at}"), json!({"type": "object", "properties": own}))
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
        let fields: Map<String, Value> =
            (0..6900).map(|at| (format!("p{at}"), json!({}))).collect();
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
}
