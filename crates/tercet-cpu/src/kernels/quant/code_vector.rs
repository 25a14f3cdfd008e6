//! Vectors of 32 quantized values or eight integers, for the integer kernels: a register of AVX2, or
//! two of NEON.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(target_arch = "x86_64")]
pub(super) use super::super::simd::Avx2 as Lanes;
#[cfg(target_arch = "aarch64")]
pub(super) use super::super::simd::Neon as Lanes;
#[cfg(target_arch = "x86_64")]
pub(super) use avx2::*;
#[cfg(target_arch = "aarch64")]
pub(super) use neon::*;
