//! The text form of a map's attributes.
//!
//! An axis is `1` (axis 1 of the result), `none` (constant index 0: a broadcast), `at(3)` (constant
//! index 3) or `axis(from, start, step, shift)`. A step is its function applied to `i0`, `i1`, ...
//! (operands) and `s0`, `s1`, ... (earlier steps), with attributes first: `clamp(0.0, 6.0, i0)`,
//! `cast(f16, s1)`, `const(f32, 1.5)`.

use tercet_tensor::DType;

use super::{AxisMap, IndexMap, MapArg, MapStep};
use crate::attr::{AttrError, AttrLiteral, AttrValue, FloatAttr};
use crate::scalar::{BinaryFn, CompareFn, ScalarOp, UnaryFn};

impl AttrValue for AxisMap {
    fn kind() -> String {
        "axis, `none`, `at(index)` or `axis(from, start, step, shift)`".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        match *self {
            AxisMap {
                from: Some(from),
                start: 0,
                step: 1,
                shift: 0,
            } => from.to_literal(),
            AxisMap {
                from: Some(from),
                start,
                step,
                shift,
            } => AttrLiteral::Call(
                "axis".to_string(),
                vec![
                    from.to_literal(),
                    start.to_literal(),
                    step.to_literal(),
                    shift.to_literal(),
                ],
            ),
            AxisMap {
                from: None,
                start: 0,
                ..
            } => AttrLiteral::Ident("none".to_string()),
            AxisMap {
                from: None, start, ..
            } => AttrLiteral::Call("at".to_string(), vec![start.to_literal()]),
        }
    }

    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        let expected = "an axis, none, at(INDEX) or axis(FROM, START, STEP, SHIFT)";
        match l {
            AttrLiteral::Int(_) => usize::from_literal(l).map(AxisMap::axis),
            AttrLiteral::Ident(s) if s == "none" => Ok(AxisMap::constant(0)),
            AttrLiteral::Call(name, args) => match (name.as_str(), args.as_slice()) {
                ("at", [start]) => i64::from_literal(start).map(AxisMap::constant),
                ("axis", [from, start, step, shift]) => Ok(AxisMap {
                    from: Some(usize::from_literal(from)?),
                    start: i64::from_literal(start)?,
                    step: i64::from_literal(step)?,
                    shift: u8::from_literal(shift)?,
                }),
                _ => Err(AttrError::kind(expected, l)),
            },
            _ => Err(AttrError::kind(expected, l)),
        }
    }
}

impl AttrValue for IndexMap {
    fn kind() -> String {
        Vec::<AxisMap>::kind()
    }
    fn to_literal(&self) -> AttrLiteral {
        self.axes.to_literal()
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        Vec::from_literal(l).map(|axes| IndexMap { axes })
    }
}

impl AttrValue for MapArg {
    fn kind() -> String {
        "`i0`, `i1`, ... or `s0`, `s1`, ...".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::Ident(match self {
            MapArg::Input(i) => format!("i{i}"),
            MapArg::Step(s) => format!("s{s}"),
        })
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        let found = match l {
            AttrLiteral::Ident(s) => match (s.strip_prefix('i'), s.strip_prefix('s')) {
                (Some(i), _) => i.parse().ok().map(MapArg::Input),
                (None, Some(s)) => s.parse().ok().map(MapArg::Step),
                (None, None) => None,
            },
            _ => None,
        };
        found.ok_or_else(|| AttrError::kind("an operand i0, i1, ... or a step s0, s1, ...", l))
    }
}

impl AttrValue for MapStep {
    fn kind() -> String {
        "step such as `mul(i0, s1)`".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        let (name, attrs) = match &self.op {
            ScalarOp::Const(d, v) => ("const", vec![d.to_literal(), v.to_literal()]),
            ScalarOp::Unary(f) => (f.name(), vec![]),
            ScalarOp::Binary(f) => (f.name(), vec![]),
            ScalarOp::Compare(f) => (f.name(), vec![]),
            ScalarOp::Where => ("where", vec![]),
            ScalarOp::Fma => ("fma", vec![]),
            ScalarOp::Clamp { lo, hi } => ("clamp", vec![lo.to_literal(), hi.to_literal()]),
            ScalarOp::Cast(d) => ("cast", vec![d.to_literal()]),
        };
        let args = self.args.iter().map(AttrValue::to_literal);
        AttrLiteral::Call(name.to_string(), attrs.into_iter().chain(args).collect())
    }

    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        let expected = || AttrError::kind("a step such as add(i0, s0)", l);
        let AttrLiteral::Call(name, all) = l else {
            return Err(expected());
        };
        let plain = |name: &str| {
            let unary = UnaryFn::ALL.iter().find(|f| f.name() == name);
            let binary = BinaryFn::ALL.iter().find(|f| f.name() == name);
            let compare = CompareFn::ALL.iter().find(|f| f.name() == name);
            (unary.copied().map(ScalarOp::Unary))
                .or_else(|| binary.copied().map(ScalarOp::Binary))
                .or_else(|| compare.copied().map(ScalarOp::Compare))
        };
        let (op, args) = match (name.as_str(), all.as_slice()) {
            ("const", [d, v]) => {
                let op = ScalarOp::Const(DType::from_literal(d)?, FloatAttr::from_literal(v)?);
                (op, [].as_slice())
            }
            ("clamp", [lo, hi, args @ ..]) => {
                let (lo, hi) = (FloatAttr::from_literal(lo)?, FloatAttr::from_literal(hi)?);
                (ScalarOp::Clamp { lo, hi }, args)
            }
            ("cast", [d, args @ ..]) => (ScalarOp::Cast(DType::from_literal(d)?), args),
            ("where", args) => (ScalarOp::Where, args),
            ("fma", args) => (ScalarOp::Fma, args),
            (name, args) => (plain(name).ok_or_else(expected)?, args),
        };
        let args: Result<Vec<MapArg>, _> = args.iter().map(MapArg::from_literal).collect();
        Ok(MapStep { op, args: args? })
    }
}
