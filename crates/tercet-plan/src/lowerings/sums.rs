//! What kernels of products and of convolutions do to their sums: pieces of shaders, and the constants that say which.

use super::portable;
use crate::kernel::Access;

/// Two operands, a bias and results.
pub(super) const ARGS: &[Access] = &[Access::Read, Access::Read, Access::Read, Access::Write];
/// The constants that kernels of sums begin with.
pub(super) const OF_SUMS: &[&str] = &["BIAS", "ACTIVATION", "A_TYPE", "Y_TYPE"];
/// What is done to sums of floats.
pub(super) const SUMS: &str = portable!("matmul/floats.wgsl");
/// Short functions of a sum, and long ones.
pub(super) const PLAIN: &str = portable!("matmul/plain.wgsl");
pub(super) const ACTIVATED: &str = portable!("matmul/activated.wgsl");

/// Pieces after those that long functions of a sum are made of.
macro_rules! with_functions {
    ($($piece:expr),* $(,)?) => {
        &[
            $crate::scalar::PRELUDE,
            $crate::scalar::Piece::Base.text(),
            $crate::scalar::Piece::Exp.text(),
            $crate::scalar::Piece::Log.text(),
            $crate::scalar::Piece::Softplus.text(),
            $crate::scalar::Piece::Hyperbolic.text(),
            $crate::scalar::Piece::Tail.text(),
            $crate::scalar::Piece::Gate.text(),
            $crate::scalar::Piece::Erf.text(),
            $($piece),*
        ]
    };
}
pub(super) use with_functions;
