//! Kernels of GEMV with quantized weights and the activation row in registers. Barriers or
//! dependent launch (`chain.wgsl`) synchronize them with other dispatches.

use super::{MatMulParams, OF_BATCHES, OF_GROUPS, PROLOGUE, ROW_ARGS, ROW_QUADS, SHARED};
use crate::lowerings::dequant::{BLOCKS, PIECES, QUADS};
use crate::lowerings::portable;
use crate::lowerings::sums::{ACTIVATED, OF_SUMS, PLAIN, SUMS, with_functions};
use crate::scalar::PRELUDE;
use tercet_program::{ArgAccess, TypedKernel, kernel_names as names};

const HELD: &str = concat!(
    portable!("matmul/gemv_shares.wgsl"),
    portable!("matmul/gemv_held.wgsl")
);
const HELD_FLOATS: &str = portable!("matmul/gemv_held_floats.wgsl");
const HELD_DOTS: &str = portable!("matmul/gemv_held_dots.wgsl");
const HELD_CONSTS: &[&str] = names![
    OF_SUMS,
    OF_GROUPS,
    &[
        "SLICES", "TEAMS", "COLUMNS", "ROUNDS", "BATCHES", "DEPTH", "DIGITS", "GATED", "NORMED"
    ],
];

/// Declares a GEMV kernel with the activation row in registers. The WGSL fragment `$way` defines
/// the format of the row in registers; the fragments `$chain` define how the kernel waits for the
/// previous dispatch.
macro_rules! of_held {
    ($plain:ident $plain_name:literal, $full:ident $full_name:literal, $way:expr, $args:expr, $($chain:expr),*) => {
        pub(in crate::lowerings::matmul) static $plain: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $plain_name,
            &[
                PRELUDE, SHARED, OF_BATCHES, PLAIN, SUMS, ROW_QUADS, PROLOGUE, BLOCKS, QUADS,
                PIECES, $($chain,)* HELD, $way,
            ],
            $args,
            HELD_CONSTS,
        );
        pub(in crate::lowerings::matmul) static $full: TypedKernel<MatMulParams> = TypedKernel::wgsl(
            $full_name,
            with_functions![
                SHARED, OF_BATCHES, ACTIVATED, SUMS, ROW_QUADS, PROLOGUE, BLOCKS, QUADS, PIECES,
                $($chain,)* HELD, $way
            ],
            $args,
            HELD_CONSTS,
        );
    };
}

/// [`ROW_ARGS`] plus the counters of dependent launches. The counters are declared as read, so that
/// they cause no barriers.
const CHAINED_ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
    ArgAccess::Read,
];
const ALONE: &str = portable!("chain_none.wgsl");
const CHAIN: &str = portable!("chain.wgsl");
const CHAIN_ROW: &str = portable!("matmul/chain_row.wgsl");

of_held!(HELD_PLAIN "gemv_held", HELD_ACTIVATED "gemv_held_activated", HELD_FLOATS, ROW_ARGS, ALONE);
of_held!(DOTS_PLAIN "gemv_dots", DOTS_ACTIVATED "gemv_dots_activated", HELD_DOTS, ROW_ARGS, ALONE);
of_held!(
    HELD_PLAIN_CHAINED "gemv_held_chained", HELD_ACTIVATED_CHAINED "gemv_held_activated_chained",
    HELD_FLOATS, CHAINED_ARGS, CHAIN_ROW, CHAIN
);
of_held!(
    DOTS_PLAIN_CHAINED "gemv_dots_chained", DOTS_ACTIVATED_CHAINED "gemv_dots_activated_chained",
    HELD_DOTS, CHAINED_ARGS, CHAIN_ROW, CHAIN
);
