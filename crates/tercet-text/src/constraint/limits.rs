//! Limits of grammars before they are compiled.
//!
//! The grammar compiler limits the number of its steps, but not the work of one step. The
//! derivative of an intersection of regular expressions can have as many branches as the product of
//! their sizes. The compiler also recurses over the parts of a grammar. The checks of this module
//! bound the products and the recursion, so that no request blocks a thread, overflows its stack or
//! exhausts memory.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Map, Value};

/// Maximum size of a schema or grammar, in bytes.
pub const MAX_BYTES: usize = 1 << 20;
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
/// Key in [`Products`] for the product of the numbers of alternatives.
const ALTERNATIVES: &str = "/(alternatives)";
/// Key in [`Products`] for the names of an object's properties.
const NAMES: &str = "/(names)";
/// Maximum length of a chain of references (`$ref` to `$ref`) that apply to the same text.
const MAX_CHAIN: usize = 8;
/// Maximum number of references followed on the path from a schema into its properties and items.
/// One is enough to find conjunctions across definitions, because every definition is also checked
/// on its own.
const MAX_REFERENCES: usize = 1;
/// Maximum number of subschemas visited by a check; the target of a reference counts at each use.
const MAX_PLACES: usize = 1 << 19;

/// The numbers of references that the check may still follow from a subschema.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SchemaReferences {
    /// References that apply to the same text.
    chain: usize,
    /// References from a schema into its properties and items.
    inner: usize,
}

impl SchemaReferences {
    const ALL: SchemaReferences = SchemaReferences {
        chain: MAX_CHAIN,
        inner: MAX_REFERENCES,
    };

    /// The remaining references for the schemas of properties and items.
    fn of_members(self) -> SchemaReferences {
        let chain = if self.inner > 0 { MAX_CHAIN } else { 0 };
        SchemaReferences { chain, ..self }
    }

    /// The remaining references for the target of a reference; `None` if the check does not follow
    /// it.
    fn of_target(self) -> Option<SchemaReferences> {
        Some(SchemaReferences {
            chain: self.chain.checked_sub(1)?,
            inner: self.inner.saturating_sub(1),
        })
    }
}

/// The product of the sizes of all expressions that must match the same text, by the path of this
/// text in the JSON document.
type Products = BTreeMap<String, u64>;

/// Checks a JSON schema.
///
/// # Errors
/// A message that names the exceeded limit.
pub fn check_schema(schema: &Value) -> Result<(), String> {
    check_size(schema)?;
    let mut places = SchemaPlaces {
        root: schema,
        visited: 0,
        targets: HashMap::new(),
    };
    let products = places.products(schema, SchemaReferences::ALL)?;
    check_products(&products)?;
    // Check each definition too: the compiler compiles it even if no followed reference leads to
    // it.
    for name in ["$defs", "definitions"] {
        let all = schema.get(name).and_then(Value::as_object);
        for definition in all.into_iter().flat_map(Map::values) {
            check_products(&places.products(definition, SchemaReferences::ALL)?)?;
        }
    }
    Ok(())
}

/// Checks the numbers of values and members of a schema.
///
/// # Errors
/// A message that names the exceeded limit.
pub(super) fn check_size(schema: &Value) -> Result<(), String> {
    check_values(schema, &mut 0)
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

/// The state of a check that visits all subschemas.
struct SchemaPlaces<'a> {
    root: &'a Value,
    visited: usize,
    /// The products of reference targets that were already visited.
    targets: HashMap<(&'a str, SchemaReferences), Products>,
}

impl<'a> SchemaPlaces<'a> {
    /// The products of a schema. Factors of subschemas that all apply to the same text are
    /// multiplied; of alternatives, the greatest product counts.
    fn products(
        &mut self,
        schema: &'a Value,
        references: SchemaReferences,
    ) -> Result<Products, String> {
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
            // Several lists of alternatives at one schema combine, so their numbers are multiplied
            // as well.
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

    /// The products of the target `name` of a reference in this document.
    fn target(&mut self, name: &'a str, references: SchemaReferences) -> Result<Products, String> {
        if let Some(known) = self.targets.get(&(name, references)) {
            return Ok(known.clone());
        }
        let found = name.strip_prefix('#').and_then(|at| self.root.pointer(at));
        let products = match found {
            // A reference to the root adds no cost, because the compiler compiles the root once.
            Some(found) if std::ptr::eq(found, self.root) => Products::new(),
            Some(found) => self.products(found, references)?,
            None => Products::from([(String::new(), ASSUMED_SIZE)]),
        };
        self.targets.insert((name, references), products.clone());
        Ok(products)
    }

    /// Adds to `all` the products of the schemas of an object's properties and a list's items.
    fn children(
        &mut self,
        fields: &'a Map<String, Value>,
        references: SchemaReferences,
        all: &mut Products,
    ) -> Result<(), String> {
        let references = references.of_members();
        let object = |name: &str| fields.get(name).and_then(Value::as_object);
        // The name of an additional property must match none of the patterns. The value of a
        // property must match the schemas of all patterns that its name matches.
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

/// An upper bound of the number of branches of a regular expression's derivative. The literal
/// prefix of an anchored expression counts as one branch: its next character.
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
/// A message that names the exceeded limit.
pub fn check_regex(regex: &str) -> Result<(), String> {
    check_length(regex)?;
    check_nesting(regex)
}

/// Checks a Lark grammar and the JSON schemas inside it.
///
/// # Errors
/// A message that names the exceeded limit.
pub fn check_lark(grammar: &str) -> Result<(), String> {
    check_length(grammar)?;
    check_nesting(&without_texts(grammar))?;
    // The cost of intersections and complements multiplies, even across rules; that of other
    // operators adds up.
    let operators = without_texts(grammar).matches(['&', '~']).count();
    if operators > MAX_OPERATORS {
        return Err(format!(
            "it has {operators} of the operators & and ~; at most {MAX_OPERATORS} are supported"
        ));
    }
    check_terminals(&without_texts(grammar))?;
    for (at, keyword) in grammar.match_indices("%json") {
        let rest = &grammar[at + keyword.len()..];
        let mut schemas = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        // Ignore text that is not JSON: the compiler reports it.
        if let Some(Ok(schema)) = schemas.next() {
            check_schema(&schema)?;
        }
    }
    Ok(())
}

/// Maximum number of the uses of terminals in a terminal, with those in the terminals that it uses.
const MAX_EXPANDED: u64 = 1 << 16;

/// Checks the terminals of a Lark grammar without texts. The compiler replaces each use of a terminal
/// by its definition, so a chain of terminals that use the next one twice grows exponentially.
fn check_terminals(grammar: &str) -> Result<(), String> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_terminal = |name: &str| name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_');
    let mut uses: Vec<(&str, Vec<&str>)> = Vec::new();
    for line in grammar.lines() {
        let (head, body) = match line.split_once(':') {
            Some((head, body)) if !head.trim_start().starts_with('|') => (Some(head), body),
            _ => (None, line),
        };
        if let Some(head) = head {
            let name = head.split(|c| !is_name(c)).find(|name| !name.is_empty());
            uses.push((name.unwrap_or_default(), Vec::new()));
        }
        if let Some((_, used)) = uses.last_mut() {
            used.extend(body.split(|c| !is_name(c)).filter(|name| is_terminal(name)));
        }
    }
    let places: HashMap<&str, usize> = uses.iter().enumerate().map(|(i, u)| (u.0, i)).collect();
    let mut sizes: Vec<Option<u64>> = vec![None; uses.len()];
    for first in (0..uses.len()).filter(|at| is_terminal(uses[*at].0)) {
        let mut stack = vec![(first, false)];
        while let Some((at, is_second)) = stack.pop() {
            if sizes[at].is_some() && !is_second {
                continue;
            }
            let used = uses[at]
                .1
                .iter()
                .filter_map(|name| places.get(name).copied());
            if is_second {
                let sum = used.fold(1, |sum: u64, one| {
                    sum.saturating_add(sizes[one].unwrap_or(1))
                });
                if sum > MAX_EXPANDED {
                    let name = tercet_files::clip(uses[at].0);
                    return Err(format!(
                        "the terminal `{name}` has more than {MAX_EXPANDED} parts with those of the \
                         terminals that it uses; write it as a rule, in lower case"
                    ));
                }
                sizes[at] = Some(sum);
            } else {
                // A terminal that uses itself is an error of the compiler.
                sizes[at] = Some(1);
                stack.push((at, true));
                stack.extend(used.map(|one| (one, false)));
            }
        }
    }
    Ok(())
}

/// Maximum number of intersections and complements in a Lark grammar.
const MAX_OPERATORS: usize = 6;

/// The grammar without JSON schemas, quoted strings and regular expressions, so that their brackets
/// and operators do not count as the grammar's own.
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
