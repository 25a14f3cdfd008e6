//! Lowering of `Dequantize`, whose F32 results match the reference implementation bit for bit, and
//! code shared by all kernels that dequantize blocks.

use tercet_ir::layout::{LayoutTerm, numel};
use tercet_ir::quant::QuantCodebook;
use tercet_ir::{CompileError, DType, Dim, Node, Op, OpKind, Scheme, Tensor, Value};

use super::{Lowering, code, portable};
use crate::emit::{LoweringCtx, SlotView};
use crate::scalar::PRELUDE;
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, TypedKernel, kernel_names as names};

/// Lowering of `Dequantize`.
pub(crate) static DEQUANTIZE: Lowering = Lowering {
    name: "dequantize",
    ops: &[OpKind::Dequantize],
    kernels: &[
        &UNPACK.def,
        &WIDEN.def,
        &UNPACK_HALF_WORDS.def,
        &UNPACK_HALF_QUADS.def,
        &UNPACK_CODED.def,
        &UNPACK_HALF_CODED.def,
    ],
    supports: super::always,
    lower,
};

crate::params! {
    /// Parameter block of `dequant/unpack.wgsl`.
    pub struct UnpackParams {
        count: U32,
        offset: U32,
        row_len: U32,
        row_stride: U32,
    }
    /// Parameter block of `dequant/unpack_half.wgsl`.
    pub struct UnpackHalfParams {
        pieces: U32,
        offset: U32,
        row_len: U32,
        row_stride: U32,
    }
    /// Parameter block of `dequant/widen.wgsl`.
    pub struct WidenParams {
        count: U32,
    }
}

/// WGSL decoder of blocks in integer formats. A kernel that includes this decoder must define
/// `packed_word`, which loads a 32-bit word of the blocks.
pub(super) const BLOCKS: &str = concat!(
    portable!("dequant/fields.wgsl"),
    portable!("dequant/blocks.wgsl")
);
/// WGSL decoder of blocks in codebook and float formats; it replaces [`BLOCKS`] for these formats.
/// A kernel that includes this decoder takes the codebook as its last argument.
pub(super) const CODED: &str = concat!(
    portable!("dequant/fields.wgsl"),
    portable!("dequant/coded.wgsl")
);
/// Decoder of several weights at once for codebook and float formats; must follow [`CODED`].
pub(super) const PIECES_CODED: &str = portable!("dequant/pieces_coded.wgsl");

/// WGSL decoder of several weights at once. In the kernel source, this fragment must follow
/// [`BLOCKS`] and either [`WORDS`] or [`QUADS`], which declare the binding of the blocks.
pub(super) const PIECES: &str = portable!("dequant/pieces.wgsl");
pub(super) const WORDS: &str = portable!("dequant/packed_words.wgsl");
/// Declares the binding of blocks as 16-byte vectors; block sizes and offsets must be multiples of
/// 16 bytes.
pub(super) const QUADS: &str = portable!("dequant/packed_quads.wgsl");

static UNPACK: TypedKernel<UnpackParams> = TypedKernel::wgsl(
    "dequantize",
    &[PRELUDE, BLOCKS, portable!("dequant/unpack.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &BLOCK_CONSTS,
);

static UNPACK_CODED: TypedKernel<UnpackParams> = TypedKernel::wgsl(
    "dequantize_coded",
    &[
        PRELUDE,
        CODED,
        portable!("dequant/grid_3.wgsl"),
        portable!("dequant/unpack.wgsl"),
    ],
    &[ArgAccess::Read, ArgAccess::Write, ArgAccess::Read],
    &BLOCK_CONSTS,
);

static UNPACK_HALF_CODED: TypedKernel<UnpackHalfParams> = TypedKernel::wgsl(
    "dequantize_half_coded",
    &[
        PRELUDE,
        CODED,
        WORDS,
        PIECES_CODED,
        portable!("dequant/grid_4.wgsl"),
        portable!("dequant/unpack_half.wgsl"),
    ],
    &[
        ArgAccess::Read,
        ArgAccess::Read,
        ArgAccess::Write,
        ArgAccess::Read,
    ],
    names![&BLOCK_CONSTS, &["Y_TYPE"]],
);

/// Defines a kernel that dequantizes to 16-bit floats; `$access` is the WGSL fragment that binds
/// and reads the blocks.
macro_rules! unpack_half {
    ($name:ident $text:literal, $access:expr) => {
        static $name: TypedKernel<UnpackHalfParams> = TypedKernel::wgsl(
            $text,
            &[
                PRELUDE,
                BLOCKS,
                $access,
                PIECES,
                portable!("dequant/unpack_half.wgsl"),
            ],
            &[ArgAccess::Read, ArgAccess::Read, ArgAccess::Write],
            names![&BLOCK_CONSTS, &["GROUPS", "SECOND", "Y_TYPE"]],
        );
    };
}

unpack_half!(UNPACK_HALF_WORDS "dequantize_half", WORDS);
unpack_half!(UNPACK_HALF_QUADS "dequantize_half_wide", QUADS);

/// Emits the dequantization of blocks to 16-bit floats in the dense slot `y`. The dispatch waits
/// for the writer of slot `order`, which delays it to the scheduled position.
pub(super) fn unpack_half(
    e: &mut LoweringCtx<'_>,
    blocks: &PackedWeights,
    order: SlotId,
    y: &SlotView,
    params: &UnpackHalfParams,
) -> Result<(), CompileError> {
    let grid = e.grid_of(params.pieces, 128);
    if let Some(table) = blocks.grid(e)? {
        let mut consts = blocks.consts().to_vec();
        consts.push(code(y.dtype));
        let args = [order, blocks.view.slot, y.slot, table];
        e.dispatch(&UNPACK_HALF_CODED, &consts, &args, params, grid);
        return Ok(());
    }
    let lines = blocks.view.layout.offset().iter();
    let mut lines = lines.chain(&blocks.view.layout.strides()[..1]);
    let whole = blocks.is_aligned() && lines.all(|t| t.power_of_two() >= 16);
    let kernel = match whole && order != blocks.view.slot {
        true => &UNPACK_HALF_QUADS,
        false => &UNPACK_HALF_WORDS,
    };
    let mut consts = blocks.consts().to_vec();
    consts.extend(piece_consts(blocks.scheme));
    consts.push(code(y.dtype));
    let args = [order, blocks.view.slot, y.slot];
    e.dispatch(kernel, &consts, &args, params, grid);
    Ok(())
}

static WIDEN: TypedKernel<WidenParams> = TypedKernel::wgsl(
    "dequantize_floats",
    &[PRELUDE, portable!("dequant/widen.wgsl")],
    &[ArgAccess::Read, ArgAccess::Write],
    &["X_TYPE"],
);

/// Names of the specialization constants that `dequant/fields.wgsl` declares.
pub(super) const BLOCK_CONSTS: [&str; 8] = [
    "SCHEME",
    "BLOCK_LEN",
    "HAS_MIN",
    "PLANES",
    "LOW",
    "HIGH",
    "SCALES",
    "HALVES",
];

/// Lowest `SCHEME` number that `dequant/coded.wgsl` decodes; smaller numbers are integer formats.
const FIRST_CODED: u32 = 16;

/// Values of the shader constants `SCHEME` and `HAS_MIN` for a quantization scheme.
fn code_of(scheme: Scheme) -> (u32, bool) {
    match scheme {
        Scheme::F16 | Scheme::BF16 => unreachable!("invariant: {scheme:?} is not quantized"),
        Scheme::Q4_0 => (0, false),
        Scheme::Q4_1 => (1, true),
        Scheme::Q5_0 => (2, false),
        Scheme::Q5_1 => (3, true),
        Scheme::Q8_0 => (4, false),
        Scheme::Q2K => (5, true),
        Scheme::Q3K => (6, false),
        Scheme::Q4K => (7, true),
        Scheme::Q5K => (8, true),
        Scheme::Q6K => (9, false),
        Scheme::Int8 => (10, false),
        Scheme::Int8Asym => (11, true),
        Scheme::Int4 => (12, false),
        Scheme::Int4Asym => (13, true),
        Scheme::Tq2_0 => (14, false),
        Scheme::Mxfp4 => (FIRST_CODED, false),
        Scheme::Nvfp4 => (17, false),
        Scheme::Fp8E4m3 => (18, false),
        Scheme::Fp8E5m2 => (19, false),
        Scheme::Tq1_0 => (20, false),
        Scheme::Iq4Nl => (21, false),
        Scheme::Iq4Xs => (22, false),
        Scheme::Iq2Xxs => (23, false),
        Scheme::Iq2Xs => (24, false),
        Scheme::Iq2S => (25, false),
        Scheme::Iq3Xxs => (26, false),
        Scheme::Iq3S => (27, false),
        Scheme::Iq1S => (28, false),
        Scheme::Iq1M => (29, false),
    }
}

/// Quantized weights in the form that kernels read: rows of blocks with a constant row stride.
#[derive(Clone, Debug)]
pub(super) struct PackedWeights {
    /// View of the weights as bytes, `[rows, bytes per row]`. The view starts at an even byte if
    /// blocks have an even size.
    pub(super) view: SlotView,
    pub(super) scheme: Scheme,
    /// If the rows are stored as structure of arrays: the signature indices of the parameters that
    /// they come from.
    pub(super) params: Option<Vec<u32>>,
}

/// Collects the signature indices of the parameters that a value in structure-of-arrays layout
/// comes from.
fn params_of(e: &LoweringCtx<'_>, v: Value, found: &mut Vec<u32>) {
    let node = e.graph.node(v.node);
    match &node.op {
        Op::Param(param) => {
            let at = (e.facts.signature.params.iter()).position(|p| p.name == param.name);
            found.extend(at.map(|at| at as u32));
        }
        Op::Concat(_) => node.inputs.iter().for_each(|v| params_of(e, *v, found)),
        // Other nodes are `Gather` or `Slice`, which select rows of their first operand.
        _ => params_of(e, node.inputs[0], found),
    }
}

impl PackedWeights {
    /// The blocks of a quantized value; makes a dense copy if the rows of its view do not have a
    /// constant stride.
    pub(super) fn new(
        e: &mut LoweringCtx<'_>,
        v: Value,
        scheme: Scheme,
    ) -> Result<PackedWeights, CompileError> {
        let view = e.view(v);
        let rows = |view: &SlotView| -> Option<SlotView> {
            let (last, lead) = view.layout.shape().split_last()?;
            let layout = view.layout.reshape(&[numel(lead)?, last.clone()])?;
            let is_odd = scheme.block_bytes() % 2 == 1;
            let even = |t: &LayoutTerm| is_odd || t.power_of_two() > 1;
            let are_even = layout
                .offset()
                .iter()
                .chain(&layout.strides()[..1])
                .all(even);
            let dense = layout.strides()[1].factor() == 1;
            let is_empty = *last == Dim::Known(0);
            (is_empty || (are_even && dense)).then(|| SlotView {
                layout,
                ..view.clone()
            })
        };
        let view = match rows(&view) {
            Some(view) => view,
            None => {
                let dense = e.dense(&view)?;
                rows(&dense).ok_or(CompileError::OutOfMemory {
                    what: "rows of quantized weights at the symbols' bounds",
                    bytes: u64::MAX,
                })?
            }
        };
        let params = e.facts.soa_layouts.contains_key(&v).then(|| {
            let mut params = Vec::new();
            params_of(e, v, &mut params);
            params
        });
        Ok(PackedWeights {
            view,
            scheme,
            params,
        })
    }

    fn in_planes(&self) -> bool {
        self.params.is_some()
    }

    /// Values of the specialization constants [`BLOCK_CONSTS`] for these weights.
    pub(super) fn consts(&self) -> [u32; 8] {
        let (code, has_min) = code_of(self.scheme);
        let [low, high, scales, halves] = tercet_program::places(self.scheme, self.in_planes());
        [
            code,
            self.scheme.block_len() as u32,
            u32::from(has_min),
            u32::from(self.in_planes()),
            low,
            high,
            scales,
            halves,
        ]
    }

    /// Slot of the codebook, which kernels with the decoder [`CODED`] take as their last argument;
    /// `None` for formats that [`BLOCKS`] decodes.
    pub(super) fn grid(&self, e: &mut LoweringCtx<'_>) -> Result<Option<SlotId>, CompileError> {
        if !self.uses_codebook() {
            return Ok(None);
        }
        let words =
            QuantCodebook::for_scheme(self.scheme).map_or_else(|| vec![0], QuantCodebook::words);
        let table = Tensor::from_slice(&[words.len()], &words);
        let table = table.unwrap_or_else(|_| unreachable!("invariant: as many words as its shape"));
        Ok(Some(e.constant(table)?.slot))
    }

    /// True if kernels need a codebook to dequantize the weights.
    pub(super) fn uses_codebook(&self) -> bool {
        code_of(self.scheme).0 >= FIRST_CODED
    }

    /// Symbolic value: 1 if F16 represents these weights accurately, else 0.
    pub(super) fn fit_f16(&self, e: &mut LoweringCtx<'_>) -> SymInt {
        let params = self.params.iter().flatten();
        params.fold(SymInt::ONE, |all, at| {
            let fits = e.tape().fits_f16(*at);
            e.tape().mul(all, fits)
        })
    }

    /// True if the blocks of this format store minima in addition to scales.
    pub(super) fn has_min(&self) -> bool {
        code_of(self.scheme).1
    }

    /// True if kernels can read the blocks as 16-byte vectors that are aligned within their row.
    pub(super) fn is_aligned(&self) -> bool {
        self.in_planes() || self.scheme.block_bytes().is_multiple_of(16)
    }
}

/// Values of the constants `GROUPS` and `SECOND` of `dequant/pieces.wgsl`, which describe the
/// weights that one call decodes (a piece).
pub(super) fn piece_consts(scheme: Scheme) -> [u32; 2] {
    match scheme {
        Scheme::F16 | Scheme::BF16 => unreachable!("invariant: {scheme:?} is not quantized"),
        // For these formats, one call decodes a single group of 16 weights, so `SECOND`, the
        // distance to the second group, is unused.
        Scheme::Q8_0 | Scheme::Int8 | Scheme::Int8Asym => [1, 32],
        Scheme::Q4_0 | Scheme::Q4_1 | Scheme::Q5_0 | Scheme::Q5_1 => [2, 16],
        Scheme::Int4 | Scheme::Int4Asym => [2, 16],
        Scheme::Q2K | Scheme::Q3K | Scheme::Q4K | Scheme::Q5K | Scheme::Tq2_0 => [2, 32],
        Scheme::Q6K => [2, 64],
        // The constants of `dequant/pieces_coded.wgsl`.
        Scheme::Mxfp4 | Scheme::Nvfp4 | Scheme::Fp8E4m3 | Scheme::Fp8E5m2 => [1, 16],
        Scheme::Tq1_0 | Scheme::Iq4Nl | Scheme::Iq4Xs => [1, 16],
        Scheme::Iq2Xxs | Scheme::Iq2Xs | Scheme::Iq2S => [1, 16],
        Scheme::Iq3Xxs | Scheme::Iq3S | Scheme::Iq1S | Scheme::Iq1M => [1, 16],
    }
}

/// Converts 16-bit floats to F32. Both views have whole slots and the same memory order.
pub(super) fn widen_floats(e: &mut LoweringCtx<'_>, x: &SlotView, y: &SlotView) {
    let count = e.numel(y.layout.shape());
    let words = e.words(x.dtype, y.layout.shape());
    let grid = e.grid_of(words, 256);
    let params = WidenParams { count };
    e.dispatch(&WIDEN, &[code(x.dtype)], &[x.slot, y.slot], &params, grid);
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let Op::Dequantize(op) = &node.op else {
        unreachable!("invariant: the lowering receives only `Dequantize`");
    };
    let w = e.view(node.inputs[0]);
    let y = e.result(0)?;
    let count = e.numel(y.layout.shape());
    if op.scheme.storage() != DType::U8 {
        let w = e.dense(&w)?;
        widen_floats(e, &w, &y);
        return Ok(());
    }
    let blocks = PackedWeights::new(e, node.inputs[0], op.scheme)?;
    let w = &blocks.view;
    let row_len = y.layout.shape().last().cloned().unwrap_or(Dim::Known(1));
    let params = UnpackParams {
        count,
        offset: e.offset(w),
        row_len: e.num(&row_len),
        row_stride: e.strides(w)[0],
    };
    let quads = e.tape().div(count, SymInt::Const(4));
    let grid = e.grid_of(quads, 256);
    let (consts, args) = (blocks.consts(), [w.slot, y.slot]);
    match blocks.grid(e)? {
        None => e.dispatch(&UNPACK, &consts, &args, &params, grid),
        Some(table) => {
            let args = [args[0], args[1], table];
            e.dispatch(&UNPACK_CODED, &consts, &args, &params, grid);
        }
    }
    Ok(())
}
