//! Tiled large-M GEMM: on cooperative matrices, or with loads of vectors or of single elements.

use tercet_ir::{CompileError, DType, VariantFamily};

use super::coop::CoopMatMul;
use super::gemm_dequant::{self, DequantGemm};
use super::gemm_vectors;
use super::kernels::{GEMM_ACTIVATED, GEMM_CODED, GEMM_PACKED, GEMM_PLAIN};
use super::portable::{self, EpilogueKernels, MatMulArgs};
use super::product::MatMulProblem;
use super::reduced_precision::{self, ReducedPrecisionMatMul};
use super::split_f16::SplitF16Gemm;
use super::wgsl_matrices::{WGSL_MATRICES, WgslMatMul};
use crate::device::DeviceModel;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use crate::lowerings::dequant::PackedWeights;
use crate::lowerings::tiles::WorkgroupTile;
use crate::tuning::TuningKey;
use crate::variant::{self, KernelVariant, needs};

static GEMM: EpilogueKernels = EpilogueKernels {
    plain: &GEMM_PLAIN,
    activated: &GEMM_ACTIVATED,
};

/// Result tile of a workgroup of `side` x `side` threads. Each thread computes 8 x 8 results if
/// `wide`, otherwise 4 x 4.
#[derive(Clone, Copy)]
pub(super) struct GemmWorkgroupTile {
    side: u32,
    wide: bool,
}

impl GemmWorkgroupTile {
    pub(super) fn len(self) -> u32 {
        self.side * 4 * (1 + u32::from(self.wide))
    }

    pub(super) fn size(self, device: &DeviceModel) -> WorkgroupTile {
        let [wide, large, small] = device.rates.tiles.plain;
        WorkgroupTile {
            rows: self.len(),
            columns: self.len(),
            invocations: self.side * self.side,
            rate: match (self.wide, self.side) {
                (true, _) => wide,
                (false, 16) => large,
                (false, _) => small,
            },
        }
    }

    /// The largest tile for which every compute unit still gets a workgroup.
    fn new(e: &LoweringCtx<'_>, p: &MatMulProblem) -> Result<GemmWorkgroupTile, CompileError> {
        const SIZES: [GemmWorkgroupTile; 3] = [
            GemmWorkgroupTile {
                side: 16,
                wide: true,
            },
            GemmWorkgroupTile {
                side: 16,
                wide: false,
            },
            GemmWorkgroupTile {
                side: 8,
                wide: false,
            },
        ];
        let (m, n) = (e.bound(&p.m)?, e.bound(&p.n)?);
        let mut batch = 1usize;
        for dim in &p.batch {
            batch = batch.saturating_mul(e.bound(dim)?);
        }
        let units = e.caps.units();
        let fits = |t: &GemmWorkgroupTile| {
            let len = t.len() as usize;
            let tiles = m.div_ceil(len).saturating_mul(n.div_ceil(len));
            m.min(n) > len / 2 && tiles.saturating_mul(batch) >= units
        };
        Ok(SIZES.into_iter().find(fits).unwrap_or(SIZES[2]))
    }
}

/// True if split-F16 is faster for a large-M float GEMM than the kernels without cooperative
/// matrices.
pub(super) fn are_pairs(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    sums: &SlotView,
) -> Result<bool, CompileError> {
    let Some(pairs) = SplitF16Gemm::new(e, p, sums)? else {
        return Ok(false);
    };
    Ok(pairs.seconds < gemm_vectors::seconds(e, p)?)
}

/// Emits the tiled kernels of a large-M float GEMM.
pub(super) fn floats(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    given: &MatMulArgs,
    sums: &SlotView,
) -> Result<(), CompileError> {
    if let Some(to) = reduced_precision::dtype_of(e, p)
        && to == p.b.dtype
        && (e.may_use(LARGE_M, MATRICES) || e.may_use(LARGE_M, WGSL_MATRICES))
    {
        let rounding = ReducedPrecisionMatMul::new(e, p, to)?;
        let product = &rounding.product;
        // Only the kernels on cooperative matrices take 16-bit rows with an F32 residual.
        if let Some(matrices) = matrices_for(e, product, sums)? {
            rounding.emit(e);
            let problem = LargeMGemm {
                product,
                args: &portable::matmul_args(e, product, sums)?,
                sums,
                tile: GemmWorkgroupTile::new(e, product)?,
            };
            return variant::run(e, LARGE_M, &large_m_variants(), Some(matrices), &problem);
        }
    }
    let problem = LargeMGemm {
        product: p,
        args: given,
        sums,
        tile: GemmWorkgroupTile::new(e, p)?,
    };
    let mut rows = e.bound(&p.m)?;
    for dim in &p.batch {
        rows = rows.saturating_mul(e.bound(dim)?);
    }
    let sizes = [rows, e.bound(&p.n)?, e.bound(&p.k)?];
    let tuning = &e.caps.device.tuning;
    let table = large_m_variants();
    let named = tuning.find(|| TuningKey::large_m(p.a.dtype, p.weights_of(None), sizes));
    let named = named.filter(|name| table.iter().any(|v| v.name == *name));
    // Autotuning measures the tilings of the cooperative-matrix variant separately from the
    // variants.
    let measured = match (named, CoopMatMul::new(e, p, sums)?) {
        (None, Some(coop)) if coop.is_measured(e) => Some(MATRICES),
        (None, None) => {
            let wgsl = WgslMatMul::new(e, p, None, sums)?;
            wgsl.filter(|wgsl| wgsl.is_measured(e))
                .map(|_| WGSL_MATRICES)
        }
        (named, _) => named,
    };
    variant::run(e, LARGE_M, &table, measured, &problem)
}

/// The variant on cooperative matrices that supports a matmul of 16-bit rows, if the switches allow
/// one.
fn matrices_for(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    y: &SlotView,
) -> Result<Option<&'static str>, CompileError> {
    if e.may_use(LARGE_M, MATRICES) && CoopMatMul::new(e, p, y)?.is_some() {
        return Ok(Some(MATRICES));
    }
    let wgsl = e.may_use(LARGE_M, WGSL_MATRICES) && WgslMatMul::new(e, p, None, y)?.is_some();
    Ok(wgsl.then_some(WGSL_MATRICES))
}

/// Name of the variant with cooperative matrices in SPIR-V.
const MATRICES: &str = "matrices";

/// A large-M float GEMM.
struct LargeMGemm<'p> {
    product: &'p MatMulProblem,
    args: &'p MatMulArgs,
    sums: &'p SlotView,
    /// Workgroup tile of the kernels that load single elements.
    tile: GemmWorkgroupTile,
}

/// Family of the variants of large-M float GEMMs.
pub(super) const LARGE_M: &str = "many";

/// The family with the names of its variants.
pub(super) fn family() -> VariantFamily {
    variant::family(LARGE_M, &[&large_m_variants()])
}

/// Variants of large-M float GEMMs.
fn large_m_variants<'p>() -> [KernelVariant<LargeMGemm<'p>>; 5] {
    [
        KernelVariant {
            name: MATRICES,
            supports: |e, m| {
                let coop = CoopMatMul::new(e, m.product, m.sums)?;
                let what = "16-bit cooperative matrices, contiguous rows, at most two batch axes";
                needs(coop.is_some(), what)
            },
            cost: |e, m| {
                Ok(CoopMatMul::new(e, m.product, m.sums)?.map_or(0.0, |coop| coop.seconds(e)))
            },
            emit: |e, m| match CoopMatMul::new(e, m.product, m.sums)? {
                Some(coop) => {
                    e.record_variant_detail(coop.name());
                    coop.dispatch(e, m.args, m.product)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        KernelVariant {
            name: WGSL_MATRICES,
            supports: |e, m| {
                let wgsl = WgslMatMul::new(e, m.product, None, m.sums)?;
                let what = "cooperative matrices in WGSL of the rows' type, rows of whole vectors";
                needs(wgsl.is_some(), what)
            },
            cost: |e, m| {
                let wgsl = WgslMatMul::new(e, m.product, None, m.sums)?;
                Ok(wgsl.map_or(0.0, |wgsl| wgsl.seconds))
            },
            emit: |e, m| match WgslMatMul::new(e, m.product, None, m.sums)? {
                Some(wgsl) => {
                    e.record_variant_detail(wgsl.name());
                    wgsl.dispatch(e, m.product, m.args)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        KernelVariant {
            name: "pairs",
            supports: |e, m| {
                let pairs = SplitF16Gemm::new(e, m.product, m.sums)?;
                let what = "F32 operands, F16 cooperative matrices, contiguous rows or columns, at most one batch axis";
                needs(pairs.is_some(), what)
            },
            cost: |e, m| {
                Ok(SplitF16Gemm::new(e, m.product, m.sums)?.map_or(0.0, |pairs| pairs.seconds))
            },
            emit: |e, m| match SplitF16Gemm::new(e, m.product, m.sums)? {
                Some(pairs) => {
                    e.record_variant_detail(pairs.name());
                    pairs.dispatch(e, m.args, m.product)
                }
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        KernelVariant {
            name: "quads",
            supports: |_, m| {
                let takes = gemm_vectors::supports(m.product, m.sums);
                needs(
                    takes,
                    "operand rows of whole vectors, of one type or F32 with 16-bit weights",
                )
            },
            cost: |e, m| gemm_vectors::seconds(e, m.product),
            emit: |e, m| gemm_vectors::floats(e, m.product, m.args, m.sums),
        },
        KernelVariant {
            name: "tiles",
            supports: |e, m| {
                let splits = gemm_vectors::supports(m.product, m.sums)
                    && gemm_vectors::splits(e, m.product)?;
                needs(
                    !splits,
                    "more tiles than compute units, or rows without whole vectors",
                )
            },
            cost: |e, m| gemm_vectors::seconds_of(e, m.product, m.tile),
            emit: |e, m| {
                let (p, tile) = (m.product, m.tile);
                let own = [
                    code(p.b.dtype),
                    tile.side,
                    u32::from(tile.wide),
                    u32::from(p.a.own_axis.unit),
                    u32::from(p.b.own_axis.unit),
                ];
                m.args.tiles(e, GEMM.select(p.activation), &own, tile);
                Ok(())
            },
        },
    ]
}

/// Emits the tiled kernels of a large-M GEMM with quantized weights. Runs with many rows, which
/// `are_many` tells, use cooperative matrices if the device supports them.
pub(super) fn packed(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    given: &MatMulArgs,
    blocks: &PackedWeights,
    sums: &SlotView,
    are_many: bool,
) -> Result<(), CompileError> {
    let Some(half) = DequantGemm::new(e, p, blocks, sums)? else {
        let matrices = matrices_in_place(e, p, blocks, sums)?;
        return match (matrices, gemm_dequant::fits_f16(e, blocks)) {
            (Some(_), Some(fits)) if p.a.dtype == DType::F16 => {
                e.switch_on(fits, &[0], |e, is_fit| {
                    packed_in_place(e, p, given, blocks, sums, is_fit == 1)
                })
            }
            _ => packed_in_place(e, p, given, blocks, sums, false),
        };
    };
    let fits = half.fits_dtype(e, blocks);
    let least = [gemm_dequant::min_rows(e)];
    let bounds = if are_many { &least[..0] } else { &least };
    e.switch_on_size(&p.m, bounds, |e, arm| {
        e.switch_on(fits, &[0], |e, is_fit| {
            match (arm == bounds.len(), is_fit) {
                (true, 1) => half.dispatch(e, blocks, sums),
                (_, fit) => packed_in_place(e, p, given, blocks, sums, fit == 1),
            }
        })
    })
}

/// The GEMM on cooperative matrices in WGSL that dequantizes the weights while it stages them, if it
/// is faster than the other kernels and the switches allow it.
fn matrices_in_place(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    blocks: &PackedWeights,
    sums: &SlotView,
) -> Result<Option<WgslMatMul>, CompileError> {
    if !e.may_use(LARGE_M, WGSL_MATRICES) {
        return Ok(None);
    }
    let slowdown = e.caps.device.rates.matrices.wgsl_dequant;
    let other = gemm_vectors::packed_seconds(e, p)?;
    let matrices = WgslMatMul::new(e, p, Some(blocks), sums)?;
    Ok(matrices.filter(|m| slowdown * m.seconds < other))
}

/// Emits a tiled GEMM kernel that dequantizes the weights while it reads them. The kernel may
/// convert them to F16 if they fit.
fn packed_in_place(
    e: &mut LoweringCtx<'_>,
    p: &MatMulProblem,
    given: &MatMulArgs,
    blocks: &PackedWeights,
    sums: &SlotView,
    fits_f16: bool,
) -> Result<(), CompileError> {
    if (p.a.dtype == DType::F32 || fits_f16)
        && let Some(matrices) = matrices_in_place(e, p, blocks, sums)?
    {
        return matrices.emit_alone(e, LARGE_M, p, given);
    }
    if gemm_vectors::packed(e, p, given, blocks, sums)? {
        return Ok(());
    }
    // Each of the 64 threads dequantizes its share of the 64 x 16 weights of a k step.
    let tile = GemmWorkgroupTile {
        side: 8,
        wide: true,
    };
    let own = [tile.side, 1, u32::from(p.a.own_axis.unit)];
    let own: Vec<u32> = blocks.consts().into_iter().chain(own).collect();
    let kernel = match given.uses_codebook() {
        true => &GEMM_CODED,
        false => &GEMM_PACKED,
    };
    given.tiles(e, kernel, &own, tile);
    Ok(())
}
