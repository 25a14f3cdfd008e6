//! Attributes of operators: how an operator's fields are spelled in the text form.
//!
//! [`attrs!`](crate::attrs) declares an operator's struct once and derives both directions from its
//! field list. Every field type implements [`AttrValue`], which converts to and from [`Literal`],
//! the small value language of the text form.

mod tensor;

use std::fmt;

use crate::dim::Dim;
use crate::dtype::DType;
use crate::subgraph::SubGraph;
use crate::types::{Shape, Type};

/// A value as the text form spells it.
#[derive(Clone, Debug, PartialEq)]
pub enum Literal {
    /// `-3`
    Int(i128),
    /// `1.5`, `1e-5`, `inf`, `nan`
    Float(f64),
    /// `relu`, `true`, `none`; a bare symbol too
    Ident(String),
    /// `"text"`
    Str(String),
    /// `[a, b]`
    List(Vec<Literal>),
    /// `window(128)`
    Call(String, Vec<Literal>),
    /// `2*s+1`: an expression that is neither a number nor one symbol
    Dim(Dim),
    /// `f32[b, 3]`
    Type(Type),
    /// `graph { ... }`
    Graph(SubGraph),
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: &[Literal]| {
            items
                .iter()
                .enumerate()
                .try_for_each(|(i, item)| write!(f, "{}{item}", if i > 0 { ", " } else { "" }))
        };
        match self {
            Literal::Int(i) => write!(f, "{i}"),
            Literal::Float(x) if x.is_nan() => f.write_str("nan"),
            Literal::Float(x) if x.is_infinite() => {
                f.write_str(if *x > 0.0 { "inf" } else { "-inf" })
            }
            Literal::Float(x) => write!(f, "{x:?}"),
            Literal::Ident(s) => f.write_str(s),
            Literal::Str(s) => write_quoted(f, s),
            Literal::List(items) => {
                f.write_str("[")?;
                list(f, items)?;
                f.write_str("]")
            }
            Literal::Call(name, args) => {
                write!(f, "{name}(")?;
                list(f, args)?;
                f.write_str(")")
            }
            Literal::Dim(d) => write!(f, "{d}"),
            Literal::Type(t) => write!(f, "{t}"),
            // Its lines stand under the node that it belongs to.
            Literal::Graph(g) => f.write_str(&g.graph().to_string().replace('\n', "\n  ")),
        }
    }
}

/// Writes `s` in double quotes with `\" \\ \n \t \r \u{..}` escapes.
pub(crate) fn write_quoted(f: &mut impl fmt::Write, s: &str) -> fmt::Result {
    f.write_char('"')?;
    for c in s.chars() {
        match c {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            '\r' => f.write_str("\\r")?,
            c if c.is_control() => write!(f, "\\u{{{:x}}}", c as u32)?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}

/// Why an attribute could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttrError {
    /// The literal is of another kind.
    #[error("expected {expected}, found `{found}`")]
    Kind {
        /// What the attribute takes.
        expected: String,
        /// The literal given.
        found: String,
    },
    /// An attribute is missing.
    #[error("attribute `{name}` is missing")]
    Missing {
        /// Its name.
        name: &'static str,
    },
    /// An attribute is not one of the operator's.
    #[error("unknown attribute `{name}`; the operator takes: {known}")]
    Unknown {
        /// The name given.
        name: String,
        /// The operator's attributes.
        known: String,
    },
    /// An attribute has a bad value.
    #[error("attribute `{name}`")]
    In {
        /// Its name.
        name: &'static str,
        /// What is wrong.
        source: Box<AttrError>,
    },
}

impl AttrError {
    /// A literal of the wrong kind.
    pub fn kind(expected: impl Into<String>, found: &Literal) -> AttrError {
        AttrError::Kind {
            expected: expected.into(),
            found: found.to_string(),
        }
    }
}

/// A type that an attribute may have.
pub trait AttrValue: Sized {
    /// What the text form takes here, in words for the documentation: `integer`, `list of dimension`.
    fn kind() -> String;

    /// How the text form spells the value.
    fn to_literal(&self) -> Literal;

    /// The value of a literal.
    ///
    /// # Errors
    /// [`AttrError`] when the literal is of another kind or out of range.
    fn from_literal(literal: &Literal) -> Result<Self, AttrError>;
}

/// The attributes of an operator, as a list that printing and parsing share.
pub trait Attrs: Sized {
    /// The names in declaration order.
    const NAMES: &'static [&'static str];

    /// Names and [`AttrValue::kind`] in declaration order.
    fn kinds() -> Vec<(&'static str, String)>;

    /// Names and values in declaration order.
    fn to_literals(&self) -> Vec<(&'static str, Literal)>;

    /// The operator of these attributes.
    ///
    /// # Errors
    /// [`AttrError`] for a missing, unknown or unreadable attribute.
    fn from_literals(given: &[(String, Literal)]) -> Result<Self, AttrError>;
}

/// Finds and converts one attribute; used by the expansion of [`attrs!`](crate::attrs).
pub fn take_attr<T: AttrValue>(
    given: &[(String, Literal)],
    name: &'static str,
) -> Result<T, AttrError> {
    let (_, literal) = given
        .iter()
        .find(|(n, _)| n == name)
        .ok_or(AttrError::Missing { name })?;
    T::from_literal(literal).map_err(|source| AttrError::In {
        name,
        source: Box::new(source),
    })
}

/// Declares an operator's struct and derives [`Attrs`] from its field list.
///
/// `attrs! { /// Doc. pub struct Softmax { /// Axis. pub axis: usize } }` expands to the struct
/// with the usual derives, `Attrs::NAMES == ["axis"]`, and conversions of each field by
/// [`AttrValue`].
#[macro_export]
macro_rules! attrs {
    ($(#[$m:meta])* pub struct $Op:ident { $($(#[$fm:meta])* pub $f:ident: $t:ty),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub struct $Op { $($(#[$fm])* pub $f: $t),* }

        impl $crate::attr::Attrs for $Op {
            const NAMES: &'static [&'static str] = &[$(stringify!($f)),*];
            fn kinds() -> Vec<(&'static str, String)> {
                vec![$((stringify!($f), <$t as $crate::attr::AttrValue>::kind())),*]
            }
            fn to_literals(&self) -> Vec<(&'static str, $crate::attr::Literal)> {
                vec![$((stringify!($f), $crate::attr::AttrValue::to_literal(&self.$f))),*]
            }
            fn from_literals(
                given: &[(String, $crate::attr::Literal)],
            ) -> Result<Self, $crate::attr::AttrError> {
                if let Some((name, _)) = given.iter().find(|(n, _)| !Self::NAMES.contains(&n.as_str())) {
                    let known = Self::NAMES.join(", ");
                    return Err($crate::attr::AttrError::Unknown { name: name.clone(), known });
                }
                Ok(Self { $($f: $crate::attr::take_attr(given, stringify!($f))?),* })
            }
        }
    };
}

/// Declares a fieldless enum with a spelling per variant, `ALL`, `name()` and [`AttrValue`].
///
/// `spelled! { /// Doc. pub enum Style { /// Doc. NeoX "neox" } }` expands to the enum,
/// `Style::ALL`, `Style::name` and the conversions of the text form.
#[macro_export]
macro_rules! spelled {
    ($(#[$m:meta])* pub enum $E:ident { $($(#[$vm:meta])* $V:ident $name:literal),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $E { $($(#[$vm])* $V),* }

        impl $E {
            /// Every variant, in declaration order.
            pub const ALL: &'static [$E] = &[$($E::$V),*];

            /// The spelling in the text form.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$V => $name),* }
            }
        }

        impl $crate::attr::AttrValue for $E {
            fn kind() -> String {
                let names: Vec<_> = Self::ALL.iter().map(|v| format!("`{}`", v.name())).collect();
                format!("one of {}", names.join(" "))
            }
            fn to_literal(&self) -> $crate::attr::Literal {
                $crate::attr::Literal::Ident(self.name().to_string())
            }
            fn from_literal(l: &$crate::attr::Literal) -> Result<Self, $crate::attr::AttrError> {
                let found = match l {
                    $crate::attr::Literal::Ident(s) => Self::ALL.iter().find(|v| v.name() == s),
                    _ => None,
                };
                let names: Vec<_> = Self::ALL.iter().map(|v| v.name()).collect();
                found.copied().ok_or_else(|| {
                    $crate::attr::AttrError::kind(format!("one of {}", names.join(" ")), l)
                })
            }
        }
    };
}

/// A float attribute, compared and hashed by its bits.
#[derive(Clone, Copy)]
pub struct Real(pub f64);

impl PartialEq for Real {
    fn eq(&self, other: &Real) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}
impl Eq for Real {}
impl std::hash::Hash for Real {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
impl fmt::Debug for Real {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl From<f64> for Real {
    fn from(x: f64) -> Real {
        Real(x)
    }
}

impl AttrValue for Real {
    fn kind() -> String {
        "number".to_string()
    }
    fn to_literal(&self) -> Literal {
        Literal::Float(self.0)
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        match l {
            Literal::Float(x) => Ok(Real(*x)),
            Literal::Int(i) => Ok(Real(*i as f64)),
            _ => Err(AttrError::kind("a number", l)),
        }
    }
}

macro_rules! int_attrs {
    ($($t:ty),*) => { $(impl AttrValue for $t {
        fn kind() -> String {
            "integer".to_string()
        }
        fn to_literal(&self) -> Literal { Literal::Int(*self as i128) }
        fn from_literal(l: &Literal) -> Result<Self, AttrError> {
            let value = match l { Literal::Int(i) => <$t>::try_from(*i).ok(), _ => None };
            value.ok_or_else(|| AttrError::kind(concat!("an integer that fits ", stringify!($t)), l))
        }
    })* };
}
int_attrs!(usize, i64, u8, u16, u32, u64);

impl AttrValue for bool {
    fn kind() -> String {
        "`true` or `false`".to_string()
    }
    fn to_literal(&self) -> Literal {
        Literal::Ident(self.to_string())
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        match l {
            Literal::Ident(s) if s == "true" => Ok(true),
            Literal::Ident(s) if s == "false" => Ok(false),
            _ => Err(AttrError::kind("true or false", l)),
        }
    }
}

impl AttrValue for String {
    fn kind() -> String {
        "string".to_string()
    }
    fn to_literal(&self) -> Literal {
        Literal::Str(self.clone())
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        match l {
            Literal::Str(s) => Ok(s.clone()),
            _ => Err(AttrError::kind("a string", l)),
        }
    }
}

impl AttrValue for DType {
    fn kind() -> String {
        "dtype".to_string()
    }
    fn to_literal(&self) -> Literal {
        Literal::Ident(self.name().to_string())
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        let found = match l {
            Literal::Ident(s) => DType::from_name(s),
            _ => None,
        };
        found.ok_or_else(|| AttrError::kind("a dtype", l))
    }
}

impl AttrValue for Dim {
    fn kind() -> String {
        "dimension".to_string()
    }
    fn to_literal(&self) -> Literal {
        match (self, self.as_symbol()) {
            (Dim::Known(n), _) => Literal::Int(*n as i128),
            (Dim::Sym(_), Some(s)) => Literal::Ident(s.name().to_string()),
            (Dim::Sym(_), None) => Literal::Dim(self.clone()),
        }
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        let found = match l {
            Literal::Int(i) => usize::try_from(*i).ok().map(Dim::Known),
            Literal::Ident(s) => Some(Dim::sym(s)),
            Literal::Dim(d) => Some(d.clone()),
            _ => None,
        };
        found.ok_or_else(|| AttrError::kind("a dimension", l))
    }
}

impl AttrValue for Shape {
    fn kind() -> String {
        "list of dimension".to_string()
    }
    fn to_literal(&self) -> Literal {
        Literal::List(self.iter().map(AttrValue::to_literal).collect())
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        Vec::<Dim>::from_literal(l).map(Shape::new)
    }
}

impl AttrValue for Type {
    fn kind() -> String {
        "type".to_string()
    }
    fn to_literal(&self) -> Literal {
        Literal::Type(self.clone())
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        match l {
            Literal::Type(t) => Ok(t.clone()),
            _ => Err(AttrError::kind("a type such as f32[2, s]", l)),
        }
    }
}

impl<T: AttrValue> AttrValue for Vec<T> {
    fn kind() -> String {
        format!("list of {}", T::kind())
    }
    fn to_literal(&self) -> Literal {
        Literal::List(self.iter().map(AttrValue::to_literal).collect())
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        match l {
            Literal::List(items) => items.iter().map(T::from_literal).collect(),
            _ => Err(AttrError::kind("a list", l)),
        }
    }
}

impl<T: AttrValue> AttrValue for Option<T> {
    fn kind() -> String {
        format!("{} or `none`", T::kind())
    }
    fn to_literal(&self) -> Literal {
        match self {
            Some(v) => v.to_literal(),
            None => Literal::Ident("none".to_string()),
        }
    }
    fn from_literal(l: &Literal) -> Result<Self, AttrError> {
        match l {
            Literal::Ident(s) if s == "none" => Ok(None),
            _ => T::from_literal(l).map(Some),
        }
    }
}
