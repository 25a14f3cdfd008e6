//! The text form of data.

use tercet_ir::attr::AttrLiteral;
use tercet_ir::fill::InputFill;
use tercet_ir::{Scheme, one_line, parse_literal};

/// Reads data of an input of this shape.
pub(crate) fn read(text: &str, shape: &[usize]) -> Result<InputFill, String> {
    let literal = parse_literal(text).map_err(|e| one_line(&e))?;
    let fill = match &literal {
        AttrLiteral::Ident(word) => match word.as_str() {
            "normal" => Some(InputFill::Normal),
            "special" => Some(InputFill::Special),
            "bytes" => Some(InputFill::Bytes),
            _ => None,
        },
        AttrLiteral::Call(name, args) => match (name.as_str(), args.as_slice()) {
            ("uniform", [lo, hi]) => number(lo)
                .zip(number(hi))
                .map(|(lo, hi)| InputFill::Uniform(lo, hi)),
            ("index", [AttrLiteral::Int(len)]) => usize::try_from(*len).ok().map(InputFill::Index),
            ("blocks", [AttrLiteral::Ident(name)]) => {
                let scheme = Scheme::ALL.iter().find(|scheme| scheme.name() == name);
                scheme.map(|scheme| InputFill::Blocks(*scheme))
            }
            _ => None,
        },
        _ => None,
    };
    match fill {
        Some(fill) => Ok(fill),
        None => list(&literal, shape).map(InputFill::Values),
    }
}

/// Reads explicit values of this shape.
pub(crate) fn read_values(text: &str, shape: &[usize]) -> Result<Vec<f64>, String> {
    list(&parse_literal(text).map_err(|e| one_line(&e))?, shape)
}

fn list(literal: &AttrLiteral, shape: &[usize]) -> Result<Vec<f64>, String> {
    let count = shape.iter().product();
    let values = match literal {
        AttrLiteral::List(items) => numbers(items),
        AttrLiteral::Ident(word) if word == "count" => Some((0..count).map(|i| i as f64).collect()),
        AttrLiteral::Call(name, args) => match (name.as_str(), args.as_slice()) {
            ("all", [value]) => number(value).map(|value| vec![value; count]),
            ("count", [start, step]) => number(start)
                .zip(number(step))
                .map(|(start, step)| (0..count).map(|i| start + i as f64 * step).collect()),
            ("each", [formula]) => {
                let values = (0..count).map(|at| FillPosition { at, shape }.value(formula));
                return values.collect();
            }
            ("cycle", [AttrLiteral::List(items)]) if !items.is_empty() => {
                numbers(items).map(|items| items.into_iter().cycle().take(count).collect())
            }
            _ => None,
        },
        _ => None,
    };
    let values = values.ok_or_else(|| {
        format!("expected data such as `normal`, `uniform(0, 1)` or `[1, 2]`, found `{literal}`")
    })?;
    match values.len() == count {
        true => Ok(values),
        false => Err(format!("expected {count} values, found {}", values.len())),
    }
}

fn numbers(items: &[AttrLiteral]) -> Option<Vec<f64>> {
    items.iter().map(number).collect()
}

fn number(literal: &AttrLiteral) -> Option<f64> {
    match literal {
        AttrLiteral::Int(value) => Some(*value as f64),
        AttrLiteral::Float(value) => Some(*value),
        AttrLiteral::Ident(word) if word == "negative_nan" => Some(-f64::NAN),
        _ => None,
    }
}

/// An element of a tensor, for which formulas are computed.
struct FillPosition<'a> {
    /// The row-major position.
    at: usize,
    shape: &'a [usize],
}

impl FillPosition<'_> {
    fn value(&self, formula: &AttrLiteral) -> Result<f64, String> {
        let unknown = || format!("unknown formula `{formula}`");
        if let Some(value) = number(formula) {
            return Ok(value);
        }
        let (name, args) = match formula {
            AttrLiteral::Ident(name) => return self.index(name).ok_or_else(unknown),
            AttrLiteral::Call(name, args) => (name.as_str(), args.as_slice()),
            _ => return Err(unknown()),
        };
        // Only the selected operand is computed.
        match (name, args) {
            ("if", [condition, then, other]) => {
                let is_true = self.value(condition)? != 0.0;
                return self.value(if is_true { then } else { other });
            }
            ("select", [index, choices @ ..]) => {
                let chosen = choices.get(self.value(index)? as usize);
                return self.value(chosen.ok_or_else(unknown)?);
            }
            _ => {}
        }
        let args = args.iter().map(|arg| self.value(arg));
        let value = match (name, args.collect::<Result<Vec<f64>, String>>()?.as_slice()) {
            ("add", terms) => terms.iter().sum(),
            ("mul", factors) => factors.iter().product(),
            ("sub", [a, b]) => a - b,
            ("div", [a, b]) => a / b,
            ("mod", [a, b]) => a % b,
            ("pow", [a, b]) => a.powf(*b),
            ("abs", [a]) => a.abs(),
            ("floor", [a]) => a.floor(),
            ("round", [a]) => a.round(),
            ("eq", [a, b]) => f64::from(a == b),
            ("lt", [a, b]) => f64::from(a < b),
            ("lehmer", [seed, steps]) => lehmer(*seed as u64, *steps as u64),
            _ => return Err(unknown()),
        };
        Ok(value)
    }

    /// The position for `i`, the index along the first axis for `i0`, and so on.
    fn index(&self, name: &str) -> Option<f64> {
        let axis = name.strip_prefix('i')?;
        if axis.is_empty() {
            return Some(self.at as f64);
        }
        let (sizes, below) = self
            .shape
            .split_at_checked(axis.parse::<usize>().ok()? + 1)?;
        let inner: usize = below.iter().product();
        Some((self.at / inner % sizes.last()?) as f64)
    }
}

/// The number from 0 to 1 after this many steps of a generator (Lehmer 1951, with the multiplier of
/// Park and Miller).
fn lehmer(seed: u64, steps: u64) -> f64 {
    const MODULUS: u64 = 0x7fff_ffff;
    let (mut state, mut power, mut left) = (seed % MODULUS, 16807, steps);
    while left > 0 {
        if left % 2 == 1 {
            state = state * power % MODULUS;
        }
        power = power * power % MODULUS;
        left /= 2;
    }
    state as f64 / MODULUS as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_have_the_count_of_the_shape() {
        let values = |text| read_values(text, &[2, 3]);
        assert_eq!(values("all(-2)"), Ok(vec![-2.0; 6]));
        assert_eq!(
            values("count(1, 0.5)"),
            Ok(vec![1.0, 1.5, 2.0, 2.5, 3.0, 3.5])
        );
        assert_eq!(
            values("cycle([1, 2])"),
            Ok(vec![1.0, 2.0, 1.0, 2.0, 1.0, 2.0])
        );
        assert_eq!(
            values("[1, 2]"),
            Err("expected 6 values, found 2".to_string())
        );
        assert!(values("normal").is_err() && values("all(x)").is_err());
        assert!(matches!(
            read("uniform(-1, 1)", &[3]),
            Ok(InputFill::Uniform(-1.0, 1.0))
        ));
        assert!(read("uniform(1)", &[3]).is_err() && read("blocks(q9)", &[3]).is_err());
    }

    #[test]
    fn formulas_see_positions() {
        let values = |text| read_values(text, &[2, 3]);
        let wanted = [0.0, 1.0, 2.0, 10.0, 11.0, 12.0];
        assert_eq!(values("each(add(mul(i0, 10), i1))"), Ok(wanted.to_vec()));
        let wanted = [8.0, 8.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(
            values("each(if(lt(i, 2), pow(2, 3), i))"),
            Ok(wanted.to_vec())
        );
        let wanted = [5.0, -1.0, 2.0, 5.0, -1.0, 2.0];
        assert_eq!(
            values("each(select(i1, 5, sub(0, 1), 2))"),
            Ok(wanted.to_vec())
        );
        for wrong in [
            "each(i2)",
            "each(sub(1))",
            "each(select(i1, 1))",
            "each(\"i\")",
        ] {
            assert!(values(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn random_numbers_are_those_of_single_steps() {
        let mut state = 271u64;
        for steps in 1..100 {
            state = state * 16807 % 0x7fff_ffff;
            assert_eq!(lehmer(271, steps), state as f64 / f64::from(0x7fff_ffff));
        }
    }
}
