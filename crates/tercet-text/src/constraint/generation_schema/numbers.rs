//! Numbers: bounds, and multiples, whose grammar has a state for each remainder.

use serde_json::{Map, Value, json};

use super::super::exact_numbers::is_integer;
use super::{SchemaError, SchemaTranslation};

/// Maximum number of combinations of the remainders of all divisors of a schema. Numbers of several
/// schemas may have to be told apart, which combines their remainders.
const MAX_REMAINDERS: u64 = 4096;
/// Maximum decimal places of a divisor.
const MAX_PLACES: u32 = 9;
/// Bounds of numbers that are not integers are below this magnitude: the compiler computes with their
/// integer part and the next power of ten in I64.
const MAX_BOUND: f64 = 1e18;
/// Maximum characters of a bound in decimal notation.
const MAX_DIGITS: usize = 40;

const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
const COUNTS: [&str; 6] = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
];

impl SchemaTranslation<'_> {
    pub(super) fn numbers(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
    ) -> Result<(), SchemaError> {
        for keyword in COUNTS {
            self.count(fields, path, keyword)?;
        }
        if !is_integer(fields) {
            for keyword in BOUNDS {
                self.bound(fields, path, keyword)?;
            }
        }
        self.multiple(fields, path)
    }

    /// Checks a bound of numbers.
    fn bound(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
        keyword: &str,
    ) -> Result<(), SchemaError> {
        let Some(bound) = fields.get(keyword).and_then(Value::as_f64) else {
            return Ok(());
        };
        let is_large = bound.abs() >= MAX_BOUND;
        if is_large || format!("{bound}").len() > MAX_DIGITS {
            let limit = match is_large {
                true => "bounds of numbers up to 1e18 are supported",
                false => "bounds with up to 40 decimal digits are supported",
            };
            return self.ignore(fields, (path, keyword), limit);
        }
        Ok(())
    }

    /// Checks a count, such as a length. A float without fraction is an integer.
    fn count(
        &mut self,
        fields: &mut Map<String, Value>,
        path: &str,
        keyword: &str,
    ) -> Result<(), SchemaError> {
        let Some(count) = fields.get(keyword).filter(|count| !count.is_u64()) else {
            return Ok(());
        };
        match count.as_f64().filter(|x| *x >= 0.0 && x.fract() == 0.0) {
            Some(count) => {
                // The cast saturates.
                fields.insert(keyword.to_string(), json!(count as u64));
                Ok(())
            }
            None => Err(SchemaError {
                path: super::pointer(path, keyword),
                reason: format!(
                    "expected an integer from 0 on, found {}",
                    super::kind(count)
                ),
            }),
        }
    }

    /// Checks a divisor.
    fn multiple(&mut self, fields: &mut Map<String, Value>, path: &str) -> Result<(), SchemaError> {
        let Some(divisor) = fields.get("multipleOf") else {
            return Ok(());
        };
        let Some(divisor) = divisor.as_f64().map(f64::abs).filter(|x| *x > 0.0) else {
            let reason = "expected a number other than 0";
            return self.ignore(fields, (path, "multipleOf"), reason);
        };
        if scaled(divisor).is_some_and(|(count, places)| self.multiples.add(count, places)) {
            return Ok(());
        }
        let reason = format!(
            "the divisors of a schema, in units of their last decimal place, are supported up to a \
             least common multiple of {MAX_REMAINDERS}, and to {MAX_PLACES} places"
        );
        self.ignore(fields, (path, "multipleOf"), &reason)
    }
}

/// The divisors of a schema.
#[derive(Debug, Default)]
pub(super) struct SchemaDivisors {
    /// The least common multiple of those with as many decimal places as the index.
    multiples: [Option<u64>; MAX_PLACES as usize + 1],
}

impl SchemaDivisors {
    /// Adds a divisor, if their remainders do not exceed the limit.
    fn add(&mut self, count: u64, places: usize) -> bool {
        let known = self.multiples[places].unwrap_or(1);
        let multiple = (known / gcd(known, count)).saturating_mul(count);
        let others = self.multiples.iter().enumerate();
        let others = others.filter(|(at, _)| *at != places);
        let total = others
            .filter_map(|(_, known)| *known)
            .fold(multiple, u64::saturating_mul);
        if total <= MAX_REMAINDERS {
            self.multiples[places] = Some(multiple);
        }
        total <= MAX_REMAINDERS
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

/// A divisor in units of its last decimal place, and the number of its places.
fn scaled(divisor: f64) -> Option<(u64, usize)> {
    let mut scaled = divisor;
    for places in 0..=MAX_PLACES as usize {
        if scaled > 1e15 {
            return None;
        }
        if scaled.fract() == 0.0 {
            return Some((scaled as u64, places));
        }
        scaled *= 10.0;
    }
    None
}
