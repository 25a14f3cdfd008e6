//! Values of attributes: numbers, strings, names, calls, lists, dimensions, types.

use super::super::lex::{Place, Token};
use super::{Parsed, Parser, TextError, check_depth};
use crate::attr::Literal;
use crate::dim::{Dim, Sum, Symbol};
use crate::dtype::DType;
use crate::error::one_line;
use crate::types::{Shape, Type};

/// A part of a product in a dimension.
enum Factor {
    Int(i64),
    Symbol(Symbol),
}

impl Parser<'_> {
    pub(super) fn literal(&mut self, depth: usize) -> Parsed<Literal> {
        match self.peek().clone() {
            Token::Str(s) => {
                self.bump();
                Ok(Literal::Str(s))
            }
            Token::Punct('[') => {
                self.bump();
                Ok(Literal::List(self.list(']', depth)?))
            }
            Token::Float(_) | Token::Int(_) | Token::Ident(_) | Token::Punct('-') => {
                self.expression(depth)
            }
            Token::Value(_) | Token::Punct(_) | Token::End => self.expected("a value"),
        }
    }

    fn list(&mut self, close: char, depth: usize) -> Parsed<Vec<Literal>> {
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

    /// A number, a name, a call, a type, or a sum of products of symbols and integers.
    fn expression(&mut self, depth: usize) -> Parsed<Literal> {
        let place = self.place();
        check_depth(place, depth)?;
        let negative = self.accept('-');
        let first = self.bump();
        let literal = match first {
            Token::Float(x) => return Ok(Literal::Float(if negative { -x } else { x })),
            Token::Ident(s) if s == "graph" && !negative && *self.peek() == Token::Punct('{') => {
                return self.subgraph(depth);
            }
            Token::Ident(s) if s == "inf" => {
                return Ok(Literal::Float(if negative {
                    f64::NEG_INFINITY
                } else {
                    f64::INFINITY
                }));
            }
            Token::Ident(s) if s == "nan" && !negative => return Ok(Literal::Float(f64::NAN)),
            Token::Ident(s) if !negative && self.accept('(') => {
                return Ok(Literal::Call(s, self.list(')', depth)?));
            }
            Token::Ident(s) if !negative && *self.peek() == Token::Punct('[') => {
                let dtype = DType::from_name(&s);
                let dtype =
                    dtype.ok_or_else(|| TextError::new(place, format!("`{s}` is not a dtype")))?;
                return self
                    .shape(depth + 1)
                    .map(|shape| Literal::Type(Type { dtype, shape }));
            }
            Token::Int(i) => Literal::Int(if negative { -i } else { i }),
            Token::Ident(s) => Literal::Ident(s),
            Token::Value(_) | Token::Str(_) | Token::Punct(_) | Token::End => {
                return Err(TextError::new(place, "expected a number or a name".into()));
            }
        };
        let more = matches!(self.peek(), Token::Punct('+' | '-' | '*'));
        match literal {
            Literal::Int(_) if !more => Ok(literal),
            Literal::Ident(_) if !more && !negative => Ok(literal),
            first => self.dim_tail(place, first, negative),
        }
    }

    /// The rest of a dimension expression after its first factor. `negative` says that a `-` stood
    /// before it (already applied to an integer).
    fn dim_tail(&mut self, place: Place, first: Literal, negative: bool) -> Parsed<Literal> {
        let bad = || TextError::new(place, "not a dimension, or it overflows".into());
        let mut sum = Sum::default();
        let mut sign = if negative { -1 } else { 1 };
        let mut factor = match first {
            Literal::Int(i) => Factor::Int(i64::try_from(i.unsigned_abs()).map_err(|_| bad())?),
            Literal::Ident(s) => Factor::Symbol(Symbol::new(&s)),
            _ => return Err(bad()),
        };
        loop {
            let (mut symbols, mut times) = (Vec::new(), sign);
            loop {
                match factor {
                    Factor::Int(i) => times = i.checked_mul(times).ok_or_else(bad)?,
                    Factor::Symbol(s) => symbols.push(s),
                }
                if !self.accept('*') {
                    break;
                }
                factor = self.dim_factor()?;
            }
            sum.add(symbols, times).ok_or_else(bad)?;
            sign = match self.peek() {
                Token::Punct('+') => 1,
                Token::Punct('-') => -1,
                _ => break,
            };
            self.bump();
            factor = self.dim_factor()?;
        }
        match sum.finish().ok_or_else(bad)? {
            Dim::Known(n) => Ok(Literal::Int(n as i128)),
            d => Ok(d.as_symbol().map_or(Literal::Dim(d.clone()), |s| {
                Literal::Ident(s.name().to_string())
            })),
        }
    }

    fn dim_factor(&mut self) -> Parsed<Factor> {
        let place = self.place();
        let factor = match self.bump() {
            Token::Int(i) => i64::try_from(i).ok().map(Factor::Int),
            Token::Ident(s) => Some(Factor::Symbol(Symbol::new(&s))),
            Token::Float(_) | Token::Value(_) | Token::Str(_) | Token::Punct(_) | Token::End => {
                None
            }
        };
        factor.ok_or_else(|| TextError::new(place, "expected a symbol or an integer".into()))
    }

    fn shape(&mut self, depth: usize) -> Parsed<Shape> {
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
