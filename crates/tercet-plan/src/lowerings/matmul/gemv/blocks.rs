//! Variants of GEMV and skinny GEMM (up to eight rows) with quantized weights. Weights are read in
//! 16-byte pieces if they are aligned. Activation rows are staged in shared memory; a single row
//! may instead be held in registers (`gemv_packed.rs`).

use tercet_ir::{CompileError, Scheme};

use super::{
    ColumnThreadGroups, MultiRowGemv, ROWS, fused_op_consts, grid, row_is_quads, rows_of, teams_of,
};
use crate::caps::MAX_SKINNY_ROWS;
use crate::emit::LoweringCtx;
use crate::lowerings::dequant::{PackedWeights, piece_consts};
use crate::lowerings::matmul::gemv_packed::RegisterGemv;
use crate::lowerings::matmul::kernels::{
    CODED_ACTIVATED, CODED_PLAIN, DOTS_ACTIVATED, DOTS_ACTIVATED_CHAINED, DOTS_PLAIN,
    DOTS_PLAIN_CHAINED, HELD_ACTIVATED, HELD_ACTIVATED_CHAINED, HELD_PLAIN, HELD_PLAIN_CHAINED,
    KEYED_CODED, KEYED_QUADS, KEYED_WORDS, PACKED_QUADS_ACTIVATED, PACKED_QUADS_PLAIN,
    PACKED_WORDS_ACTIVATED, PACKED_WORDS_PLAIN,
};
use crate::lowerings::matmul::portable::{EpilogueKernels, MatMulArgs};
use crate::lowerings::matmul::product::MatMulProblem;
use crate::variant::{self, KernelVariant, VariantRejection, needs};

static PACKED_WORDS: EpilogueKernels = EpilogueKernels {
    plain: &PACKED_WORDS_PLAIN,
    activated: &PACKED_WORDS_ACTIVATED,
};
static CODED: EpilogueKernels = EpilogueKernels {
    plain: &CODED_PLAIN,
    activated: &CODED_ACTIVATED,
};
static PACKED_QUADS: EpilogueKernels = EpilogueKernels {
    plain: &PACKED_QUADS_PLAIN,
    activated: &PACKED_QUADS_ACTIVATED,
};
static HELD: EpilogueKernels = EpilogueKernels {
    plain: &HELD_PLAIN,
    activated: &HELD_ACTIVATED,
};
static DOTS: EpilogueKernels = EpilogueKernels {
    plain: &DOTS_PLAIN,
    activated: &DOTS_ACTIVATED,
};
static HELD_CHAINED: EpilogueKernels = EpilogueKernels {
    plain: &HELD_PLAIN_CHAINED,
    activated: &HELD_ACTIVATED_CHAINED,
};
static DOTS_CHAINED: EpilogueKernels = EpilogueKernels {
    plain: &DOTS_PLAIN_CHAINED,
    activated: &DOTS_ACTIVATED_CHAINED,
};

/// Configuration of a kernel that stages activation rows in shared memory.
struct SharedMemRows {
    rows: u32,
    teams: ColumnThreadGroups,
    pieces: [u32; 2],
}

impl SharedMemRows {
    fn new(
        e: &LoweringCtx<'_>,
        r: &MultiRowGemv<'_>,
        blocks: &PackedWeights,
    ) -> Result<SharedMemRows, CompileError> {
        let p = r.product;
        let rows = rows_of(e, p, r.max_rows)?;
        let pieces = piece_consts(blocks.scheme);
        let extra = u32::from(rows == 1 && blocks.has_min());
        // If there are enough columns for all compute units, more thread groups per workgroup share
        // the staged activation rows. A workgroup must not have more results, of all rows together,
        // than threads, because each thread stores one word.
        let many = e.bound(&p.columns())? >= 64 * e.caps.units();
        let units = match rows {
            1 if many => 16,
            4 if many => 32,
            _ => teams_of(rows),
        };
        let teams = ColumnThreadGroups::new(e, p, [rows, units], [4 * pieces[0], extra], 1)?;
        Ok(SharedMemRows {
            rows,
            teams,
            pieces,
        })
    }

    fn emit(
        e: &mut LoweringCtx<'_>,
        r: &MultiRowGemv<'_>,
        kernels: &EpilogueKernels,
    ) -> Result<(), CompileError> {
        let (p, blocks) = (r.product, r.packed());
        let SharedMemRows {
            rows,
            teams,
            pieces,
        } = SharedMemRows::new(e, r, blocks)?;
        let mut own = blocks.consts().to_vec();
        if !r.args.uses_codebook() {
            own.extend(pieces);
        }
        own.extend([rows, teams.units, teams.columns_per_group, teams.steps]);
        own.extend(fused_op_consts(p));
        let grid = grid(e, r, teams.results(p));
        r.args
            .dispatch_rows(e, kernels.select(p.function()), &own, grid);
        Ok(())
    }
}

impl MultiRowGemv<'_> {
    fn packed(&self) -> &PackedWeights {
        let blocks = self.blocks;
        blocks.unwrap_or_else(|| unreachable!("invariant: weights of this table are quantized"))
    }

    /// Rejects a kernel variant unless the weights can be bound as an array of vectors.
    fn has_quads(&self, e: &LoweringCtx<'_>) -> Result<(), VariantRejection> {
        let (p, blocks) = (self.product, self.packed());
        let some = e.bound(&p.k)? > 0 && e.bound(&p.n)? > 0;
        let whole = blocks.is_aligned() && p.b.is_multiple(16, p.b.own_axis);
        needs(!self.args.uses_codebook(), "weights without a codebook")?;
        needs(
            some && whole && p.is_apart(),
            "contiguous weights along k in whole vectors",
        )
    }

    fn register_gemv(
        &self,
        e: &LoweringCtx<'_>,
        as_: RegisterFormat,
    ) -> Result<RegisterGemv, VariantRejection> {
        let p = self.product;
        needs(rows_of(e, p, self.max_rows)? == 1, "one row")?;
        self.has_quads(e)?;
        needs(row_is_quads(p), "an activation row of whole vectors")?;
        let scheme = self.packed().scheme;
        let [groups, _] = piece_consts(scheme);
        let narrow = matches!(scheme, Scheme::Q4_0 | Scheme::Q4_1 | Scheme::Q4K);
        let held = match as_ {
            RegisterFormat::Integers => RegisterGemv::integers(e, p, groups, narrow)?,
            RegisterFormat::Floats => RegisterGemv::floats(e, p)?,
        };
        let what = match as_ {
            RegisterFormat::Integers => {
                "int8 dot products, 4 to 6-bit weights and shared memory for the row"
            }
            RegisterFormat::Floats => "a row of known length that fits into shared memory",
        };
        held.ok_or(VariantRejection::Needs(what.into()))
    }

    fn emit_register(
        &self,
        e: &mut LoweringCtx<'_>,
        as_: RegisterFormat,
        kernels: [&EpilogueKernels; 2],
    ) -> Result<(), CompileError> {
        let (p, blocks) = (self.product, self.packed());
        let held = match self.register_gemv(e, as_) {
            Ok(held) => held,
            Err(VariantRejection::Error(error)) => return Err(error),
            Err(VariantRejection::Needs(_)) => unreachable!("invariant: the variant supports it"),
        };
        let mut own = blocks.consts().to_vec();
        own.extend(piece_consts(blocks.scheme));
        own.extend(held.consts());
        own.extend(fused_op_consts(p));
        let columns = e.num(&p.columns());
        let groups = e.tape().ceil_div(columns, held.results(p));
        let grid = e.flat_grid(groups);
        self.args
            .dispatch_dependent(e, kernels.map(|k| k.select(p.function())), &own, grid);
        Ok(())
    }
}

/// Format in which a thread holds its part of the activation row in registers.
#[derive(Clone, Copy)]
enum RegisterFormat {
    Integers,
    Floats,
}

/// Variants with quantized weights.
pub(super) fn packed_variants<'p>() -> [KernelVariant<MultiRowGemv<'p>>; 5] {
    [
        KernelVariant {
            name: "row_held_dots",
            supports: |e, r| r.register_gemv(e, RegisterFormat::Integers).map(drop),
            // Converting the activation row to int8 limbs takes about 1 us, which pays off if each
            // thread group computes several columns.
            cost: |e, r| {
                let worth = match r.register_gemv(e, RegisterFormat::Integers) {
                    Ok(held) => held.teams_have_several() || e.caps.device.units.is_none(),
                    Err(_) => false,
                };
                let rates = &e.caps.device.rates.rows;
                let times = if worth {
                    rates.register_int_dot
                } else {
                    rates.register_float * rates.few_columns
                };
                r.seconds(e, times)
            },
            emit: |e, r| r.emit_register(e, RegisterFormat::Integers, [&DOTS, &DOTS_CHAINED]),
        },
        KernelVariant {
            name: "row_held",
            supports: |e, r| r.register_gemv(e, RegisterFormat::Floats).map(drop),
            cost: |e, r| r.seconds(e, e.caps.device.rates.rows.register_float),
            emit: |e, r| r.emit_register(e, RegisterFormat::Floats, [&HELD, &HELD_CHAINED]),
        },
        KernelVariant {
            name: "rows_quads",
            supports: |e, r| r.has_quads(e),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.wide)),
            emit: |e, r| SharedMemRows::emit(e, r, &PACKED_QUADS),
        },
        KernelVariant {
            name: "rows_words",
            supports: |_, r| needs(!r.args.uses_codebook(), "weights without a codebook"),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.along)),
            emit: |e, r| SharedMemRows::emit(e, r, &PACKED_WORDS),
        },
        KernelVariant {
            name: "rows_coded",
            supports: |_, r| needs(r.args.uses_codebook(), "weights with a codebook"),
            cost: |e, r| r.seconds(e, r.times(e, |rates| rates.across)),
            emit: |e, r| SharedMemRows::emit(e, r, &CODED),
        },
    ]
}

/// Emits expert GEMV with quantized weights: each row times its own matrix.
pub(in crate::lowerings::matmul) fn keyed(
    e: &mut LoweringCtx<'_>,
    product: &MatMulProblem,
    given: &MatMulArgs,
    blocks: &PackedWeights,
) -> Result<(), CompileError> {
    let rows = MultiRowGemv {
        product,
        args: given,
        blocks: Some(blocks),
        max_rows: 1,
        in_blocks: false,
    };
    let kernel = match rows.has_quads(e) {
        Ok(()) => &KEYED_QUADS,
        Err(VariantRejection::Error(error)) => return Err(error),
        Err(VariantRejection::Needs(_)) if given.uses_codebook() => &KEYED_CODED,
        Err(VariantRejection::Needs(_)) => &KEYED_WORDS,
    };
    SharedMemRows::emit(
        e,
        &rows,
        &EpilogueKernels {
            plain: kernel,
            activated: kernel,
        },
    )
}

/// Emits GEMV or skinny GEMM with quantized weights, for at most `most` activation rows per run: 1,
/// 8, or several blocks of 8.
pub(in crate::lowerings::matmul) fn packed(
    e: &mut LoweringCtx<'_>,
    product: &MatMulProblem,
    given: &MatMulArgs,
    blocks: &PackedWeights,
    most: u32,
) -> Result<(), CompileError> {
    let rows = MultiRowGemv {
        product,
        args: given,
        blocks: Some(blocks),
        max_rows: most.min(MAX_SKINNY_ROWS as u32),
        in_blocks: most > MAX_SKINNY_ROWS as u32,
    };
    let table: Vec<KernelVariant<MultiRowGemv<'_>>> = packed_variants().into();
    let measured = rows.tuned_variant(e)?;
    variant::run(e, ROWS, &table, measured, &rows)
}
