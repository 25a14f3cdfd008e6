//! Objects with only their stated properties.
//!
//! A schema without `additionalProperties` permits any properties. A model that may add any writes
//! them until it has no tokens left, so an object gets only the properties that its schema states.
//! If several schemas describe one object (`allOf`, or `properties` beside `$ref` or `anyOf`), the
//! names of all of them count: each schema on its own would exclude those of the others.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value};

use super::{SchemaRole, SchemaTranslation, resolve};

/// Maximum number of schemas that are visited to find the properties of an object.
const MAX_SCHEMAS: usize = 4096;

/// The properties that the schemas of one object state.
#[derive(Default)]
struct StatedProperties {
    /// The names in order, with the number of schemas that describe each.
    names: Vec<String>,
    counts: BTreeMap<String, usize>,
    /// Whether a schema decides about further properties.
    is_decided: bool,
    /// References to the schemas.
    targets: HashSet<String>,
    visited: usize,
}

impl StatedProperties {
    fn add(&mut self, name: &str, count: usize) {
        let known = self.counts.entry(name.to_string()).or_insert(0);
        if *known == 0 && !name.starts_with('/') {
            self.names.push(name.to_string());
        }
        *known += count;
    }

    /// Adds those of a schema, which applies to the same object.
    fn collect(&mut self, root: &Value, fields: &Map<String, Value>) {
        self.visited += 1;
        if self.visited > MAX_SCHEMAS {
            return;
        }
        self.is_decided |= decides(fields);
        let own = fields.get("properties").and_then(Value::as_object);
        own.into_iter()
            .flatten()
            .for_each(|(name, _)| self.add(name, 1));
        for name in required(fields) {
            self.add(name, 0);
        }
        for key in ["items", "additionalProperties"] {
            if fields.contains_key(key) {
                // Starts with a slash, which sets it apart from names.
                self.add(&format!("/{key}"), 1);
            }
        }
        for member in members(fields, "allOf").filter_map(Value::as_object) {
            self.collect(root, member);
        }
        // Of alternatives, only one applies.
        for key in ["anyOf", "oneOf"] {
            let mut most = BTreeMap::new();
            for member in members(fields, key).filter_map(Value::as_object) {
                let mut one = StatedProperties {
                    visited: self.visited,
                    targets: std::mem::take(&mut self.targets),
                    ..StatedProperties::default()
                };
                one.collect(root, member);
                self.visited = one.visited;
                self.targets = one.targets;
                self.is_decided |= one.is_decided;
                for name in one.names {
                    self.add(&name, 0);
                }
                for (name, count) in one.counts {
                    let known = most.entry(name).or_insert(0);
                    *known = count.max(*known);
                }
            }
            for (name, count) in most {
                *self.counts.entry(name).or_insert(0) += count;
            }
        }
        if let Some(target) = fields.get("$ref").and_then(Value::as_str)
            && self.targets.insert(target.to_string())
            && let Some(Value::Object(target)) = resolve(root, target)
        {
            self.collect(root, target);
        }
    }
}

/// Whether a schema has a keyword about further properties.
fn decides(fields: &Map<String, Value>) -> bool {
    let keys = [
        "additionalProperties",
        "patternProperties",
        "unevaluatedProperties",
    ];
    keys.iter().any(|key| fields.contains_key(*key))
}

fn required(fields: &Map<String, Value>) -> impl Iterator<Item = &str> {
    members(fields, "required").filter_map(Value::as_str)
}

fn members<'a>(fields: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    fields
        .get(key)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// The number of schemas that describe the properties of the same object.
pub(super) fn parts(fields: &Map<String, Value>) -> usize {
    let own = ["properties", "required"]
        .iter()
        .any(|key| fields.contains_key(*key));
    let keys = ["anyOf", "oneOf", "$ref"];
    let others = keys.iter().filter(|key| fields.contains_key(**key)).count();
    usize::from(own || decides(fields)) + others + members(fields, "allOf").count()
}

/// Whether alternatives exclude each other by their types, or by the constant of a required property.
pub(super) fn are_distinct(all: Option<&Value>) -> bool {
    let all: Vec<&Map<String, Value>> = match all {
        Some(Value::Array(all)) => all.iter().filter_map(Value::as_object).collect(),
        _ => return false,
    };
    let mut types: Vec<&str> = Vec::new();
    for one in &all {
        match one.get("type").and_then(Value::as_str) {
            Some("integer" | "number") => types.push("number"),
            Some(name) => types.push(name),
            None => {
                types.clear();
                break;
            }
        }
    }
    let count = types.len();
    types.sort_unstable();
    types.dedup();
    if count == all.len() && types.len() == count {
        return true;
    }
    let constant = |one: &Map<String, Value>, name: &str| {
        let is_required = required(one).any(|known| known == name);
        let value = one.get("properties")?.get(name)?.get("const")?;
        is_required.then(|| value.to_string())
    };
    let Some(first) = all.first() else {
        return false;
    };
    required(first).any(|name| {
        let values: Option<HashSet<String>> = all.iter().map(|one| constant(one, name)).collect();
        values.is_some_and(|values| values.len() == all.len())
    })
}

impl SchemaTranslation<'_> {
    /// Finds the references and the properties that describe an object together with others.
    pub(super) fn find_conjunctions(&mut self, schema: &Value) {
        match schema {
            Value::Object(fields) => {
                if parts(fields) > 1 {
                    let mut stated = StatedProperties::default();
                    stated.collect(self.root, fields);
                    self.conjuncts.extend(stated.targets);
                    let shared = stated.counts.into_iter().filter(|(_, count)| *count > 1);
                    self.shared.extend(shared.map(|(name, _)| name));
                }
                for (key, value) in fields {
                    if !matches!(key.as_str(), "enum" | "const" | "default" | "examples") {
                        self.find_conjunctions(value);
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.find_conjunctions(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Whether the definition `name` below `path` describes objects together with other schemas.
    pub(super) fn is_conjunct(&self, path: &str, name: &str) -> bool {
        self.conjuncts.contains(&format!("#{path}/{name}"))
    }

    /// Excludes properties that the schema of an object does not state, unless it asks for more.
    pub(super) fn close(&self, fields: &mut Map<String, Value>, role: SchemaRole) {
        if role != SchemaRole::Alone || decides(fields) {
            return;
        }
        let names = match parts(fields) {
            0 => return,
            1 if !fields.contains_key("properties") => return,
            1 => required(fields).map(str::to_string).collect(),
            _ => {
                let mut stated = StatedProperties::default();
                stated.collect(self.root, fields);
                if stated.is_decided || stated.visited > MAX_SCHEMAS {
                    return;
                }
                stated.names
            }
        };
        let least = fields
            .get("minProperties")
            .and_then(Value::as_u64)
            .unwrap_or(0);
        let own = fields.get("properties").and_then(Value::as_object);
        let mut own = own.cloned().unwrap_or_default();
        for name in names {
            own.entry(name).or_insert(Value::Bool(true));
        }
        let is_stated = fields.contains_key("properties") || !own.is_empty();
        if !is_stated || least > own.len() as u64 {
            return;
        }
        fields.insert("properties".to_string(), Value::Object(own));
        fields.insert("additionalProperties".to_string(), Value::Bool(false));
    }
}
