//! One row in registers times packed weights: by barriers of the device, or as links of chains (`chain.wgsl`).

use super::{OF_BATCHES, OF_GROUPS, PROLOGUE, ProductParams, ROW_ARGS, ROW_QUADS, SHARED};
use crate::families::dequant::{BLOCKS, PIECES, QUADS};
use crate::families::portable;
use crate::families::sums::{ACTIVATED, OF_SUMS, PLAIN, SUMS, with_functions};
use crate::kernel::{Access, Kernel, names};
use crate::scalar::PRELUDE;

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

/// One row in registers times packed weights, held in the way of this piece, waiting for what stands before it in the way of
/// these.
macro_rules! of_held {
    ($plain:ident $plain_name:literal, $full:ident $full_name:literal, $way:expr, $args:expr, $($chain:expr),*) => {
        pub(in crate::families::matmul) static $plain: Kernel<ProductParams> = Kernel::wgsl(
            $plain_name,
            &[
                PRELUDE, SHARED, OF_BATCHES, PLAIN, SUMS, ROW_QUADS, PROLOGUE, BLOCKS, QUADS,
                PIECES, $($chain,)* HELD, $way,
            ],
            $args,
            HELD_CONSTS,
        );
        pub(in crate::families::matmul) static $full: Kernel<ProductParams> = Kernel::wgsl(
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

/// [`ROW_ARGS`], and the counters of a chain, which order nothing by themselves.
const CHAINED_ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Read,
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
