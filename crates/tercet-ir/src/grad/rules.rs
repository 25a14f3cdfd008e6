//! The gradient rules of operators, by group. Each rule computes the cotangents of operands from
//! those of results; its comment gives the formula. Values narrower than F32 are summed in F32, as
//! in the operators.

pub(crate) mod attention;
pub(crate) mod control;
pub(crate) mod conv;
pub(crate) mod elementwise;
pub(crate) mod index;
pub(crate) mod matmul;
pub(crate) mod norm;
pub(crate) mod pool;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod scatter;
pub(crate) mod shape;
pub(crate) mod spectral;
#[cfg(feature = "splat")]
pub(crate) mod splat;
