//! The matrix product on cooperative matrices: kernels, constants, block, choice of tiles.
//!
//! The shader is `shaders/vulkan/include/gemm_coop.glsl`; its header says what the numbers mean.

use tercet_ir::scalar::UnaryFn;

use crate::caps::{Caps, CoopShape, CoopType};
use crate::kernel::{Access, Kernel};

crate::params! {
    /// The block of `gemm_coop.glsl`.
    pub struct GemmCoopParams {
        m: U32,
        n: U32,
        k: U32,
        batches: U32,
        batch_inner: U32,
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
        len_c: U32,
    }
}

const CONSTS: &[&str] = &[
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
];

/// A, B, bias, residual, C. Where there is no bias or residual, any slot stands in.
const ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
];

macro_rules! module {
    ($file:literal) => {
        include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../shaders/vulkan/spirv/",
            $file
        ))
    };
}

pub(crate) static F16: Kernel<GemmCoopParams> =
    Kernel::spirv("gemm_coop_f16", module!("gemm_coop_f16.spv"), ARGS, CONSTS);

pub(crate) static BF16: Kernel<GemmCoopParams> = Kernel::spirv(
    "gemm_coop_bf16",
    module!("gemm_coop_bf16.spv"),
    ARGS,
    CONSTS,
);

/// The kernel for factors of a type.
pub fn kernel(ty: CoopType) -> &'static Kernel<GemmCoopParams> {
    match ty {
        CoopType::F16 => &F16,
        CoopType::BF16 => &BF16,
    }
}

/// How a product is divided over workgroups, subgroups and fragments. Sizes are `m n k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tiling {
    /// Invocations of a subgroup.
    pub subgroup: u32,
    /// The device's matrices.
    pub fragment: [u32; 3],
    /// A workgroup's part of the result, and how much of `k` it stages.
    pub tile: [u32; 3],
    /// A subgroup's part of the tile.
    pub part: [u32; 2],
    /// Buffers of a staged step: 1 or 2.
    pub stages: u32,
}

impl Tiling {
    /// The tiling for an `m x n` result at most; none where the device has no cooperative matrices
    /// of this type, or not the shared memory.
    pub fn choose(caps: &Caps, ty: CoopType, m: usize, n: usize) -> Option<Tiling> {
        let subgroup = caps.subgroup?;
        if !caps.spirv {
            return None;
        }
        let shapes = caps.coop.iter().filter(|s| s.ty == ty);
        // The largest matrix does the most work per load.
        let shape = shapes
            .filter(|s| s.k % 8 == 0 && s.n % 4 == 0)
            .max_by_key(|s| s.m * s.n * s.k)?;
        let units = match caps.compute_units {
            0 => TYPICAL_UNITS,
            known => known as usize,
        };
        Tiling::candidates(*shape, subgroup)
            .into_iter()
            .filter(|t| t.fits(caps))
            .find(|t| t.groups(m, n) >= units || t.part[0] <= 2 * shape.m)
    }

    /// From large, which read operands least often, to small, which give more workgroups.
    fn candidates(shape: CoopShape, subgroup: u32) -> [Tiling; 2] {
        [4, 2].map(|fragments| {
            let part = [fragments * shape.m, fragments * shape.n];
            Tiling {
                subgroup,
                fragment: [shape.m, shape.n, shape.k],
                tile: [2 * part[0], (2 * part[1]).next_multiple_of(8), 2 * shape.k],
                part,
                stages: 1,
            }
        })
    }

    fn fits(&self, caps: &Caps) -> bool {
        self.shared_bytes(false).max(self.shared_bytes(true)) <= caps.workgroup_bytes
            && self.threads() <= caps.max_workgroup
    }

    /// Workgroups of an `m x n` result.
    pub fn groups(&self, m: usize, n: usize) -> usize {
        m.div_ceil(self.tile[0] as usize) * n.div_ceil(self.tile[1] as usize)
    }

    /// Invocations of a workgroup.
    pub fn threads(&self) -> u32 {
        self.subgroup * (self.tile[0] / self.part[0]) * (self.tile[1] / self.part[1])
    }

    /// Shared memory of a workgroup: staged steps, later fragments of sums. As in the shader.
    pub fn shared_bytes(&self, b_transposed: bool) -> u32 {
        let [bm, bn, bk] = self.tile;
        let (b_lines, b_cols) = if b_transposed { (bn, bk) } else { (bk, bn) };
        let stage = bm * (bk / 8 + 1) + b_lines * (b_cols / 8 + 1);
        let sums = self.threads() / self.subgroup * self.fragment[0] * (self.part[1] / 4 + 1);
        16 * (self.stages * stage).max(sums)
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
];

/// For devices that do not say how many workgroups run side by side.
const TYPICAL_UNITS: usize = 32;

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
}

/// The values of the kernel's constants.
///
/// # Panics
/// When the activation is not one of [`ACTIVATIONS`]: a bug of a family.
pub fn constants(tiling: &Tiling, options: &Options) -> [u32; CONSTS.len()] {
    let [fm, fn_, fk] = tiling.fragment;
    let [bm, bn, bk] = tiling.tile;
    let [wm, wn] = tiling.part;
    let activation = options.activation.map_or(0, |f| {
        let at = ACTIVATIONS.iter().position(|known| *known == f);
        1 + at.expect("invariant: the kernel has the activation")
    });
    [
        tiling.threads(),
        tiling.subgroup,
        fm,
        fn_,
        fk,
        bm,
        bn,
        bk,
        wm,
        wn,
        tiling.stages,
        u32::from(options.b_transposed),
        u32::from(options.aligned_a),
        u32::from(options.aligned_b),
        activation as u32,
        u32::from(options.bias_f32.is_some()),
        u32::from(options.residual_f32.is_some()),
        u32::from(options.out_f32),
        u32::from(options.bias_f32 == Some(true)),
        u32::from(options.residual_f32 == Some(true)),
    ]
}

#[cfg(test)]
pub(in crate::families) mod tests;
