//! The rules of operators, by family. Each gives the cotangents of operands from those of results; the formula stands
//! at each. Sums over values narrower than F32 are made in F32, as the operators do.

pub(crate) mod attention;
pub(crate) mod control;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod index;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod product;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod scatter;
pub(crate) mod shape;
pub(crate) mod spectral;
#[cfg(feature = "splat")]
pub(crate) mod splat;
