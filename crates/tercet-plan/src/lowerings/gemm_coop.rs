//! The matrix product on cooperative matrices: kernels, constants, block.
//!
//! The shaders are `shaders/vulkan/include/gemm_coop.glsl`, whose matrices belong to subgroups, and
//! `gemm_block.glsl`, whose matrices belong to a workgroup; `gemm_laid_f16.comp` takes weights that were laid out.
//! `gemm_params.glsl` says what the numbers mean.
//!
//! Next: `gemm_coop/tiling.rs` for tiles, `gemm_coop/choose.rs` for their choice.

mod choose;
mod tiling;

use tercet_ir::DType;
use tercet_ir::scalar::UnaryFn;

pub(super) use self::choose::{Gathering, TAIL};
pub use self::tiling::{Scope, Tail, Tiling};
use crate::caps::CoopType;
use crate::kernel::{Access, Kernel};

crate::params! {
    /// The block of `gemm_params.glsl`.
    pub struct GemmCoopParams {
        m: U32,
        n: U32,
        k: U32,
        batches: U32,
        batch_inner: U32,
        splits: U32,
        split_k: U32,
        lda: U32,
        ldb: U32,
        ldc: U32,
        ld_residual: U32,
        offset_a: U32,
        offset_b: U32,
        offset_c: U32,
        offset_bias: U32,
        offset_residual: U32,
        outer_a: U32,
        outer_b: U32,
        outer_c: U32,
        outer_residual: U32,
        inner_a: U32,
        inner_b: U32,
        inner_c: U32,
        inner_residual: U32,
        split_c: U32,
        len_c: U32,
    }
    /// The same of `gemm_laid_f16.comp`.
    pub struct GemmLaidParams {
        ..product: GemmCoopParams,
        c_panels: U32,
    }
}

/// The constants of `gemm_coop.glsl`.
pub(super) const CONSTS: &[&str] = &[
    "THREADS",
    "SUBGROUP",
    "FM",
    "FN",
    "FK",
    "BM",
    "BN",
    "BK",
    "WM",
    "WN",
    "STAGES",
    "B_TRANSPOSED",
    "ALIGNED_A",
    "ALIGNED_B",
    "ACTIVATION",
    "HAS_BIAS",
    "HAS_RESIDUAL",
    "OUT_F32",
    "BIAS_F32",
    "RESIDUAL_F32",
    "ALIGNED_C",
    "BAND",
    "PLANES",
    "NATIVE",
];

const BLOCK_CONSTS: &[&str] = &[
    "THREADS",
    "BM",
    "BN",
    "BK",
    "B_TRANSPOSED",
    "ACTIVATION",
    "HAS_BIAS",
    "HAS_RESIDUAL",
    "OUT_F32",
    "BIAS_F32",
    "RESIDUAL_F32",
    "BAND",
];

const LAID_CONSTS: &[&str] = &[
    "THREADS",
    "BM",
    "BN",
    "PART_ROWS",
    "ACTIVATION",
    "HAS_BIAS",
    "BAND",
    "FULL_PARTS",
    "SLICES",
    "LDA",
    "A_PANELS",
];

/// A, B, bias, residual, C. Where there is no bias or residual, any slot stands in.
pub(super) const ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
];

macro_rules! module {
    ($file:expr) => {
        include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../shaders/vulkan/spirv/",
            $file
        ))
    };
}

pub(super) use module;

pub(crate) static F16: Kernel<GemmCoopParams> =
    Kernel::spirv("gemm_coop_f16", module!("gemm_coop_f16.spv"), ARGS, CONSTS);

pub(crate) static BF16: Kernel<GemmCoopParams> = Kernel::spirv(
    "gemm_coop_bf16",
    module!("gemm_coop_bf16.spv"),
    ARGS,
    CONSTS,
);

pub(crate) static BLOCK_F16: Kernel<GemmCoopParams> = Kernel::spirv(
    "gemm_block_f16",
    module!("gemm_block_f16.spv"),
    ARGS,
    BLOCK_CONSTS,
);

pub(crate) static BLOCK_BF16: Kernel<GemmCoopParams> = Kernel::spirv(
    "gemm_block_bf16",
    module!("gemm_block_bf16.spv"),
    ARGS,
    BLOCK_CONSTS,
);

pub(crate) static LAID_F16: Kernel<GemmLaidParams> = Kernel::spirv(
    "gemm_laid_f16",
    module!("gemm_laid_f16.spv"),
    ARGS,
    LAID_CONSTS,
);

/// Numbers of this type as factors of cooperative matrices.
pub(crate) fn type_of(dtype: DType) -> Option<CoopType> {
    match dtype {
        DType::F16 => Some(CoopType::F16),
        DType::BF16 => Some(CoopType::BF16),
        _ => None,
    }
}

/// The kernel for factors of a type as they lie.
///
/// # Panics
/// Of [`Scope::Laid`], whose kernel has a block of its own.
pub fn kernel(ty: CoopType, scope: Scope) -> &'static Kernel<GemmCoopParams> {
    match (ty, scope) {
        (CoopType::F16, Scope::Subgroup) => &F16,
        (CoopType::BF16, Scope::Subgroup) => &BF16,
        (CoopType::F16, Scope::Workgroup) => &BLOCK_F16,
        (CoopType::BF16, Scope::Workgroup) => &BLOCK_BF16,
        (_, Scope::Laid) => {
            unreachable!("invariant: weights that were laid out have a kernel of their own")
        }
    }
}

/// The functions that the kernel applies to its sums; the code of one is its place plus 1.
pub const ACTIVATIONS: &[UnaryFn] = &[
    UnaryFn::Relu,
    UnaryFn::Sigmoid,
    UnaryFn::Tanh,
    UnaryFn::Gelu,
    UnaryFn::GeluTanh,
    UnaryFn::Silu,
    UnaryFn::Softplus,
    UnaryFn::Relu6,
];

/// Columns of a panel of rows, in `gemm_laid_f16.comp`.
pub(crate) const PANEL: u32 = 32;

/// What of the kernel a product uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// B is `[n, k]`.
    pub b_transposed: bool,
    /// `lda`, `offset_a`, the strides of A and `k` are multiples of 8 for all sizes.
    pub aligned_a: bool,
    /// `ldb`, `offset_b`, the strides of B and `n` (transposed: `k`) are.
    pub aligned_b: bool,
    /// The function of the sums, one of [`ACTIVATIONS`].
    pub activation: Option<UnaryFn>,
    /// Add a bias per column; `Some(true)` if it is f32, else it is of the factors' type.
    pub bias_f32: Option<bool>,
    /// Add a residual; likewise.
    pub residual_f32: Option<bool>,
    /// C is f32, else of the factors' type.
    pub out_f32: bool,
    /// `ldc`, `offset_c`, the strides of C and `n` are multiples of 8 for all sizes.
    pub aligned_c: bool,
    /// There may be several batches, or parts of `k`.
    pub planes: bool,
    /// The device's own conversions of F16 are right ([`Caps::natives`](crate::Caps::natives)).
    pub native_halves: bool,
    /// The least rows of a run.
    pub least_rows: usize,
    /// `lda` where it is the same in every run, else 0.
    pub known_lda: u32,
    /// A lies in panels, `[k / 32, m, 32]`; of weights that were laid out.
    pub a_panels: bool,
}

impl Options {
    /// True if a kernel takes them that takes weights that were laid out: one batch of 16-bit floats, no residual.
    pub fn can_be_laid(&self) -> bool {
        let narrow = !self.out_f32 && self.bias_f32 != Some(true);
        self.aligned() && narrow && self.residual_f32.is_none() && !self.planes
    }

    /// True if every operand is aligned, as [`Scope::Workgroup`] needs.
    pub fn aligned(&self) -> bool {
        self.aligned_a && self.aligned_b && self.aligned_c
    }
}

/// The values of the kernel's constants.
///
/// # Panics
/// When the activation is not one of [`ACTIVATIONS`]: a bug of a family.
pub fn constants(tiling: &Tiling, options: &Options) -> Vec<u32> {
    let [bm, bn, bk] = tiling.tile;
    let activation = options.activation.map_or(0, |f| {
        let at = ACTIVATIONS.iter().position(|known| *known == f);
        1 + at.expect("invariant: the kernel has the activation")
    });
    let b_transposed = u32::from(options.b_transposed);
    let epilogue = [
        activation as u32,
        u32::from(options.bias_f32.is_some()),
        u32::from(options.residual_f32.is_some()),
        u32::from(options.out_f32),
        u32::from(options.bias_f32 == Some(true)),
        u32::from(options.residual_f32 == Some(true)),
    ];
    match tiling.scope {
        Scope::Subgroup => {
            let [fm, fn_, fk] = tiling.fragment;
            let [wm, wn] = tiling.part;
            let sizes = [fm, fn_, fk, bm, bn, bk, wm, wn, tiling.stages];
            let aligned = [options.aligned_a, options.aligned_b].map(u32::from);
            let mut all = vec![tiling.threads(), tiling.subgroup];
            all.extend(sizes);
            all.push(b_transposed);
            all.extend(aligned);
            all.extend(epilogue);
            all.push(u32::from(options.aligned_c));
            all.push(tiling.band);
            all.push(u32::from(options.planes));
            all.push(u32::from(options.native_halves));
            all
        }
        Scope::Workgroup => {
            let mut all = vec![tiling.threads(), bm, bn, bk, b_transposed];
            all.extend(epilogue);
            all.push(tiling.band);
            all
        }
        Scope::Laid => {
            let [activation, has_bias, ..] = epilogue;
            let [rows, _] = tiling.part;
            let sizes = [tiling.threads(), bm, bn, rows];
            let full = u32::from(options.least_rows >= rows as usize);
            let a_panels = u32::from(options.a_panels);
            let lda = match options.a_panels {
                true => PANEL,
                false => options.known_lda,
            };
            let rest = [
                activation,
                has_bias,
                tiling.band,
                full,
                tiling.slices,
                lda,
                a_panels,
            ];
            [&sizes[..], &rest].concat()
        }
    }
}

#[cfg(test)]
pub(in crate::families) mod tests;
