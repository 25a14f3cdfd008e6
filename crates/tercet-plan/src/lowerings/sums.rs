//! The epilogues of matmul and convolution kernels as WGSL fragments, and the names of the
//! constants that configure them.

use super::portable;
use tercet_program::ArgAccess;

/// Arguments of the kernels: two operands, a bias, and the results.
pub(super) const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];
/// Names of the constants that come first in every kernel with an epilogue.
pub(super) const OF_SUMS: &[&str] = &["BIAS", "ACTIVATION", "A_TYPE", "Y_TYPE"];
/// Epilogue of float sums.
pub(super) const SUMS: &str = portable!("matmul/floats.wgsl");
/// WGSL epilogues: one with activation functions of little code only (`PLAIN`), and one with all
/// activation functions (`ACTIVATED`).
pub(super) const PLAIN: &str = portable!("matmul/plain.wgsl");
pub(super) const ACTIVATED: &str = portable!("matmul/activated.wgsl");

/// WGSL fragments, preceded by the library functions that activation functions such as GELU need.
macro_rules! with_functions {
    ($($piece:expr),* $(,)?) => {
        &[
            $crate::scalar::PRELUDE,
            $crate::scalar::WgslHelper::Base.text(),
            $crate::scalar::WgslHelper::Exp.text(),
            $crate::scalar::WgslHelper::Log.text(),
            $crate::scalar::WgslHelper::Softplus.text(),
            $crate::scalar::WgslHelper::Hyperbolic.text(),
            $crate::scalar::WgslHelper::Tail.text(),
            $crate::scalar::WgslHelper::Gate.text(),
            $crate::scalar::WgslHelper::Erf.text(),
            $($piece),*
        ]
    };
}
pub(super) use with_functions;
