//! Tests of the SPIR-V modules of grouped matmuls.

use super::spirv_interface::all_agree;

#[test]
fn modules_declare_the_block_the_arguments_and_the_constants() {
    all_agree(&["gemm_grouped_f16", "gemm_grouped_bf16"]);
}
