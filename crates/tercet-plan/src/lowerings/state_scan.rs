//! `SelectiveScan`, `Mamba2` and `GatedDeltaNet`: states in registers, workgroups over channels.
//!
//! All steps are taken by one workgroup, in order; what fills a device are the batch and the channels. How the
//! states of channels lie in invocations is `tile.rs`; long sequences of 16 bits go in chunks over cooperative matrices
//! where a device has them, `chunked.rs`; a single step reads and writes its states once, `one.rs`. Results of 16 bits are
//! made in f32 and packed where words would have channels of two workgroups or heads.

use tercet_ir::ops::ScanSizes;
use tercet_ir::{CompileError, DType, Dim, Graph, Node, Op, OpKind, Support, Type};

use self::states::{Last, States};
use self::tile::{MOST_STATES, Tile, Work};
use self::variants::Channels;
use super::cumsum::pack;
use super::{Family, code, missing, portable};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel, Params};
use crate::num::Num;
use crate::program::SlotId;

mod chunked;
mod one;
mod states;
mod tile;
mod variants;

crate::params! {
    /// The block of `selective_scan.wgsl`.
    pub struct SelectiveScanParams {
        steps: U32,
        states: U32,
        channels: U32,
        tiles: U32,
        count: U32,
    }
    /// The block of `head_scan.wgsl`.
    pub struct HeadScanParams {
        steps: U32,
        states: U32,
        heads: U32,
        per_head: U32,
        groups: U32,
        head_tiles: U32,
        count: U32,
    }
    /// The block of `delta_scan.wgsl`.
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

/// A kernel for rows of states by words, and one for rows by vectors.
struct ByRows<P: Params> {
    words: Kernel<P>,
    vectors: Kernel<P>,
}

/// The two kernels of a scan, with pieces of its own that come first.
macro_rules! by_rows {
    ($name:literal, $vectors:literal, [$($piece:literal),*], $file:literal, $args:expr, $consts:expr) => {
        ByRows {
            words: Kernel::wgsl(
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
            vectors: Kernel::wgsl(
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

/// Two rows, values, results, and what decays; the first states and the last.
const ARGS: &[Access] = &[
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
    Access::Read,
    Access::Read,
    Access::Read,
    Access::Write,
];

/// What [`Tile::consts`] gives, and whether there are states to begin with, and to keep.
const CONSTS: &[&str] = &[
    "DTYPE", "OUT", "LANES", "QUADS", "COLUMNS", "FOURS", "STAGED", "THREADS", "INITIAL", "CARRY",
];

static SELECTIVE_SCAN: ByRows<SelectiveScanParams> = by_rows!(
    "selective_scan",
    "selective_scan_vectors",
    [],
    "selective_scan.wgsl",
    ARGS,
    CONSTS
);

static HEAD_SCAN: ByRows<HeadScanParams> = by_rows!(
    "head_scan",
    "head_scan_vectors",
    [],
    "head_scan.wgsl",
    ARGS,
    CONSTS
);

static DELTA_SCAN: ByRows<DeltaScanParams> = by_rows!(
    "delta_scan",
    "delta_scan_vectors",
    ["cluster.wgsl"],
    "delta_scan.wgsl",
    ARGS,
    CONSTS
);

/// Scans over states.
pub(crate) static STATE_SCANS: Family = Family {
    name: "state_scan",
    ops: &[OpKind::SelectiveScan, OpKind::Mamba2, OpKind::GatedDeltaNet],
    kernels: &[
        &SELECTIVE_SCAN.words.def,
        &SELECTIVE_SCAN.vectors.def,
        &HEAD_SCAN.words.def,
        &HEAD_SCAN.vectors.def,
        &DELTA_SCAN.words.def,
        &DELTA_SCAN.vectors.def,
        &one::FREE.def,
        &one::GUARDED.def,
        &chunked::ROWS_F16.def,
        &chunked::ROWS_BF16.def,
        &chunked::WALK_F16.def,
        &chunked::WALK_BF16.def,
    ],
    supports,
    lower,
};

fn supports(graph: &Graph, node: &Node, _: &Caps) -> Support {
    match states(graph, node) {
        Some(0..=MOST_STATES) => Support::Native,
        Some(_) | None => missing("a channel has more than 1024 states"),
    }
}

fn types<'a>(graph: &'a Graph, node: &Node) -> Vec<&'a Type> {
    node.inputs.iter().map(|v| graph.ty(*v)).collect()
}

fn states(graph: &Graph, node: &Node) -> Option<usize> {
    let types = types(graph, node);
    match &node.op {
        Op::GatedDeltaNet(_) => types[0].shape[3].known(),
        _ => ScanSizes::of(&types).map(|sizes| sizes.states),
    }
}

fn num(n: usize) -> Num {
    Num::Const(n as i64)
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let operands: Vec<View> = node.inputs.iter().map(|v| e.view(*v)).collect();
    match &node.op {
        Op::GatedDeltaNet(op) => delta_scan(e, node, &operands, op.carry),
        Op::SelectiveScan(op) => selective_scan(e, node, &operands, op.carry),
        Op::Mamba2(op) => head_scan(e, node, &operands, op.carry),
        op => unreachable!("invariant: {:?} is of this family", op.kind()),
    }
}

impl<P: Params> ByRows<P> {
    /// Runs it over `rows` of `states`, which come first, and the other arguments.
    fn dispatch(
        &self,
        e: &mut Emit<'_>,
        (rows, states): ([&View; 2], usize),
        others: &[SlotId],
        consts: &[u32],
        params: &P,
        count: Num,
    ) -> Result<(), CompileError> {
        let mut args: Vec<SlotId> = rows.map(|v| v.slot).to_vec();
        args.extend(others);
        // A slot that is bound twice has one type.
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

fn sizes_of(e: &Emit<'_>, node: &Node) -> ScanSizes {
    ScanSizes::of(&types(e.graph, node))
        .unwrap_or_else(|| unreachable!("invariant: inference refuses sizes that are not known"))
}

fn selective_scan(
    e: &mut Emit<'_>,
    node: &Node,
    operands: &[View],
    carry: bool,
) -> Result<(), CompileError> {
    let sizes = sizes_of(e, node);
    let Some((operands, given)) = operands.split_first_chunk() else {
        unreachable!("invariant: inference checked the number of operands")
    };
    let y = Wide::unless(e, 0, sizes.heads.is_multiple_of(2))?;
    let states = States::wide(e, given.first(), carry)?;
    let scan = Channels {
        sizes,
        operands,
        results: &y.view,
        states: &states,
    };
    variants::of_channels(e, &scan)?;
    y.finish(e);
    Ok(())
}

/// A scan over heads as its kernels take it.
struct Scan<'v> {
    sizes: ScanSizes,
    /// What enters and what leaves.
    rows: [&'v View; 2],
    values: &'v View,
    /// dt and a, or g and beta.
    gates: [&'v View; 2],
    results: SlotId,
    /// The dtype that results are made in.
    out: DType,
    /// Whether it is a `GatedDeltaNet`.
    is_delta: bool,
    states: &'v States,
}

/// The operands of a scan, dense.
struct Dense {
    rows: [View; 2],
    values: SlotId,
    gates: [SlotId; 2],
}

impl Scan<'_> {
    fn dense(&self, e: &mut Emit<'_>) -> Result<Dense, CompileError> {
        let [enter, leave] = self.rows;
        let [gates, others] = self.gates;
        Ok(Dense {
            rows: [e.dense(enter)?, e.dense(leave)?],
            values: e.dense(self.values)?.slot,
            gates: [e.dense(gates)?.slot, e.dense(others)?.slot],
        })
    }

    fn batch_and_steps(&self) -> [&Dim; 2] {
        let shape = self.rows[0].layout.shape();
        [&shape[0], &shape[1]]
    }

    /// Of the results.
    fn scale(&self) -> f32 {
        match self.is_delta {
            true => 1.0 / (self.sizes.states as f32).sqrt(),
            false => 1.0,
        }
    }

    fn by_steps(&self, e: &mut Emit<'_>) -> Result<(), CompileError> {
        let sizes = self.sizes;
        let [batch, steps] = self.batch_and_steps();
        let work = Work {
            rows: e.bound(batch)?.saturating_mul(sizes.heads),
            channels: sizes.per_head,
            states: sizes.states,
        };
        let tile = match self.is_delta {
            true => Tile::delta(work, e.caps),
            false => Tile::heads(work, e.caps),
        };
        let tiles = sizes.per_head.div_ceil(tile.channels());
        let (batch, steps) = (e.num(batch), e.num(steps));
        let count = e.tape().mul(batch, num(sizes.heads * tiles));
        let mut consts = tile
            .consts(code(self.rows[0].dtype), code(self.out))
            .to_vec();
        consts.extend(self.states.consts());
        let given = self.dense(e)?;
        let made = self.states.make(e)?;
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
    e: &mut Emit<'_>,
    node: &Node,
    operands: &[View],
    carry: bool,
) -> Result<(), CompileError> {
    let sizes = sizes_of(e, node);
    let [x, dt, a, b, c, given @ ..] = operands else {
        unreachable!("invariant: inference checked the number of operands")
    };
    let y = Wide::unless(e, 0, sizes.per_head.is_multiple_of(2))?;
    let states = States::wide(e, given.first(), carry)?;
    let scan = Scan {
        sizes,
        rows: [b, c],
        values: x,
        gates: [dt, a],
        results: y.view.slot,
        out: y.view.dtype,
        is_delta: false,
        states: &states,
    };
    variants::of_heads(e, &scan)?;
    y.finish(e);
    Ok(())
}

fn delta_scan(
    e: &mut Emit<'_>,
    node: &Node,
    operands: &[View],
    carry: bool,
) -> Result<(), CompileError> {
    let types = types(e.graph, node);
    let [Some(heads), Some(width), Some(columns)] =
        [(0, 2), (0, 3), (2, 3)].map(|(i, axis): (usize, usize)| types[i].shape[axis].known())
    else {
        unreachable!("invariant: inference refuses sizes that are not known")
    };
    let [q, k, v, g, beta, given @ ..] = operands else {
        unreachable!("invariant: inference checked the number of operands")
    };
    let o = Wide::unless(e, 0, columns.is_multiple_of(2))?;
    let last = match carry {
        true => Some(Wide::of(e, 1)?),
        false => None,
    };
    let initial = match given.first() {
        Some(view) => Some(e.dense(view)?.slot),
        None => None,
    };
    let states = States {
        initial,
        last: last.as_ref().map(|last| Last {
            view: last.view.clone(),
            is_state: false,
        }),
    };
    let scan = Scan {
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
    variants::of_heads(e, &scan)?;
    o.finish(e);
    if let Some(last) = last {
        last.finish(e);
    }
    Ok(())
}

/// A result while it is made in f32.
pub(super) struct Wide {
    pub(super) view: View,
    narrow: Option<View>,
}

impl Wide {
    pub(super) fn of(e: &mut Emit<'_>, port: usize) -> Result<Wide, CompileError> {
        Wide::unless(e, port, false)
    }

    /// The result as it is where the kernel can store it: in F32, or in words that it has whole.
    pub(super) fn unless(
        e: &mut Emit<'_>,
        port: usize,
        has_words: bool,
    ) -> Result<Wide, CompileError> {
        let result = e.result(port)?;
        Ok(match result.dtype {
            DType::F32 => Wide {
                view: result,
                narrow: None,
            },
            _ if has_words => Wide {
                view: result,
                narrow: None,
            },
            _ => Wide {
                view: e.temp(DType::F32, result.layout.shape())?,
                narrow: Some(result),
            },
        })
    }

    /// Rounds it to the dtype of the result.
    pub(super) fn finish(self, e: &mut Emit<'_>) {
        if let Some(narrow) = &self.narrow {
            pack(e, &self.view, narrow);
        }
    }
}
