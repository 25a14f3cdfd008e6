//! Tests of the SPIR-V modules of split-KV attention.

use super::spirv_interface::all_agree;

#[test]
fn the_modules_declare_the_block_the_arguments_and_the_constants() {
    all_agree(&[
        "attention_coop_parts_f16",
        "attention_convert_parts_f16",
        "attention_halves_parts_f32",
        "attention_halves_convert_parts_f32",
    ]);
}
