//! GEMM on cooperative matrices: kernels, constants and parameter blocks.
//!
//! `shaders/vulkan/include/gemm_coop.glsl` uses subgroup-scope matrices and `gemm_block.glsl`
//! workgroup-scope ones. `gemm_laid_f16.comp` uses prepacked weights. `gemm_params.glsl` documents
//! the parameters.
//!
//! Next: `gemm_coop/tiling.rs` for tilings, `gemm_coop/choose.rs` for their selection.

pub(crate) mod choose;
mod tiling;
mod wgsl;

use tercet_ir::DType;
use tercet_ir::scalar::UnaryFn;

pub(super) use self::choose::{ImplicitGemm, TAIL};
pub use self::tiling::{CoopGemmTiling, CoopScope, TailSplitK};
use crate::caps::CoopType;
pub(super) use crate::spirv_module::spirv_module as module;
use tercet_program::{ArgAccess, TypedKernel};

crate::params! {
    /// Parameter block of `gemm_params.glsl`.
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
    /// Parameter block of `gemm_laid_f16.comp`.
    pub struct GemmPrepackedParams {
        ..product: GemmCoopParams,
        c_panels: U32,
    }
}

/// Names of the specialization constants of `gemm_coop.glsl`.
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

/// Arguments: Access modes of the operands A and B, bias, residual and result C. If bias or
/// residual is absent, any slot may be bound in its place.
pub(super) const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];

pub(crate) static F16: TypedKernel<GemmCoopParams> =
    TypedKernel::spirv("gemm_coop_f16", module!("gemm_coop_f16.spv"), ARGS, CONSTS);

pub(crate) static BF16: TypedKernel<GemmCoopParams> = TypedKernel::spirv(
    "gemm_coop_bf16",
    module!("gemm_coop_bf16.spv"),
    ARGS,
    CONSTS,
);

pub(crate) static BLOCK_F16: TypedKernel<GemmCoopParams> = TypedKernel::spirv(
    "gemm_block_f16",
    module!("gemm_block_f16.spv"),
    ARGS,
    BLOCK_CONSTS,
);

pub(crate) static BLOCK_BF16: TypedKernel<GemmCoopParams> = TypedKernel::spirv(
    "gemm_block_bf16",
    module!("gemm_block_bf16.spv"),
    ARGS,
    BLOCK_CONSTS,
);

pub(crate) static LAID_F16: TypedKernel<GemmPrepackedParams> = TypedKernel::spirv(
    "gemm_laid_f16",
    module!("gemm_laid_f16.spv"),
    ARGS,
    LAID_CONSTS,
);

/// The cooperative-matrix operand type for a dtype, if there is one.
pub(crate) fn type_of(dtype: DType) -> Option<CoopType> {
    match dtype {
        DType::F16 => Some(CoopType::F16),
        DType::BF16 => Some(CoopType::BF16),
        _ => None,
    }
}

/// The GEMM kernel for operands of this type that are not prepacked.
///
/// # Panics
/// If `scope` is [`CoopScope::Prepacked`] or [`CoopScope::Wgsl`], because these kernels have other
/// parameter blocks.
pub fn kernel(ty: CoopType, scope: CoopScope) -> &'static TypedKernel<GemmCoopParams> {
    match (ty, scope) {
        (CoopType::F16, CoopScope::Subgroup) => &F16,
        (CoopType::BF16, CoopScope::Subgroup) => &BF16,
        (CoopType::F16, CoopScope::Workgroup) => &BLOCK_F16,
        (CoopType::BF16, CoopScope::Workgroup) => &BLOCK_BF16,
        (_, CoopScope::Prepacked | CoopScope::Wgsl) => {
            unreachable!("invariant: prepacked weights and WGSL have separate kernels")
        }
    }
}

/// Activation functions that the GEMM kernels can apply to results. Shaders identify an activation
/// by its index in this list plus 1.
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

/// Number of columns per panel of panel-packed activation rows; the same number as in
/// `gemm_laid_f16.comp`.
pub(crate) const PANEL: u32 = 32;

/// Properties of a GEMM that determine the specialization constants of its kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoopGemmOptions {
    /// True if the right operand B is stored as `[n, k]`, not as `[k, n]`.
    pub b_transposed: bool,
    /// True if the row stride `lda`, `offset_a`, the batch strides of A and `k` are multiples of 8
    /// in every run.
    pub aligned_a: bool,
    /// True if the row stride `ldb`, `offset_b`, the batch strides of B and `n` (or `k` if B is
    /// transposed) are multiples of 8 in every run.
    pub aligned_b: bool,
    /// Activation function applied to the results, one of [`ACTIVATIONS`].
    pub activation: Option<UnaryFn>,
    /// Whether the kernel adds a bias per column: `Some(true)` for an F32 bias, `Some(false)` for a
    /// bias of the operand type, `None` for no bias.
    pub bias_f32: Option<bool>,
    /// Whether the kernel adds a residual: `Some(true)` for an F32 residual, `Some(false)` for a
    /// residual of the operand type, `None` for no residual.
    pub residual_f32: Option<bool>,
    /// True if the result C is F32; otherwise C has the operand type.
    pub out_f32: bool,
    /// True if the row stride `ldc`, `offset_c`, the batch strides of C and `n` are multiples of 8
    /// in every run.
    pub aligned_c: bool,
    /// True if the GEMM may have several batch entries or split-K parts.
    pub planes: bool,
    /// True if the device's native F16 conversions round correctly
    /// ([`DeviceCaps::natives`](crate::DeviceCaps::natives)).
    pub native_f16_conversions: bool,
    /// Minimum number of rows (M) in any run.
    pub min_rows: usize,
    /// The row stride `lda` of A if it is the same in every run, otherwise 0.
    pub known_lda: u32,
    /// True if the left operand A is panel-packed, `[k / 32, m, 32]`. Only the kernel for prepacked
    /// weights supports this layout.
    pub a_panels: bool,
}

impl CoopGemmOptions {
    /// True if the kernel for prepacked weights supports these options: aligned 16-bit operands and
    /// result, no residual, one batch entry.
    pub fn can_prepack(&self) -> bool {
        let narrow = !self.out_f32 && self.bias_f32 != Some(true);
        self.aligned() && narrow && self.residual_f32.is_none() && !self.planes
    }

    /// True if A, B and C are aligned to 8 elements, as [`CoopScope::Workgroup`] requires.
    pub fn aligned(&self) -> bool {
        self.aligned_a && self.aligned_b && self.aligned_c
    }
}

/// Values of the GEMM kernel's specialization constants.
///
/// # Panics
/// If the activation is not one of [`ACTIVATIONS`], which is a bug of a lowering.
pub fn constants(tiling: &CoopGemmTiling, options: &CoopGemmOptions) -> Vec<u32> {
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
        CoopScope::Subgroup => {
            let [fm, fn_, fk] = tiling.fragment;
            let [wm, wn] = tiling.subgroup_tile;
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
            all.push(u32::from(options.native_f16_conversions));
            all
        }
        CoopScope::Workgroup => {
            let mut all = vec![tiling.threads(), bm, bn, bk, b_transposed];
            all.extend(epilogue);
            all.push(tiling.band);
            all
        }
        CoopScope::Wgsl => {
            unreachable!("invariant: the lowering of WGSL kernels has their constants")
        }
        CoopScope::Prepacked => {
            let [activation, has_bias, ..] = epilogue;
            let [rows, _] = tiling.subgroup_tile;
            let sizes = [tiling.threads(), bm, bn, rows];
            let full = u32::from(options.min_rows >= rows as usize);
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
