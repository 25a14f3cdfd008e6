//! Scalar functions in WGSL: library fragments, and the expression for one step of a map.
//!
//! A kernel includes [`PRELUDE`] and the fragments it calls; [`text`] adds their dependencies in
//! order. Functions have names that consist of type and operation, such as `f_exp(x: f32)`,
//! `i_div(a: i32, b: i32)`, `u_pow`. Every function meets the tolerance table on every device, even
//! if the device has inaccurate division and roots, flushes subnormal numbers or contracts
//! multiply-adds.
//!
//! Next: `scalar/step.rs` for the code generated for a step of a `Map`.

mod step;

use std::collections::HashMap;
use std::sync::LazyLock;

use crate::lowerings::portable;

pub(crate) use step::{ScalarClass, class, expression, native, quick, sign_extended16};

/// WGSL source that every kernel includes first.
pub(crate) const PRELUDE: &str = portable!("prelude.wgsl");

/// Declares [`WgslHelper`]: `Name "file" [dependencies];` declares a variant, its source file and
/// the fragments it calls.
macro_rules! pieces {
    ($($(#[$doc:meta])* $Name:ident $file:literal [$($need:ident),*];)*) => {
        /// A WGSL fragment: a library file with a group of scalar functions. The fragments that a
        /// fragment calls precede it in this list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum WgslHelper { $($(#[$doc])* $Name),* }

        impl WgslHelper {
            /// All fragments, each after those that it calls.
            pub const ALL: &'static [WgslHelper] = &[$(WgslHelper::$Name),*];

            /// WGSL source of the fragment.
            pub(crate) const fn text(self) -> &'static str {
                match self { $(WgslHelper::$Name => portable!($file)),* }
            }

            /// The fragments whose functions this fragment calls, except the prelude.
            pub const fn needs(self) -> &'static [WgslHelper] {
                match self { $(WgslHelper::$Name => &[$(WgslHelper::$need),*]),* }
            }
        }
    };
}

pieces! {
    /// Decomposition of floats, two-term sums, and refined division.
    Base "scalar/base.wgsl" [];
    /// `half_rounded`
    Round "scalar/round.wgsl" [Base];
    /// Constants that tell whether the device keeps subnormal numbers.
    Floats "scalar/floats.wgsl" [];
    /// 64-bit integer products.
    Wide "scalar/wide.wgsl" [];
    /// `f_add f_sub f_mul f_div f_recip f_fma`, exact for subnormal numbers too; `soft_fma`.
    Arithmetic "scalar/arithmetic.wgsl" [Base, Floats, Wide];
    /// `q_add q_sub q_mul q_div`: fast versions that flag uncertain results.
    Quick "scalar/quick.wgsl" [Base, Floats];
    /// Functions for signs, rounding to integers, predicates, and `f_clamp`.
    Sign "scalar/sign.wgsl" [Base];
    /// Comparisons of floats.
    Compare "scalar/compare.wgsl" [];
    /// Conversions between floats and integers.
    Convert "scalar/convert.wgsl" [];
    /// 32-bit integer functions.
    Int "scalar/int.wgsl" [];
    /// `f_sqrt f_rsqrt`
    Root "scalar/root.wgsl" [Base];
    /// `q_sqrt`, a fast square root. It sets a flag if its result may be inexact, and the caller then
    /// uses `f_sqrt`.
    QuickRoot "scalar/quick_root.wgsl" [Quick];
    /// `f_exp f_exp2 f_expm1`
    Exp "scalar/exp.wgsl" [Base];
    /// Logarithms, and functions that consist of one.
    Log "scalar/log.wgsl" [Base];
    /// Products `x P(x)` of a value and a gate `P` that rises from 0 to 1, as in GELU; they are
    /// computed from the tail `P(-|x|)`.
    Tail "scalar/tail.wgsl" [Base];
    /// `f_softplus`
    Softplus "scalar/softplus.wgsl" [Exp, Log];
    /// `f_tanh f_sinh f_cosh`
    Hyperbolic "scalar/hyperbolic.wgsl" [Exp];
    /// `f_sigmoid f_silu f_gelu_tanh`
    Gate "scalar/gate.wgsl" [Exp, Tail];
    /// `f_erf f_gelu`
    Erf "scalar/erf.wgsl" [Exp, Tail];
    /// `q_gelu`: fast version that flags uncertain results.
    QuickGelu "scalar/quick_gelu.wgsl" [Quick, Erf];
    /// `q_exp q_tanh q_sigmoid q_silu q_gelu_tanh`: fast versions that flag uncertain results.
    QuickGate "scalar/quick_gate.wgsl" [Quick, Gate];
    /// `n_exp n_tanh n_sqrt n_sigmoid n_silu n_gelu_tanh n_gelu`: versions precise enough for F16
    /// results.
    Narrow "scalar/narrow.wgsl" [];
    /// `f_sin f_cos f_tan`
    Trig "scalar/trig.wgsl" [Base, Wide];
    /// `f_asin f_acos f_atan f_atan2`
    Arc "scalar/arc.wgsl" [Root];
    /// `f_pow`
    Pow "scalar/pow.wgsl" [Exp, Log];
    /// `f_rem`
    Rem "scalar/rem.wgsl" [Base];
}

impl WgslHelper {
    /// The fragment that defines a function.
    pub fn with_function(name: &str) -> Option<WgslHelper> {
        static ALL: LazyLock<HashMap<&'static str, WgslHelper>> = LazyLock::new(|| {
            let of = |helper: &WgslHelper| {
                let lines = helper.text().lines();
                let names = lines.filter_map(|line| line.strip_prefix("fn ")?.split('(').next());
                names.map(|name| (name, *helper)).collect::<Vec<_>>()
            };
            WgslHelper::ALL.iter().flat_map(of).collect()
        });
        ALL.get(name).copied()
    }
}

/// The fragments with all dependencies, without duplicates, in order.
pub(crate) fn closure(pieces: &[WgslHelper]) -> Vec<WgslHelper> {
    let mut all = pieces.to_vec();
    let mut at = 0;
    while let Some(piece) = all.get(at).copied() {
        all.extend(piece.needs());
        at += 1;
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// WGSL source of the prelude and of the fragments with all dependencies.
pub fn text(pieces: &[WgslHelper]) -> String {
    let mut text = PRELUDE.to_string();
    for piece in closure(pieces) {
        text += "\n";
        text += piece.text();
    }
    text
}
