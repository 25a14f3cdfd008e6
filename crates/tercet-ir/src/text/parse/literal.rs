//! Parser of attribute values: numbers, strings, names, calls, lists, dimensions, types.

use super::super::lex::{GraphToken, TextPosition};
use super::{GraphParseResult, GraphParser, TextError, check_depth};
use crate::attr::AttrLiteral;
use crate::dim::{Dim, PolynomialBuilder, Symbol};
use crate::dtype::DType;
use crate::error::one_line;
use crate::types::{Shape, Type};

/// A factor of a product in a dimension.
enum DimFactor {
    Int(i64),
    Symbol(Symbol),
}

impl GraphParser<'_> {
    pub(super) fn literal(&mut self, depth: usize) -> GraphParseResult<AttrLiteral> {
        match self.peek().clone() {
            GraphToken::Str(s) => {
                self.bump();
                Ok(AttrLiteral::Str(s))
            }
            GraphToken::Punct('[') => {
                self.bump();
                Ok(AttrLiteral::List(self.list(']', depth)?))
            }
            GraphToken::Float(_)
            | GraphToken::Int(_)
            | GraphToken::Ident(_)
            | GraphToken::Punct('-') => self.expression(depth),
            GraphToken::Value(_) | GraphToken::Punct(_) | GraphToken::End => {
                self.expected("a value")
            }
        }
    }

    fn list(&mut self, close: char, depth: usize) -> GraphParseResult<Vec<AttrLiteral>> {
        check_depth(self.place(), depth)?;
        let mut items = Vec::new();
        if self.accept(close) {
            return Ok(items);
        }
        loop {
            items.push(self.literal(depth + 1)?);
            if !self.accept(',') {
                self.punct(close)?;
                return Ok(items);
            }
        }
    }

    /// Parses a number, a name, a call, a type, or a sum of products of symbols and integers.
    fn expression(&mut self, depth: usize) -> GraphParseResult<AttrLiteral> {
        let place = self.place();
        check_depth(place, depth)?;
        let negative = self.accept('-');
        let first = self.bump();
        let literal = match first {
            GraphToken::Float(x) => return Ok(AttrLiteral::Float(if negative { -x } else { x })),
            GraphToken::Ident(s)
                if s == "graph" && !negative && *self.peek() == GraphToken::Punct('{') =>
            {
                return self.subgraph(depth);
            }
            GraphToken::Ident(s) if s == "inf" => {
                return Ok(AttrLiteral::Float(if negative {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                }));
            }
            GraphToken::Ident(s) if s == "nan" && !negative => {
                return Ok(AttrLiteral::Float(f64::NAN));
            }
            GraphToken::Ident(s) if !negative && self.accept('(') => {
                return Ok(AttrLiteral::Call(s, self.list(')', depth)?));
            }
            GraphToken::Ident(s) if !negative && *self.peek() == GraphToken::Punct('[') => {
                let dtype = DType::from_name(&s);
                let dtype =
                    dtype.ok_or_else(|| TextError::new(place, format!("`{s}` is not a dtype")))?;
                return self
                    .shape(depth + 1)
                    .map(|shape| AttrLiteral::Type(Type { dtype, shape }));
            }
            GraphToken::Int(i) => AttrLiteral::Int(if negative { -i } else { i }),
            GraphToken::Ident(s) => AttrLiteral::Ident(s),
            GraphToken::Value(_) | GraphToken::Str(_) | GraphToken::Punct(_) | GraphToken::End => {
                return Err(TextError::new(place, "expected a number or a name".into()));
            }
        };
        let more = matches!(self.peek(), GraphToken::Punct('+' | '-' | '*'));
        match literal {
            AttrLiteral::Int(_) if !more => Ok(literal),
            AttrLiteral::Ident(_) if !more && !negative => Ok(literal),
            first => self.dim_tail(place, first, negative),
        }
    }

    /// Parses the remaining factors and terms of a dimension expression after its first factor.
    /// `negative` is true if a `-` precedes that factor; an integer already includes the sign.
    fn dim_tail(
        &mut self,
        place: TextPosition,
        first: AttrLiteral,
        negative: bool,
    ) -> GraphParseResult<AttrLiteral> {
        let bad = || TextError::new(place, "not a dimension, or it overflows".into());
        let mut sum = PolynomialBuilder::default();
        let mut sign = if negative { -1 } else { 1 };
        let mut factor = match first {
            AttrLiteral::Int(i) => {
                DimFactor::Int(i64::try_from(i.unsigned_abs()).map_err(|_| bad())?)
            }
            AttrLiteral::Ident(s) => DimFactor::Symbol(Symbol::new(&s)),
            _ => return Err(bad()),
        };
        loop {
            let (mut symbols, mut times) = (Vec::new(), sign);
            loop {
                match factor {
                    DimFactor::Int(i) => times = i.checked_mul(times).ok_or_else(bad)?,
                    DimFactor::Symbol(s) => symbols.push(s),
                }
                if !self.accept('*') {
                    break;
                }
                factor = self.dim_factor()?;
            }
            sum.add(symbols, times).ok_or_else(bad)?;
            sign = match self.peek() {
                GraphToken::Punct('+') => 1,
                GraphToken::Punct('-') => -1,
                _ => break,
            };
            self.bump();
            factor = self.dim_factor()?;
        }
        match sum.finish().ok_or_else(bad)? {
            Dim::Known(n) => Ok(AttrLiteral::Int(n as i128)),
            d => Ok(d.as_symbol().map_or(AttrLiteral::Dim(d.clone()), |s| {
                AttrLiteral::Ident(s.name().to_string())
            })),
        }
    }

    fn dim_factor(&mut self) -> GraphParseResult<DimFactor> {
        let place = self.place();
        let factor = match self.bump() {
            GraphToken::Int(i) => i64::try_from(i).ok().map(DimFactor::Int),
            GraphToken::Ident(s) => Some(DimFactor::Symbol(Symbol::new(&s))),
            GraphToken::Float(_)
            | GraphToken::Value(_)
            | GraphToken::Str(_)
            | GraphToken::Punct(_)
            | GraphToken::End => None,
        };
        factor.ok_or_else(|| TextError::new(place, "expected a symbol or an integer".into()))
    }

    fn shape(&mut self, depth: usize) -> GraphParseResult<Shape> {
        self.punct('[')?;
        let mut dims = Vec::new();
        if self.accept(']') {
            return Ok(Shape::new(dims));
        }
        loop {
            let place = self.place();
            let literal = self.expression(depth)?;
            let dim = <Dim as crate::attr::AttrValue>::from_literal(&literal);
            dims.push(dim.map_err(|e| TextError::new(place, one_line(&e)))?);
            if !self.accept(',') {
                self.punct(']')?;
                return Ok(Shape::new(dims));
            }
        }
    }
}
