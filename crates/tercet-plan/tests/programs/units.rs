//! Tests of single parts of the compiler. [`tercet_plan::internals`] has those that are private.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod attention_backward;
mod attention_backward_split_f16;
mod attention_coop;
mod attention_flash_decoding;
mod attention_split_kv;
mod attention_wgsl_matrices;
mod binding_limit;
mod binding_limit_range;
mod conv_coop;
mod conv_weights_coop;
mod dequant_schedule;
mod device;
mod fft;
mod gemm_coop;
mod gemm_coop_wgsl;
mod grouped_coop;
mod matmul_skinny;
mod matmul_skinny_prepacked_a;
mod matmul_skinny_shared_mem;
mod narrow_overflow;
mod native_ops;
mod sample;
mod scalar;
mod schedule_batch;
mod spirv_interface;
mod state_scan_chunked;
mod state_scan_tile;
mod tiles;
mod tune_task;
mod tuning;
