//! Tests of the SPIR-V modules of convolutions.

use super::spirv_interface::all_agree;

#[test]
fn modules_declare_the_block_the_arguments_and_the_constants() {
    all_agree(&["conv_coop_f16", "conv_coop_bf16"]);
}
