//! Tests of the SPIR-V modules of weight gradients.

use super::spirv_interface::all_agree;

#[test]
fn modules_declare_the_block_the_arguments_and_the_constants() {
    all_agree(&["conv_weights_f16", "conv_weights_bf16"]);
}
