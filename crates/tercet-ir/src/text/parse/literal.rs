//! Parser of attribute values: numbers, strings, names, calls, lists, dimensions, types.

use tercet_tensor::{DType, Dim, DimFactor, PolynomialBuilder, Shape, Symbol, Type};

use super::super::lex::{GraphToken, TextPosition};
use super::{GraphParseResult, GraphParser, TextError, check_depth};
use crate::attr::AttrLiteral;
use crate::error::one_line;

/// A sum of products in a dimension; each product has a coefficient.
type DimTerms = Vec<(Vec<DimFactor>, i64)>;

/// Maximum number of terms of a product of sums.
const MAX_DIM_TERMS: usize = 1 << 12;

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
            | GraphToken::Punct('-' | '(') => self.expression(depth),
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

    /// Parses a number, a name, a call, a type, or a sum of products of symbols, integers and
    /// quotients.
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
            GraphToken::Punct('(') => {
                let terms = self.grouped(place, depth)?;
                return self.dim_tail(place, terms, negative, depth);
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
            AttrLiteral::Int(i) => {
                let size = i64::try_from(i.unsigned_abs()).map_err(|_| bad_dim(place))?;
                self.dim_tail(place, vec![(Vec::new(), size)], negative, depth)
            }
            AttrLiteral::Ident(s) => self.dim_tail(place, symbol_terms(&s), negative, depth),
            _ => Err(bad_dim(place)),
        }
    }

    /// Parses the remaining factors and terms of a dimension expression after its first factor.
    /// `negative` is true if a `-` precedes that factor; an integer already includes the sign.
    fn dim_tail(
        &mut self,
        place: TextPosition,
        first: DimTerms,
        negative: bool,
        depth: usize,
    ) -> GraphParseResult<AttrLiteral> {
        let (sum, _) = self.dim_sum(place, first, negative, depth)?;
        match sum.finish().ok_or_else(|| bad_dim(place))? {
            Dim::Known(n) => Ok(AttrLiteral::Int(n as i128)),
            d => Ok(d.as_symbol().map_or(AttrLiteral::Dim(d.clone()), |s| {
                AttrLiteral::Ident(s.name().to_string())
            })),
        }
    }

    /// Parses a sum of products after its first factor, and counts its products.
    fn dim_sum(
        &mut self,
        place: TextPosition,
        first: DimTerms,
        negative: bool,
        depth: usize,
    ) -> GraphParseResult<(PolynomialBuilder, usize)> {
        let bad = || bad_dim(place);
        let mut sum = PolynomialBuilder::default();
        let mut sign = if negative { -1 } else { 1 };
        let mut factor = first;
        let mut count = 0;
        loop {
            count += 1;
            let mut product: DimTerms = vec![(Vec::new(), sign)];
            loop {
                product = times(&product, &factor).ok_or_else(bad)?;
                if !self.accept('*') {
                    break;
                }
                factor = self.dim_factor(depth)?;
            }
            for (factors, times) in product {
                sum.add(factors, times).ok_or_else(bad)?;
            }
            sign = match self.peek() {
                GraphToken::Punct('+') => 1,
                GraphToken::Punct('-') => -1,
                _ => break,
            };
            self.bump();
            factor = self.dim_factor(depth)?;
        }
        Ok((sum, count))
    }

    fn dim_factor(&mut self, depth: usize) -> GraphParseResult<DimTerms> {
        let place = self.place();
        let factor = match self.bump() {
            GraphToken::Int(i) => i64::try_from(i).ok().map(|n| vec![(Vec::new(), n)]),
            GraphToken::Punct('(') => return self.grouped(place, depth + 1),
            GraphToken::Ident(s) => Some(symbol_terms(&s)),
            GraphToken::Float(_)
            | GraphToken::Value(_)
            | GraphToken::Str(_)
            | GraphToken::Punct(_)
            | GraphToken::End => None,
        };
        factor.ok_or_else(|| TextError::new(place, "expected a symbol or an integer".into()))
    }

    /// Parses the rest of a sum `(s+1)`, or of a quotient `(s/2)` or `((s+1)/2)`, after the first
    /// parenthesis.
    fn grouped(&mut self, place: TextPosition, depth: usize) -> GraphParseResult<DimTerms> {
        check_depth(place, depth)?;
        let negative = self.accept('-');
        let first = self.dim_factor(depth)?;
        let (sum, count) = self.dim_sum(place, first, negative, depth)?;
        if self.accept(')') {
            return Ok(sum.into_terms());
        }
        if count > 1 || !self.accept('/') {
            return self.expected("`)`; a quotient of a sum is written `((s+1)/2)`");
        }
        let at = self.place();
        let divisor = match self.bump() {
            GraphToken::Int(n @ 1..) => i64::try_from(n).ok(),
            _ => None,
        };
        let expected = || TextError::new(at, "expected a divisor of at least 1".into());
        let divisor = divisor.ok_or_else(expected)?;
        self.punct(')')?;
        let quotient = sum.finish_quotient(divisor);
        Ok(quotient.ok_or_else(|| bad_dim(place))?.sum())
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

fn bad_dim(place: TextPosition) -> TextError {
    TextError::new(place, "not a dimension, or it overflows".into())
}

fn symbol_terms(name: &str) -> DimTerms {
    vec![(vec![DimFactor::Symbol(Symbol::new(name))], 1)]
}

/// The product of two sums; `None` on overflow, and for too many terms.
fn times(left: &DimTerms, right: &DimTerms) -> Option<DimTerms> {
    if left.len().saturating_mul(right.len()) > MAX_DIM_TERMS {
        return None;
    }
    let mut product = DimTerms::new();
    for (a, x) in left {
        for (b, y) in right {
            product.push(([a.as_slice(), b].concat(), x.checked_mul(*y)?));
        }
    }
    Some(product)
}
