//! Tests of the programs of all operator cases on all device profiles, without a device. The tests
//! check that the cases plan, that shaders are valid, that programs have no races, and that new
//! sizes only change launch-time values. [`units`] has tests of single parts of the compiler.

mod blocks;
mod checks;
mod choices;
mod common;
mod control;
mod digests;
mod fragment_layout;
mod fusion_orders;
mod fusions;
mod imports;
mod map;
mod matmul;
mod msl;
mod panels;
mod parts;
mod planning;
mod races;
mod row_wise;
mod sizes;
mod snapshots;
mod spirv_modules;
mod tokens;
mod units;
mod variants;
mod wgsl_matrices;
