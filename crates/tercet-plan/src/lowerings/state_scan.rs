//! Lowering of `SelectiveScan`, `Mamba2` and `GatedDeltaNet`: states in registers, one workgroup
//! per group of channels.
//!
//! A workgroup processes all steps in order; batch and channels provide the parallelism. `tile.rs`
//! assigns states to threads. Long 16-bit sequences run in chunks on cooperative matrices if the
//! device has them (`chunked.rs`). A single step reads and writes its states once
//! (`single_step.rs`). If words would span channels of two workgroups or heads, 16-bit results are
//! computed in F32 and packed.

use tercet_ir::ops::ScanSizes;
use tercet_ir::{CompileError, DType, Dim, Graph, Node, Op, OpKind, Support, Type};

use self::states::{FinalStates, ScanStates};
use self::tile::{MAX_STATES, ScanStepSizes, ScanTile};
use self::variants::ChannelScan;
use super::cumsum::pack;
use super::{Lowering, code, missing, portable};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use tercet_program::SlotId;
use tercet_program::SymInt;
use tercet_program::{ArgAccess, ParamBlock, TypedKernel};

pub(crate) mod chunked;
mod single_step;
mod states;
pub(crate) mod tile;
mod variants;
pub(super) use variants::families as variant_families;

crate::params! {
    /// Parameter block of `selective_scan.wgsl`.
    pub struct SelectiveScanParams {
        steps: U32,
        states: U32,
        channels: U32,
        tiles: U32,
        count: U32,
    }
    /// Parameter block of `head_scan.wgsl`.
    pub struct HeadScanParams {
        steps: U32,
        states: U32,
        heads: U32,
        per_head: U32,
        groups: U32,
        head_tiles: U32,
        count: U32,
    }
    /// Parameter block of `delta_scan.wgsl`.
    pub struct DeltaScanParams {
        steps: U32,
        states: U32,
        heads: U32,
        columns: U32,
        head_tiles: U32,
        count: U32,
        scale: F32,
    }
}

/// Two versions of a scan kernel: one loads rows of operands word by word, the other in vectors.
struct RowLoadKernels<P: ParamBlock> {
    words: TypedKernel<P>,
    vectors: TypedKernel<P>,
}

/// Declares the two versions of a scan kernel, whose source starts with the WGSL fragments
/// `$piece`.
macro_rules! by_rows {
    ($name:literal, $vectors:literal, [$($piece:literal),*], $file:literal, $args:expr, $consts:expr) => {
        RowLoadKernels {
            words: TypedKernel::wgsl(
                $name,
                &[
                    $(portable!($piece),)*
                    portable!("prelude.wgsl"),
                    portable!("halves.wgsl"),
                    portable!("states.wgsl"),
                    portable!("state_rows.wgsl"),
                    portable!($file),
                ],
                $args,
                $consts,
            ),
            vectors: TypedKernel::wgsl(
                $vectors,
                &[
                    $(portable!($piece),)*
                    portable!("prelude.wgsl"),
                    portable!("halves.wgsl"),
                    portable!("states.wgsl"),
                    portable!("state_row_vectors.wgsl"),
                    portable!($file),
                ],
                $args,
                $consts,
            ),
        }
    };
}

/// Arguments: two operand rows, values, results, decays, initial states and final states.
const ARGS: &[ArgAccess] = &[
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Read,
    ArgAccess::Write,
];

/// Constants: those of [`ScanTile::consts`], and whether there are initial and final states.
const CONSTS: &[&str] = &[
    "DTYPE", "OUT", "LANES", "QUADS", "COLUMNS", "FOURS", "STAGED", "THREADS", "INITIAL", "CARRY",
];

static SELECTIVE_SCAN: RowLoadKernels<SelectiveScanParams> = by_rows!(
    "selective_scan",
    "selective_scan_vectors",
    [],
    "selective_scan.wgsl",
    ARGS,
    CONSTS
);

static HEAD_SCAN: RowLoadKernels<HeadScanParams> = by_rows!(
    "head_scan",
    "head_scan_vectors",
    [],
    "head_scan.wgsl",
    ARGS,
    CONSTS
);

static DELTA_SCAN: RowLoadKernels<DeltaScanParams> = by_rows!(
    "delta_scan",
    "delta_scan_vectors",
    ["cluster.wgsl"],
    "delta_scan.wgsl",
    ARGS,
    CONSTS
);

/// Lowering of scans over states.
pub(crate) static STATE_SCANS: Lowering = Lowering {
    name: "state_scan",
    ops: &[OpKind::SelectiveScan, OpKind::Mamba2, OpKind::GatedDeltaNet],
    kernels: &[
        &SELECTIVE_SCAN.words.def,
        &SELECTIVE_SCAN.vectors.def,
        &HEAD_SCAN.words.def,
        &HEAD_SCAN.vectors.def,
        &DELTA_SCAN.words.def,
        &DELTA_SCAN.vectors.def,
        &single_step::FREE.def,
        &single_step::GUARDED.def,
        &chunked::ROWS_F16.def,
        &chunked::ROWS_BF16.def,
        &chunked::WALK_F16.def,
        &chunked::WALK_BF16.def,
    ],
    supports,
    lower,
};

fn supports(graph: &Graph, node: &Node, _: &DeviceCaps) -> Support {
    match states(graph, node) {
        Some(0..=MAX_STATES) => Support::Native,
        Some(_) | None => missing("more than 1024 states per channel"),
    }
}

fn types<'a>(graph: &'a Graph, node: &Node) -> Vec<&'a Type> {
    node.inputs.iter().map(|v| graph.ty(*v)).collect()
}

fn states(graph: &Graph, node: &Node) -> Option<usize> {
    let types = types(graph, node);
    match &node.op {
        Op::GatedDeltaNet(_) => types[0].shape[3].known(),
        _ => ScanSizes::from_operands(&types).map(|sizes| sizes.states),
    }
}

fn num(n: usize) -> SymInt {
    SymInt::Const(n as i64)
}

fn lower(e: &mut LoweringCtx<'_>, node: &Node) -> Result<(), CompileError> {
    let operands: Vec<SlotView> = node.inputs.iter().map(|v| e.view(*v)).collect();
    match &node.op {
        Op::GatedDeltaNet(op) => delta_scan(e, node, &operands, op.carry),
        Op::SelectiveScan(op) => selective_scan(e, node, &operands, op.carry),
        Op::Mamba2(op) => head_scan(e, node, &operands, op.carry),
        op => unreachable!("invariant: {:?} belongs to this lowering", op.kind()),
    }
}

impl<P: ParamBlock> RowLoadKernels<P> {
    /// Dispatches the kernel. The kernel's arguments are the two operands `rows`, whose rows have
    /// `states` elements, and then `others`.
    fn dispatch(
        &self,
        e: &mut LoweringCtx<'_>,
        (rows, states): ([&SlotView; 2], usize),
        others: &[SlotId],
        consts: &[u32],
        params: &P,
        count: SymInt,
    ) -> Result<(), CompileError> {
        let mut args: Vec<SlotId> = rows.map(|v| v.slot).to_vec();
        args.extend(others);
        // A slot that is bound twice needs the same type in both bindings.
        let apart = !rows.iter().any(|row| others.contains(&row.slot));
        let together = 16 / rows[0].dtype.size_bytes();
        let mut vectors = states.is_multiple_of(together) && apart;
        for dim in rows[0].layout.shape() {
            vectors = vectors && e.bound(dim)? > 0;
        }
        let kernel = match vectors {
            true => &self.vectors,
            false => &self.words,
        };
        let grid = e.flat_grid(count);
        e.dispatch(kernel, consts, &args, params, grid);
        Ok(())
    }
}

fn sizes_of(e: &LoweringCtx<'_>, node: &Node) -> ScanSizes {
    ScanSizes::from_operands(&types(e.graph, node))
        .unwrap_or_else(|| unreachable!("invariant: inference rejects unknown sizes"))
}

fn selective_scan(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    operands: &[SlotView],
    carry: bool,
) -> Result<(), CompileError> {
    let sizes = sizes_of(e, node);
    let Some((operands, given)) = operands.split_first_chunk() else {
        unreachable!("invariant: inference checked the number of operands")
    };
    let y = F32Result::unless(e, 0, sizes.heads.is_multiple_of(2))?;
    let states = ScanStates::wide(e, given.first(), carry)?;
    let scan = ChannelScan {
        sizes,
        operands,
        results: &y.view,
        states: &states,
    };
    variants::emit_channels(e, &scan)?;
    y.finish(e);
    Ok(())
}

/// A scan over heads (`Mamba2` or `GatedDeltaNet`), with its operands in the form that the kernels
/// take.
struct HeadScan<'v> {
    sizes: ScanSizes,
    /// The input and output projections of the state (B and C, or k and q).
    rows: [&'v SlotView; 2],
    values: &'v SlotView,
    /// The gates: dt and a, or g and beta.
    gates: [&'v SlotView; 2],
    results: SlotId,
    /// Dtype of the computed results, before rounding.
    out: DType,
    /// True for `GatedDeltaNet`, false for `Mamba2`.
    is_delta: bool,
    states: &'v ScanStates,
}

/// Operands of a scan over heads as dense views.
struct DenseScanOperands {
    rows: [SlotView; 2],
    values: SlotId,
    gates: [SlotId; 2],
}

impl HeadScan<'_> {
    fn dense(&self, e: &mut LoweringCtx<'_>) -> Result<DenseScanOperands, CompileError> {
        let [enter, leave] = self.rows;
        let [gates, others] = self.gates;
        Ok(DenseScanOperands {
            rows: [e.dense(enter)?, e.dense(leave)?],
            values: e.dense(self.values)?.slot,
            gates: [e.dense(gates)?.slot, e.dense(others)?.slot],
        })
    }

    fn batch_and_steps(&self) -> [&Dim; 2] {
        let shape = self.rows[0].layout.shape();
        [&shape[0], &shape[1]]
    }

    /// Scale of the results.
    fn scale(&self) -> f32 {
        match self.is_delta {
            true => 1.0 / (self.sizes.states as f32).sqrt(),
            false => 1.0,
        }
    }

    fn by_steps(&self, e: &mut LoweringCtx<'_>) -> Result<(), CompileError> {
        let sizes = self.sizes;
        let [batch, steps] = self.batch_and_steps();
        let work = ScanStepSizes {
            rows: e.bound(batch)?.saturating_mul(sizes.heads),
            channels: sizes.per_head,
            states: sizes.states,
        };
        let tile = match self.is_delta {
            true => ScanTile::delta(work, e.caps),
            false => ScanTile::heads(work, e.caps),
        };
        let tiles = sizes.per_head.div_ceil(tile.channels());
        let (batch, steps) = (e.num(batch), e.num(steps));
        let count = e.tape().mul(batch, num(sizes.heads * tiles));
        let mut consts = tile
            .consts(code(self.rows[0].dtype), code(self.out))
            .to_vec();
        consts.extend(self.states.consts());
        let given = self.dense(e)?;
        let made = self.states.allocate(e)?;
        let [gates, other_gates] = given.gates;
        let initial = self.states.initial.unwrap_or(given.values);
        let others = [
            given.values,
            self.results,
            gates,
            other_gates,
            initial,
            made.slot,
        ];
        let rows = (given.rows.each_ref(), sizes.states);
        if !self.is_delta {
            let params = HeadScanParams {
                steps,
                states: num(sizes.states),
                heads: num(sizes.heads),
                per_head: num(sizes.per_head),
                groups: num(sizes.groups),
                head_tiles: num(tiles),
                count,
            };
            HEAD_SCAN.dispatch(e, rows, &others, &consts, &params, count)?;
            self.states.finish(e, made);
            return Ok(());
        }
        let params = DeltaScanParams {
            steps,
            states: num(sizes.states),
            heads: num(sizes.heads),
            columns: num(sizes.per_head),
            head_tiles: num(tiles),
            count,
            scale: self.scale(),
        };
        DELTA_SCAN.dispatch(e, rows, &others, &consts, &params, count)?;
        self.states.finish(e, made);
        Ok(())
    }
}

fn head_scan(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    operands: &[SlotView],
    carry: bool,
) -> Result<(), CompileError> {
    let sizes = sizes_of(e, node);
    let [x, dt, a, b, c, given @ ..] = operands else {
        unreachable!("invariant: inference checked the number of operands")
    };
    let y = F32Result::unless(e, 0, sizes.per_head.is_multiple_of(2))?;
    let states = ScanStates::wide(e, given.first(), carry)?;
    let scan = HeadScan {
        sizes,
        rows: [b, c],
        values: x,
        gates: [dt, a],
        results: y.view.slot,
        out: y.view.dtype,
        is_delta: false,
        states: &states,
    };
    variants::emit_heads(e, &scan)?;
    y.finish(e);
    Ok(())
}

fn delta_scan(
    e: &mut LoweringCtx<'_>,
    node: &Node,
    operands: &[SlotView],
    carry: bool,
) -> Result<(), CompileError> {
    let types = types(e.graph, node);
    let [Some(heads), Some(width), Some(columns)] =
        [(0, 2), (0, 3), (2, 3)].map(|(i, axis): (usize, usize)| types[i].shape[axis].known())
    else {
        unreachable!("invariant: inference rejects unknown sizes")
    };
    let [q, k, v, g, beta, given @ ..] = operands else {
        unreachable!("invariant: inference checked the number of operands")
    };
    let o = F32Result::unless(e, 0, columns.is_multiple_of(2))?;
    let last = match carry {
        true => Some(F32Result::new(e, 1)?),
        false => None,
    };
    let initial = match given.first() {
        Some(view) => Some(e.dense(view)?.slot),
        None => None,
    };
    let states = ScanStates {
        initial,
        last: last.as_ref().map(|last| FinalStates {
            view: last.view.clone(),
            is_state: false,
        }),
    };
    let scan = HeadScan {
        sizes: ScanSizes {
            heads,
            per_head: columns,
            groups: heads,
            states: width,
        },
        rows: [k, q],
        values: v,
        gates: [g, beta],
        results: o.view.slot,
        out: o.view.dtype,
        is_delta: true,
        states: &states,
    };
    variants::emit_heads(e, &scan)?;
    o.finish(e);
    if let Some(last) = last {
        last.finish(e);
    }
    Ok(())
}

/// The result of a scan, which the kernel may compute in F32 before it is rounded.
pub(super) struct F32Result {
    pub(super) view: SlotView,
    narrow: Option<SlotView>,
}

impl F32Result {
    pub(super) fn new(e: &mut LoweringCtx<'_>, port: usize) -> Result<F32Result, CompileError> {
        F32Result::unless(e, port, false)
    }

    /// Returns the result itself if the kernel can store it directly (F32, or rows of whole words),
    /// otherwise a temporary F32 result.
    pub(super) fn unless(
        e: &mut LoweringCtx<'_>,
        port: usize,
        has_words: bool,
    ) -> Result<F32Result, CompileError> {
        let result = e.result(port)?;
        Ok(match result.dtype {
            DType::F32 => F32Result {
                view: result,
                narrow: None,
            },
            _ if has_words => F32Result {
                view: result,
                narrow: None,
            },
            _ => F32Result {
                view: e.temp(DType::F32, result.layout.shape())?,
                narrow: Some(result),
            },
        })
    }

    /// Rounds the temporary result to the result dtype.
    pub(super) fn finish(self, e: &mut LoweringCtx<'_>) {
        if let Some(narrow) = &self.narrow {
            pack(e, &self.view, narrow);
        }
    }
}
