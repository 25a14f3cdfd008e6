//! Kernels compared with plain loops, at every SIMD level of the machine.

mod attention;
mod conv;
mod conv_nhwc;
mod gemm;
mod int8_add;
mod int8_conv;
mod int_gemm;
mod long_sums;
mod quant;
mod quant_gemm_i16;
mod rows;
mod vmath;
