//! Tests of the SPIR-V modules of skinny GEMM.

use tercet_plan::internals::matmul::SKINNY_KERNELS;

use super::spirv_interface::agrees;

#[test]
fn the_modules_declare_the_block_the_arguments_and_the_constants() {
    for kernel in SKINNY_KERNELS {
        agrees(kernel);
    }
}
