//! JSON schemas in the form that the grammar compiler takes.
//!
//! JSON Schema describes valid documents, whereas a grammar describes the documents that a model may
//! write. [`GenerationSchema`] therefore differs from its schema in three ways:
//!
//! - An object with stated properties gets only these, unless the schema asks for more.
//! - `format` is an annotation: unknown formats have no effect, and neither does a format beside a
//!   `pattern`.
//! - Keywords that no grammar can express are refused, or ignored with a note.

mod closing;
mod numbers;
mod texts;

use std::collections::HashSet;
use std::fmt;

use serde_json::{Map, Value, json};

use super::{ConstraintError, exact_schema, limits};

/// Keywords of JSON Schema that the grammar compiler knows and cannot express.
const UNSUPPORTED: [&str; 16] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "uniqueItems",
    "propertyNames",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];
/// Keywords whose value must not be null; some programs write null for an absent keyword.
const NOT_NULL: [&str; 29] = [
    "$ref",
    "$defs",
    "definitions",
    "type",
    "enum",
    "allOf",
    "anyOf",
    "oneOf",
    "items",
    "additionalItems",
    "prefixItems",
    "minItems",
    "maxItems",
    "properties",
    "additionalProperties",
    "patternProperties",
    "required",
    "minProperties",
    "maxProperties",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "$schema",
];
const TYPES: [&str; 7] = [
    "null", "boolean", "integer", "number", "string", "array", "object",
];

/// Maximum number of optional properties of an object whose properties are counted. The compiler
/// writes a list of all properties for each.
const MAX_COUNTED: usize = 64;

/// A part of a schema that has no effect on generated text.
///
/// ```
/// use tercet_text::constraint::GenerationSchema;
/// let schema = serde_json::json!({"type": "array", "uniqueItems": true});
/// let made = GenerationSchema::new(&schema, false)?;
/// assert_eq!(made.notes[0].path, "/uniqueItems");
/// # Ok::<(), tercet_text::constraint::SchemaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaNote {
    /// JSON pointer to the part.
    pub path: String,
    /// Why it has no effect.
    pub reason: String,
}

impl fmt::Display for SchemaNote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is ignored: {}", self.path, self.reason)
    }
}

/// Error of a schema that cannot constrain generated text.
///
/// ```
/// use tercet_text::constraint::GenerationSchema;
/// let schema = serde_json::json!({"type": "array", "uniqueItems": true});
/// let error = GenerationSchema::new(&schema, true).unwrap_err();
/// assert_eq!(error.path, "/uniqueItems");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", place(path))]
pub struct SchemaError {
    /// JSON pointer to the unsupported or invalid part; empty for the whole schema.
    pub path: String,
    /// Cause and remedy.
    pub reason: String,
}

fn place(path: &str) -> String {
    match path {
        "" => String::new(),
        path => format!("at `{path}`: "),
    }
}

impl From<SchemaError> for ConstraintError {
    fn from(error: SchemaError) -> ConstraintError {
        ConstraintError::Grammar {
            kind: "JSON schema",
            reason: error.to_string(),
        }
    }
}

/// A JSON schema in the form that the grammar compiler takes.
///
/// ```
/// use tercet_text::constraint::GenerationSchema;
/// let schema = serde_json::json!({"type": "object", "properties": {"name": {"type": "string"}}});
/// let made = GenerationSchema::new(&schema, true)?;
/// assert_eq!(made.schema["additionalProperties"], false); // only the stated properties
/// assert!(made.notes.is_empty());
/// # Ok::<(), tercet_text::constraint::SchemaError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationSchema {
    /// The schema.
    pub schema: Value,
    /// The parts without effect.
    pub notes: Vec<SchemaNote>,
}

impl GenerationSchema {
    /// Translates a schema. Parts that no grammar can express are an error if `is_strict` is set, and
    /// have no effect otherwise.
    ///
    /// # Errors
    /// An invalid schema, one beyond a limit, or with `is_strict` an unsupported part.
    pub fn new(schema: &Value, is_strict: bool) -> Result<GenerationSchema, SchemaError> {
        let whole = |reason| SchemaError {
            path: String::new(),
            reason,
        };
        limits::check_size(schema).map_err(whole)?;
        let mut translation = SchemaTranslation {
            root: schema,
            is_strict,
            notes: Vec::new(),
            conjuncts: HashSet::new(),
            shared: HashSet::new(),
            multiples: numbers::SchemaDivisors::default(),
        };
        translation.find_conjunctions(schema);
        let mut made = schema.clone();
        translation.visit(&mut made, "", SchemaRole::Alone)?;
        let schema = exact_schema(&made).map_err(|e| whole(super::reason_of(e)))?;
        limits::check_schema(&schema).map_err(whole)?;
        let notes = translation.notes;
        Ok(GenerationSchema { schema, notes })
    }
}

/// The role of a subschema for the properties of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SchemaRole {
    /// It describes values alone, and may exclude properties that it does not state.
    Alone,
    /// Other schemas state properties of the same object.
    Part,
    /// Other schemas describe the same values, down to all properties.
    Open,
}

/// The state of a translation.
struct SchemaTranslation<'a> {
    root: &'a Value,
    is_strict: bool,
    notes: Vec<SchemaNote>,
    /// References whose targets describe an object together with other schemas.
    conjuncts: HashSet<String>,
    /// Names of properties that several schemas of one object describe.
    shared: HashSet<String>,
    /// The values of `multipleOf`.
    multiples: numbers::SchemaDivisors,
}

impl SchemaTranslation<'_> {
    /// Removes a keyword that has no grammar.
    fn ignore(
        &mut self,
        fields: &mut Map<String, Value>,
        (path, keyword): (&str, &str),
        reason: &str,
    ) -> Result<(), SchemaError> {
        self.refuse(path, keyword, reason)?;
        fields.shift_remove(keyword);
        Ok(())
    }

    /// An error, or a note without `strict`.
    fn refuse(&mut self, path: &str, keyword: &str, reason: &str) -> Result<(), SchemaError> {
        let path = pointer(path, keyword);
        let reason = reason.to_string();
        match self.is_strict {
            true => Err(SchemaError { path, reason }),
            false => {
                self.notes.push(SchemaNote { path, reason });
                Ok(())
            }
        }
    }

    fn visit(
        &mut self,
        schema: &mut Value,
        path: &str,
        role: SchemaRole,
    ) -> Result<(), SchemaError> {
        let fields = match schema {
            Value::Object(fields) => fields,
            Value::Bool(_) => return Ok(()),
            Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => {
                return Err(SchemaError {
                    path: path.to_string(),
                    reason: format!(
                        "expected a schema, which is an object or a boolean, found {}",
                        kind(schema)
                    ),
                });
            }
        };
        fields.retain(|key, value| !value.is_null() || !NOT_NULL.contains(&key.as_str()));
        check_type(fields, path)?;
        self.names(fields);
        self.unsupported(fields, path, role)?;
        self.reference(fields, path)?;
        self.texts(fields, path)?;
        self.numbers(fields, path)?;
        self.alternatives(fields, path)?;
        self.children(fields, path, role)?;
        self.close(fields, role);
        self.count_of_properties(fields, path)
    }

    /// Expresses `propertyNames` by properties and patterns.
    fn names(&self, fields: &mut Map<String, Value>) {
        let Some(Value::Object(names)) = fields.get("propertyNames") else {
            return;
        };
        let is_plain = |key: &String| matches!(key.as_str(), "type" | "enum" | "pattern" | "$ref");
        let has_own = fields.contains_key("properties") || fields.contains_key("patternProperties");
        let target = names.get("$ref").and_then(Value::as_str);
        let names = match target.and_then(|target| resolve(self.root, target)) {
            Some(Value::Object(target)) if names.len() == 1 => target,
            _ => names,
        };
        if !names.keys().all(is_plain) {
            return;
        }
        let value = fields.get("additionalProperties").cloned();
        let value = value.unwrap_or(Value::Bool(true));
        let made = match (names.get("enum"), names.get("pattern")) {
            // Every name is a text.
            (None, None) if !names.contains_key("$ref") => None,
            (Some(Value::Array(names)), None) if !has_own => {
                let names = names.iter().filter_map(Value::as_str);
                let all: Map<String, Value> = names
                    .map(|name| (name.to_string(), value.clone()))
                    .collect();
                Some(("properties", all))
            }
            (None, Some(Value::String(pattern))) if !has_own && texts::is_supported(pattern) => {
                Some((
                    "patternProperties",
                    Map::from_iter([(pattern.clone(), value)]),
                ))
            }
            _ => return,
        };
        fields.shift_remove("propertyNames");
        if let Some((keyword, all)) = made {
            fields.insert(keyword.to_string(), Value::Object(all));
            fields.insert("additionalProperties".to_string(), Value::Bool(false));
        }
    }

    fn unsupported(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
        role: SchemaRole,
    ) -> Result<(), SchemaError> {
        if role == SchemaRole::Alone
            && !fields.contains_key("additionalProperties")
            && ["allOf", "anyOf", "oneOf", "$ref"]
                .iter()
                .all(|key| !fields.contains_key(*key))
            && let Some(others) = fields.shift_remove("unevaluatedProperties")
        {
            fields.insert("additionalProperties".to_string(), others);
        }
        for keyword in UNSUPPORTED {
            let is_empty = match (keyword, fields.get(keyword)) {
                (_, None) => continue,
                ("uniqueItems", Some(value)) => *value == Value::Bool(false),
                ("not", Some(value)) => *value == Value::Bool(false),
                (_, Some(value)) => value.is_null() || *value == Value::Bool(true),
            };
            if is_empty {
                fields.shift_remove(keyword);
                continue;
            }
            let reason = "generated text cannot be constrained by this keyword";
            self.ignore(fields, (path, keyword), reason)?;
        }
        Ok(())
    }

    fn reference(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
    ) -> Result<(), SchemaError> {
        let Some(target) = fields.get("$ref") else {
            return Ok(());
        };
        match target.as_str() {
            Some(target) if resolve(self.root, target).is_some() => Ok(()),
            _ => {
                let target = tercet_files::clip(&target.to_string());
                let reason =
                    format!("{target} is not found in the schema; expected `#/$defs/NAME`");
                self.ignore(fields, (path, "$ref"), &reason)
            }
        }
    }

    /// Without `strict`, exactly one of several schemas is any of them.
    fn alternatives(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
    ) -> Result<(), SchemaError> {
        let Some(Value::Array(all)) = fields.get("oneOf") else {
            return Ok(());
        };
        if self.is_strict {
            return Ok(());
        }
        let all = json!({"anyOf": all.clone()});
        if !closing::are_distinct(fields.get("oneOf")) {
            self.refuse(
                path,
                "oneOf",
                "an answer may match several of its schemas, as for `anyOf`",
            )?;
        }
        // The place in the object determines the order of properties.
        let has_any = fields.contains_key("anyOf");
        for (key, value) in std::mem::take(fields) {
            match key == "oneOf" {
                true if has_any => {}
                true => drop(fields.insert("anyOf".to_string(), value)),
                false => drop(fields.insert(key, value)),
            }
        }
        if has_any {
            let members = fields.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(members) = members {
                members.push(all);
            }
        }
        Ok(())
    }

    fn children(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
        role: SchemaRole,
    ) -> Result<(), SchemaError> {
        let in_place = match role {
            SchemaRole::Alone if closing::parts(fields) > 1 => SchemaRole::Part,
            role => role,
        };
        for (key, value) in fields.iter_mut() {
            let path = pointer(path, key);
            match (key.as_str(), value) {
                ("properties" | "patternProperties", Value::Object(all)) => {
                    for (name, member) in all.iter_mut() {
                        let role = self.role_of(in_place, name);
                        self.visit(member, &pointer(&path, name), role)?;
                    }
                }
                ("$defs" | "definitions", Value::Object(all)) => {
                    for (name, member) in all.iter_mut() {
                        let role = match self.is_conjunct(&path, name) {
                            true => SchemaRole::Part,
                            false => SchemaRole::Alone,
                        };
                        self.visit(member, &pointer(&path, name), role)?;
                    }
                }
                ("allOf" | "anyOf" | "oneOf", Value::Array(all)) => {
                    for (at, member) in all.iter_mut().enumerate() {
                        self.visit(member, &format!("{path}/{at}"), in_place)?;
                    }
                }
                ("items" | "prefixItems", Value::Array(all)) => {
                    for (at, member) in all.iter_mut().enumerate() {
                        let role = self.role_of(in_place, "/items");
                        self.visit(member, &format!("{path}/{at}"), role)?;
                    }
                }
                ("items" | "additionalItems" | "additionalProperties", member) => {
                    let role = self.role_of(in_place, &format!("/{key}"));
                    self.visit(member, &path, role)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The role of the schema of a property.
    fn role_of(&self, object: SchemaRole, name: &str) -> SchemaRole {
        match object {
            SchemaRole::Alone => SchemaRole::Alone,
            SchemaRole::Part if !self.shared.contains(name) => SchemaRole::Alone,
            SchemaRole::Part | SchemaRole::Open => SchemaRole::Open,
        }
    }

    /// `minProperties` and `maxProperties` need the other properties to be required.
    fn count_of_properties(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
    ) -> Result<(), SchemaError> {
        let least = fields
            .get("minProperties")
            .and_then(Value::as_u64)
            .unwrap_or(0);
        let most = fields.get("maxProperties").and_then(Value::as_u64);
        let Some(Value::Object(properties)) = fields.get("properties") else {
            return Ok(());
        };
        let required = fields.get("required").and_then(Value::as_array);
        let is_required =
            |name: &str| required.is_some_and(|all| all.iter().any(|known| known == name));
        let count = properties.keys().filter(|name| is_required(name)).count();
        let optional = properties.len() - count;
        let count = count as u64;
        let (least, most) = (
            least.saturating_sub(count),
            most.map(|most| most.saturating_sub(count)),
        );
        let is_closed = fields.get("additionalProperties") == Some(&Value::Bool(false));
        if optional == 0 {
            return Ok(());
        }
        if least == 0 {
            fields.shift_remove("minProperties");
        }
        let most = most.filter(|most| !is_closed || *most < optional as u64);
        if most.is_none() {
            fields.shift_remove("maxProperties");
        }
        if least == 0 && most.is_none() {
            return Ok(());
        }
        let is_one = least <= 1
            && most.unwrap_or(1) == 1
            && optional <= MAX_COUNTED
            && !fields.contains_key("patternProperties")
            && is_closed;
        if is_one {
            return Ok(());
        }
        let reason = "properties can only be counted if all stated properties are required, or for one of up to 64";
        for keyword in ["minProperties", "maxProperties"] {
            if fields.contains_key(keyword) {
                self.ignore(fields, (path, keyword), reason)?;
            }
        }
        Ok(())
    }
}

fn check_type(fields: &Map<String, Value>, path: &str) -> Result<(), SchemaError> {
    let wrong = |found: &Value| {
        let is_known = found.as_str().is_some_and(|name| TYPES.contains(&name));
        (!is_known).then(|| tercet_files::clip(&found.to_string()))
    };
    let found = match fields.get("type") {
        None => None,
        Some(Value::Array(all)) => all.iter().find_map(wrong),
        Some(one) => wrong(one),
    };
    match found {
        None => Ok(()),
        Some(found) => Err(SchemaError {
            path: pointer(path, "type"),
            reason: format!("expected one of {}, found {found}", TYPES.join(", ")),
        }),
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A JSON pointer extended by a key.
fn pointer(path: &str, key: &str) -> String {
    format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// The target of a reference, in the syntax of the grammar compiler: it does not decode `~1`.
fn resolve<'a>(root: &'a Value, target: &str) -> Option<&'a Value> {
    if matches!(target, "#" | "#/") {
        return Some(root);
    }
    let mut found = root;
    for segment in target.strip_prefix("#/")?.split('/') {
        found = match found {
            Value::Array(items) => items.get(segment.parse::<usize>().ok()?)?,
            other => other.get(segment)?,
        };
    }
    matches!(found, Value::Object(_) | Value::Bool(_)).then_some(found)
}
