//! Attributes of operators, and their syntax in the text form.
//!
//! [`attrs!`](crate::attrs) declares an operator's struct once and derives printing and parsing
//! from its field list. Every field type implements [`AttrValue`], which converts to and from
//! [`AttrLiteral`], the small value language of the text form.

mod tensor;

use std::fmt;

use tercet_tensor::{Bindings, DType, Dim, Scheme, Shape, Type};

use crate::error::{TypeError, one_line};
use crate::subgraph::SubGraph;

/// An attribute value in text form syntax.
///
/// ```
/// use tercet_ir::{attr::AttrLiteral, parse_literal};
/// let literal = parse_literal("window(128)")?;
/// assert_eq!(literal, AttrLiteral::Call("window".to_string(), vec![AttrLiteral::Int(128)]));
/// assert_eq!(literal.to_string(), "window(128)");
/// # Ok::<(), tercet_ir::TextError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum AttrLiteral {
    /// An integer: `-3`
    Int(i128),
    /// A float: `1.5`, `1e-5`, `inf`, `nan`
    Float(f64),
    /// An identifier: `relu`, `true`, `none`; also a bare symbol
    Ident(String),
    /// A quoted string: `"text"`
    Str(String),
    /// A list: `[a, b]`
    List(Vec<AttrLiteral>),
    /// A name with arguments: `window(128)`
    Call(String, Vec<AttrLiteral>),
    /// A dimension expression that is neither a number nor a single symbol: `2*s+1`
    Dim(Dim),
    /// A tensor type: `f32[b, 3]`
    Type(Type),
    /// A nested graph: `graph { ... }`
    Graph(SubGraph),
}

impl fmt::Display for AttrLiteral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |f: &mut fmt::Formatter<'_>, items: &[AttrLiteral]| {
            items
                .iter()
                .enumerate()
                .try_for_each(|(i, item)| write!(f, "{}{item}", if i > 0 { ", " } else { "" }))
        };
        match self {
            AttrLiteral::Int(i) => write!(f, "{i}"),
            AttrLiteral::Float(x) if x.is_nan() => f.write_str("nan"),
            AttrLiteral::Float(x) if x.is_infinite() => {
                f.write_str(if *x > 0.0 { "inf" } else { "-inf" })
            }
            AttrLiteral::Float(x) => write!(f, "{x:?}"),
            AttrLiteral::Ident(s) => f.write_str(s),
            AttrLiteral::Str(s) => write_quoted(f, s),
            AttrLiteral::List(items) => {
                f.write_str("[")?;
                list(f, items)?;
                f.write_str("]")
            }
            AttrLiteral::Call(name, args) => {
                write!(f, "{name}(")?;
                list(f, args)?;
                f.write_str(")")
            }
            AttrLiteral::Dim(d) => write!(f, "{d}"),
            AttrLiteral::Type(t) => write!(f, "{t}"),
            // Indents the lines of a nested graph below the node that holds it.
            AttrLiteral::Graph(g) => f.write_str(&g.graph().to_string().replace('\n', "\n  ")),
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

/// Why an attribute could not be parsed.
///
/// ```
/// use tercet_ir::{OpKind, attr::{AttrError, AttrLiteral}};
/// let given = [("dim".to_string(), AttrLiteral::Int(1))];
/// let error = OpKind::Softmax.parse(&given).unwrap_err();
/// assert!(matches!(error, AttrError::Unknown { .. }));
/// assert_eq!(error.to_string(), "unknown attribute `dim`; the operator takes: axis");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttrError {
    /// The literal has the wrong type.
    #[error("expected {expected}, found `{found}`")]
    Kind {
        /// The expected type of the attribute.
        expected: String,
        /// The literal that was found.
        found: String,
    },
    /// A required attribute is missing.
    #[error("attribute `{name}` is missing")]
    Missing {
        /// Name of the missing attribute.
        name: &'static str,
    },
    /// The operator has no attribute with this name.
    #[error("unknown attribute `{name}`; the operator takes: {known}")]
    Unknown {
        /// The unknown attribute name.
        name: String,
        /// The names of the operator's attributes.
        known: String,
    },
    /// An attribute has an invalid value.
    #[error("attribute `{name}`")]
    In {
        /// Name of the attribute.
        name: &'static str,
        /// Why the value is invalid.
        source: Box<AttrError>,
    },
}

impl AttrError {
    /// An error for a literal of the wrong type.
    pub fn kind(expected: impl Into<String>, found: &AttrLiteral) -> AttrError {
        AttrError::Kind {
            expected: expected.into(),
            found: found.to_string(),
        }
    }
}

/// A type that can be an attribute of an operator.
///
/// ```
/// use tercet_ir::attr::{AttrError, AttrLiteral, AttrValue};
/// assert_eq!(Vec::<usize>::kind(), "list of integer");
/// let literal = vec![1usize, 2].to_literal();
/// assert_eq!(literal.to_string(), "[1, 2]");
/// assert_eq!(Vec::<usize>::from_literal(&literal)?, [1, 2]);
/// assert!(u8::from_literal(&AttrLiteral::Int(256)).is_err());
/// # Ok::<(), AttrError>(())
/// ```
pub trait AttrValue: Sized {
    /// The expected syntax in words, for error messages and documentation: `integer`, `list of
    /// dimension`.
    fn kind() -> String;

    /// Converts the value to a literal of the text form.
    fn to_literal(&self) -> AttrLiteral;

    /// Parses the value from a literal of the text form.
    ///
    /// # Errors
    /// [`AttrError`] when the literal has another type or is out of range.
    fn from_literal(literal: &AttrLiteral) -> Result<Self, AttrError>;

    /// The value of an attribute that is not written; `None` if it must be.
    fn absent() -> Option<Self> {
        None
    }

    /// Replaces symbols by sizes. Values without dimensions do not change.
    ///
    /// # Errors
    /// [`TypeError`] when a dimension is negative or too large for these sizes.
    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError> {
        let _ = sizes;
        Ok(())
    }
}

/// The attributes of an operator as a list, for printing and parsing.
///
/// ```
/// use tercet_ir::attr::{AttrError, AttrLiteral, Attrs};
/// tercet_ir::attrs! {
///     /// Attributes of an operator that drops elements.
///     pub struct Thin {
///         /// Keeps every element whose index is a multiple of this number.
///         pub step: usize,
///     }
/// }
/// assert_eq!(Thin::NAMES, ["step"]);
/// assert_eq!(Thin { step: 2 }.to_literals(), [("step", AttrLiteral::Int(2))]);
/// let thin = Thin::from_literals(&[("step".to_string(), AttrLiteral::Int(3))])?;
/// assert_eq!(thin, Thin { step: 3 });
/// # Ok::<(), AttrError>(())
/// ```
pub trait Attrs: Sized {
    /// The attribute names in declaration order.
    const NAMES: &'static [&'static str];

    /// Attribute names and [`AttrValue::kind`] in declaration order.
    fn kinds() -> Vec<(&'static str, String)>;

    /// Attribute names and values in declaration order.
    fn to_literals(&self) -> Vec<(&'static str, AttrLiteral)>;

    /// Builds the operator from these attributes.
    ///
    /// # Errors
    /// [`AttrError`] for a missing, unknown or unreadable attribute.
    fn from_literals(given: &[(String, AttrLiteral)]) -> Result<Self, AttrError>;

    /// Replaces symbols in the attributes by sizes.
    ///
    /// # Errors
    /// [`TypeError`] when a dimension is negative or too large for these sizes.
    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError>;
}

/// Finds and converts one attribute. The expansion of [`attrs!`](crate::attrs) calls this function.
pub fn take_attr<T: AttrValue>(
    given: &[(String, AttrLiteral)],
    name: &'static str,
) -> Result<T, AttrError> {
    let Some((_, literal)) = given.iter().find(|(n, _)| n == name) else {
        return T::absent().ok_or(AttrError::Missing { name });
    };
    T::from_literal(literal).map_err(|source| AttrError::In {
        name,
        source: Box::new(source),
    })
}

/// Declares an operator's struct and derives [`Attrs`] from its field list.
///
/// `attrs! { /// OpDoc. pub struct Softmax { /// Axis. pub axis: usize } }` expands to the struct
/// with the usual derives, `Attrs::NAMES == ["axis"]`, and conversions of each field through
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
            fn to_literals(&self) -> Vec<(&'static str, $crate::attr::AttrLiteral)> {
                vec![$((stringify!($f), $crate::attr::AttrValue::to_literal(&self.$f))),*]
            }
            fn from_literals(
                given: &[(String, $crate::attr::AttrLiteral)],
            ) -> Result<Self, $crate::attr::AttrError> {
                if let Some((name, _)) = given.iter().find(|(n, _)| !Self::NAMES.contains(&n.as_str())) {
                    let known = Self::NAMES.join(", ");
                    return Err($crate::attr::AttrError::Unknown { name: name.clone(), known });
                }
                Ok(Self { $($f: $crate::attr::take_attr(given, stringify!($f))?),* })
            }
            fn set_sizes(&mut self, sizes: &$crate::Bindings) -> Result<(), $crate::TypeError> {
                let _ = sizes;
                $($crate::attr::AttrValue::set_sizes(&mut self.$f, sizes)?;)*
                Ok(())
            }
        }
    };
}

/// Implements [`AttrValue`] for a type with the names `ALL` and `name()`, as [`spelled!`] declares them.
#[doc(hidden)]
#[macro_export]
macro_rules! attr_of_names {
    ($E:ty) => {
        impl $crate::attr::AttrValue for $E {
            fn kind() -> String {
                let names: Vec<_> = Self::ALL
                    .iter()
                    .map(|v| format!("`{}`", v.name()))
                    .collect();
                format!("one of {}", names.join(" "))
            }
            fn to_literal(&self) -> $crate::attr::AttrLiteral {
                $crate::attr::AttrLiteral::Ident(self.name().to_string())
            }
            fn from_literal(
                l: &$crate::attr::AttrLiteral,
            ) -> Result<Self, $crate::attr::AttrError> {
                let found = match l {
                    $crate::attr::AttrLiteral::Ident(s) => Self::ALL.iter().find(|v| v.name() == s),
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

/// Declares a fieldless enum with a text form name per variant, `ALL`, `name()` and [`AttrValue`].
///
/// `spelled! { /// OpDoc. pub enum Style { /// OpDoc. NeoX "neox" } }` expands to the enum,
/// `Style::ALL`, `Style::name` and the conversions of the text form.
#[macro_export]
macro_rules! spelled {
    ($(#[$m:meta])* pub enum $E:ident { $($(#[$vm:meta])* $V:ident $name:expr),* $(,)? }) => {
        $(#[$m])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $E { $($(#[$vm])* $V),* }

        impl $E {
            /// Every variant, in declaration order.
            pub const ALL: &'static [$E] = &[$($E::$V),*];

            /// The variant's name in the text form.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$V => $name),* }
            }
        }

        $crate::attr_of_names! { $E }
    };
}

/// A float attribute; equality and hash use its bits.
///
/// ```
/// use tercet_ir::attr::FloatAttr;
/// assert_eq!(FloatAttr(f64::NAN), FloatAttr(f64::NAN));
/// assert_ne!(FloatAttr(0.0), FloatAttr(-0.0));
/// assert_eq!(FloatAttr::from(0.5).0, 0.5);
/// ```
#[derive(Clone, Copy)]
pub struct FloatAttr(pub f64);

impl PartialEq for FloatAttr {
    fn eq(&self, other: &FloatAttr) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}
impl Eq for FloatAttr {}
impl std::hash::Hash for FloatAttr {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
impl fmt::Debug for FloatAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
impl From<f64> for FloatAttr {
    fn from(x: f64) -> FloatAttr {
        FloatAttr(x)
    }
}

impl AttrValue for FloatAttr {
    fn kind() -> String {
        "number".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::Float(self.0)
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        match l {
            AttrLiteral::Float(x) => Ok(FloatAttr(*x)),
            AttrLiteral::Int(i) => Ok(FloatAttr(*i as f64)),
            _ => Err(AttrError::kind("a number", l)),
        }
    }
}

macro_rules! int_attrs {
    ($($t:ty),*) => { $(impl AttrValue for $t {
        fn kind() -> String {
            "integer".to_string()
        }
        fn to_literal(&self) -> AttrLiteral { AttrLiteral::Int(*self as i128) }
        fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
            let value = match l { AttrLiteral::Int(i) => <$t>::try_from(*i).ok(), _ => None };
            value.ok_or_else(|| AttrError::kind(concat!("an integer that fits ", stringify!($t)), l))
        }
    })* };
}
int_attrs!(usize, i64, u8, u16, u32, u64);

impl AttrValue for bool {
    fn kind() -> String {
        "`true` or `false`".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::Ident(self.to_string())
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        match l {
            AttrLiteral::Ident(s) if s == "true" => Ok(true),
            AttrLiteral::Ident(s) if s == "false" => Ok(false),
            _ => Err(AttrError::kind("true or false", l)),
        }
    }
}

impl AttrValue for String {
    fn kind() -> String {
        "string".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::Str(self.clone())
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        match l {
            AttrLiteral::Str(s) => Ok(s.clone()),
            _ => Err(AttrError::kind("a string", l)),
        }
    }
}

attr_of_names! { Scheme }

impl AttrValue for DType {
    fn kind() -> String {
        "dtype".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::Ident(self.name().to_string())
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        let found = match l {
            AttrLiteral::Ident(s) => DType::from_name(s),
            _ => None,
        };
        found.ok_or_else(|| AttrError::kind("a dtype", l))
    }
}

impl AttrValue for Dim {
    fn kind() -> String {
        "dimension".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        match (self, self.as_symbol()) {
            (Dim::Known(n), _) => AttrLiteral::Int(*n as i128),
            (Dim::Sym(_), Some(s)) => AttrLiteral::Ident(s.name().to_string()),
            (Dim::Sym(_), None) => AttrLiteral::Dim(self.clone()),
        }
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        let found = match l {
            AttrLiteral::Int(i) => usize::try_from(*i).ok().map(Dim::Known),
            AttrLiteral::Ident(s) => Some(Dim::sym(s)),
            AttrLiteral::Dim(d) => Some(d.clone()),
            _ => None,
        };
        found.ok_or_else(|| AttrError::kind("a dimension", l))
    }
    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError> {
        let fixed = self.with_sizes(sizes);
        *self = fixed.map_err(|e| TypeError::Other(one_line(&e)))?;
        Ok(())
    }
}

impl AttrValue for Shape {
    fn kind() -> String {
        "list of dimension".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::List(self.iter().map(AttrValue::to_literal).collect())
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        Vec::<Dim>::from_literal(l).map(Shape::new)
    }
    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError> {
        if self.as_known().is_none() {
            let mut dims = self.clone().into_dims();
            dims.set_sizes(sizes)?;
            *self = Shape::new(dims);
        }
        Ok(())
    }
}

impl AttrValue for Type {
    fn kind() -> String {
        "type".to_string()
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::Type(self.clone())
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        match l {
            AttrLiteral::Type(t) => Ok(t.clone()),
            _ => Err(AttrError::kind("a type such as f32[2, s]", l)),
        }
    }
    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError> {
        self.shape.set_sizes(sizes)
    }
}

impl<T: AttrValue> AttrValue for Vec<T> {
    fn kind() -> String {
        format!("list of {}", T::kind())
    }
    fn to_literal(&self) -> AttrLiteral {
        AttrLiteral::List(self.iter().map(AttrValue::to_literal).collect())
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        match l {
            AttrLiteral::List(items) => items.iter().map(T::from_literal).collect(),
            _ => Err(AttrError::kind("a list", l)),
        }
    }
    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError> {
        self.iter_mut().try_for_each(|item| item.set_sizes(sizes))
    }
}

impl<T: AttrValue> AttrValue for Option<T> {
    fn kind() -> String {
        format!("{} or `none`", T::kind())
    }
    fn to_literal(&self) -> AttrLiteral {
        match self {
            Some(v) => v.to_literal(),
            None => AttrLiteral::Ident("none".to_string()),
        }
    }
    fn from_literal(l: &AttrLiteral) -> Result<Self, AttrError> {
        match l {
            AttrLiteral::Ident(s) if s == "none" => Ok(None),
            _ => T::from_literal(l).map(Some),
        }
    }
    fn absent() -> Option<Self> {
        Some(None)
    }
    fn set_sizes(&mut self, sizes: &Bindings) -> Result<(), TypeError> {
        match self {
            Some(value) => value.set_sizes(sizes),
            None => Ok(()),
        }
    }
}
