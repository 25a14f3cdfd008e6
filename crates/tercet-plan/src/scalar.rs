//! Scalar functions in WGSL: the pieces of text, and the expression of one step.
//!
//! A kernel includes [`PRELUDE`] and the pieces it calls; [`text`] puts what those need before them.
//! Functions are named by class and name: `f_exp(x: f32)`, `i_div(a: i32, b: i32)`, `u_pow`. They meet
//! the tolerance table however roughly a device divides or takes roots, and whether or not it flushes
//! subnormal numbers or contracts products and sums.
//!
//! Next: `scalar/step.rs` for what a step of a `Map` is written as.

mod step;

use crate::families::portable;

pub(crate) use step::{Class, class, expression, native, quick};

/// What every kernel may use.
pub(crate) const PRELUDE: &str = portable!("prelude.wgsl");

/// Declares [`Piece`]: `Name "file" [needs];` gives a variant, its text and what it calls.
macro_rules! pieces {
    ($($(#[$doc:meta])* $Name:ident $file:literal [$($need:ident),*];)*) => {
        /// A group of functions. What it needs stands before it in this list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) enum Piece { $($(#[$doc])* $Name),* }

        impl Piece {
            /// Every piece, in an order that WGSL text may have.
            #[cfg(test)]
            pub(crate) const ALL: &'static [Piece] = &[$(Piece::$Name),*];

            /// Its text.
            pub(crate) const fn text(self) -> &'static str {
                match self { $(Piece::$Name => portable!($file)),* }
            }

            /// What it calls, apart from the prelude.
            const fn needs(self) -> &'static [Piece] {
                match self { $(Piece::$Name => &[$(Piece::$need),*]),* }
            }
        }
    };
}

pieces! {
    /// Parts of floats, sums of two numbers, rough divisions made good.
    Base "scalar/base.wgsl" [];
    /// `half_rounded`
    Round "scalar/round.wgsl" [Base];
    /// Whether devices keep subnormal numbers.
    Floats "scalar/floats.wgsl" [];
    /// 64-bit products.
    Wide "scalar/wide.wgsl" [];
    /// `f_add f_sub f_mul f_div f_recip f_fma`, exact also for subnormal numbers; `soft_fma`.
    Arithmetic "scalar/arithmetic.wgsl" [Base, Floats, Wide];
    /// `q_add q_sub q_mul q_div`, right or else in doubt.
    Quick "scalar/quick.wgsl" [Base, Floats];
    /// Signs, roundings to integers, predicates, `f_clamp`.
    Sign "scalar/sign.wgsl" [Base];
    /// Comparisons of floats.
    Compare "scalar/compare.wgsl" [];
    /// Between floats and integers.
    Convert "scalar/convert.wgsl" [];
    /// Integers in 32 bits.
    Int "scalar/int.wgsl" [];
    /// `f_sqrt f_rsqrt`
    Root "scalar/root.wgsl" [Base];
    /// `q_sqrt`, right or else in doubt.
    QuickRoot "scalar/quick_root.wgsl" [Quick];
    /// `f_exp f_exp2 f_expm1`
    Exp "scalar/exp.wgsl" [Base];
    /// `f_ln f_log2 f_log1p`
    Log "scalar/log.wgsl" [Base];
    /// Products with gates by tails.
    Tail "scalar/tail.wgsl" [Base];
    /// `f_softplus`
    Softplus "scalar/softplus.wgsl" [Exp, Log];
    /// `f_tanh f_sinh f_cosh`
    Hyperbolic "scalar/hyperbolic.wgsl" [Exp];
    /// `f_sigmoid f_silu f_gelu_tanh`
    Gate "scalar/gate.wgsl" [Exp, Tail];
    /// `f_erf f_gelu`
    Erf "scalar/erf.wgsl" [Exp, Tail];
    /// `q_gelu`, right or else in doubt.
    QuickGelu "scalar/quick_gelu.wgsl" [Quick, Erf];
    /// `q_exp q_tanh q_sigmoid q_silu q_gelu_tanh`, right or else in doubt.
    QuickGate "scalar/quick_gate.wgsl" [Quick, Gate];
    /// `n_exp n_tanh n_sqrt n_sigmoid n_silu n_gelu_tanh n_gelu`, for results in F16
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

/// The pieces and what they need, each once, in order.
pub(crate) fn closure(pieces: &[Piece]) -> Vec<Piece> {
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

/// The prelude, and the pieces with what they need.
pub(crate) fn text(pieces: &[Piece]) -> String {
    let mut text = PRELUDE.to_string();
    for piece in closure(pieces) {
        text += "\n";
        text += piece.text();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_piece_is_valid_with_what_it_needs_alone() {
        for &piece in Piece::ALL {
            assert!(piece.needs().iter().all(|n| *n < piece), "{piece:?}");
            let text = text(&[piece]);
            let module = naga::front::wgsl::parse_str(&text)
                .unwrap_or_else(|e| panic!("{piece:?}: {}", e.emit_to_string(&text)));
            naga::valid::Validator::new(
                naga::valid::ValidationFlags::all(),
                // Core WGSL; naga names it because OpenGL may lack it.
                naga::valid::Capabilities::SHADER_FLOAT16_IN_FLOAT32,
            )
            .validate(&module)
            .unwrap_or_else(|e| panic!("{piece:?}: {}", e.emit_to_string(&text)));
        }
    }
}
