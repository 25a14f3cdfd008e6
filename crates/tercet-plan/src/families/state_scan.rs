//! `SelectiveScan`, `Mamba2` and `GatedDeltaNet`: states in registers, workgroups over channels.
//!
//! All steps are taken by one workgroup, in order; what fills a device are the batch and the channels.
//! Results are made in f32 and packed where their dtype is narrower, since channels share words there.

use tercet_ir::ops::ScanSizes;
use tercet_ir::{CompileError, DType, Graph, Node, Op, OpKind, Support, Type};

use super::cumsum::pack;
use super::{Family, code, missing, portable};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::kernel::{Access, Kernel};
use crate::num::Num;

crate::params! {
    /// The block of `state_scan.wgsl`.
    pub struct StateScanParams {
        steps: U32,
        channels: U32,
        per_head: U32,
        states: U32,
        groups: U32,
        group_channels: U32,
        group_tiles: U32,
        count: U32,
    }
    /// The block of `delta_scan.wgsl`.
    pub struct DeltaScanParams {
        steps: U32,
        heads: U32,
        columns: U32,
        states: U32,
        head_tiles: U32,
        count: U32,
        scale: F32,
    }
}

static STATE_SCAN: Kernel<StateScanParams> = Kernel::wgsl(
    "state_scan",
    &[
        portable!("prelude.wgsl"),
        portable!("states.wgsl"),
        portable!("state_scan.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
    ],
    &["DTYPE", "LANES", "QUADS", "STEPS", "PER_STATE"],
);

static DELTA_SCAN: Kernel<DeltaScanParams> = Kernel::wgsl(
    "delta_scan",
    &[
        portable!("prelude.wgsl"),
        portable!("states.wgsl"),
        portable!("delta_scan.wgsl"),
    ],
    &[
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Read,
        Access::Write,
        Access::Write,
    ],
    &["DTYPE", "LANES", "QUADS", "STEPS", "INITIAL", "CARRY"],
);

/// Scans over states.
pub(crate) static STATE_SCANS: Family = Family {
    name: "state_scan",
    ops: &[OpKind::SelectiveScan, OpKind::Mamba2, OpKind::GatedDeltaNet],
    kernels: &[&STATE_SCAN.def, &DELTA_SCAN.def],
    supports,
    lower,
};

/// Invocations of a workgroup: `THREADS` of `states.wgsl`.
const THREADS: usize = 128;

/// The most states of a channel: a step of them fills half the shared memory that every device has.
const MOST_STATES: usize = 1024;

/// Shared memory that every device has.
const SHARED_BYTES: usize = 16 << 10;

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

/// How the states of a channel lie in invocations, and steps in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tile {
    lanes: usize,
    quads: usize,
    steps: usize,
}

impl Tile {
    /// For this many states, where a step needs so many bytes for each channel and each four states, and
    /// some are taken already.
    fn of(states: usize, of_channel: usize, of_quad: usize, taken: usize) -> Tile {
        let all = states.div_ceil(4).max(1);
        let quads = match all {
            0..=4 => 1,
            5..=16 => 2,
            _ => 4,
        };
        let lanes = all.div_ceil(quads).next_power_of_two();
        let step = THREADS / lanes * of_channel + lanes * quads * of_quad;
        let most = (SHARED_BYTES - taken) / step;
        let steps = [16, 8, 4, 2].into_iter().find(|&n| n <= most);
        Tile {
            lanes,
            quads,
            steps: steps.unwrap_or(1),
        }
    }

    fn channels(self) -> usize {
        THREADS / self.lanes
    }

    fn consts(self, dtype: DType) -> [u32; 4] {
        [
            code(dtype),
            self.lanes as u32,
            self.quads as u32,
            self.steps as u32,
        ]
    }
}

fn num(n: usize) -> Num {
    Num::Const(n as i64)
}

fn lower(e: &mut Emit<'_>, node: &Node) -> Result<(), CompileError> {
    let mut operands = Vec::with_capacity(node.inputs.len());
    for v in &node.inputs {
        let view = e.view(*v);
        operands.push(e.dense(&view)?);
    }
    match &node.op {
        Op::GatedDeltaNet(op) => delta_scan(e, node, &operands, op.carry),
        _ => state_scan(e, node, &operands),
    }
}

fn state_scan(e: &mut Emit<'_>, node: &Node, operands: &[View]) -> Result<(), CompileError> {
    let Some(sizes) = ScanSizes::of(&types(e.graph, node)) else {
        unreachable!("invariant: inference refuses sizes that are not known")
    };
    let ScanSizes {
        heads,
        per_head,
        groups,
        states,
    } = sizes;
    let x = &operands[0];
    // Steps, inputs, and a sum for each lane.
    let lanes = Tile::of(states, 8, 32, 0).lanes;
    let tile = Tile::of(states, 8 + 4 * lanes, 32, 0);
    let group_channels = heads / groups * per_head;
    let group_tiles = group_channels.div_ceil(tile.channels());
    let (batch, steps) = (&x.layout.shape()[0], &x.layout.shape()[1]);
    let (batch, steps) = (e.num(batch), e.num(steps));
    let count = e.tape().mul(batch, num(groups * group_tiles));
    let params = StateScanParams {
        steps,
        channels: num(sizes.channels()),
        per_head: num(per_head),
        states: num(states),
        groups: num(groups),
        group_channels: num(group_channels),
        group_tiles: num(group_tiles),
        count,
    };
    let y = Wide::of(e, 0)?;
    let mut args: Vec<_> = operands.iter().map(|v| v.slot).collect();
    args.push(y.view.slot);
    let [dtype, lanes, quads, block] = tile.consts(x.dtype);
    let per_state = u32::from(matches!(node.op, Op::SelectiveScan(_)));
    let consts = [dtype, lanes, quads, block, per_state];
    let grid = e.flat_grid(count);
    e.dispatch(&STATE_SCAN, &consts, &args, &params, grid);
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
    let [Some(heads), Some(states), Some(columns)] =
        [(0, 2), (0, 3), (2, 3)].map(|(i, axis): (usize, usize)| types[i].shape[axis].known())
    else {
        unreachable!("invariant: inference refuses sizes that are not known")
    };
    let q = &operands[0];
    let tile = Tile::of(states, 4, 32, 2 * THREADS * 16 + 16 * 8);
    let head_tiles = columns.div_ceil(tile.channels());
    let (batch, steps) = (&q.layout.shape()[0], &q.layout.shape()[1]);
    let (batch, steps) = (e.num(batch), e.num(steps));
    let count = e.tape().mul(batch, num(heads * head_tiles));
    let params = DeltaScanParams {
        steps,
        heads: num(heads),
        columns: num(columns),
        states: num(states),
        head_tiles: num(head_tiles),
        count,
        scale: 1.0 / (states as f32).sqrt(),
    };
    let o = Wide::of(e, 0)?;
    let last = match carry {
        true => Some(Wide::of(e, 1)?),
        false => None,
    };
    let mut args: Vec<_> = operands[..5].iter().map(|v| v.slot).collect();
    args.push(operands.get(5).unwrap_or(q).slot);
    args.push(o.view.slot);
    args.push(match &last {
        Some(last) => last.view.slot,
        None => e.temp(DType::F32, &[1.into()])?.slot,
    });
    let [dtype, lanes, quads, block] = tile.consts(q.dtype);
    let initial = u32::from(operands.len() > 5);
    let consts = [dtype, lanes, quads, block, initial, u32::from(carry)];
    let grid = e.flat_grid(count);
    e.dispatch(&DELTA_SCAN, &consts, &args, &params, grid);
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
        let result = e.result(port)?;
        Ok(match result.dtype {
            DType::F32 => Wide {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_fit_the_shared_memory() {
        for states in 0..=MOST_STATES {
            let lanes = Tile::of(states, 8, 32, 0).lanes;
            let scan = Tile::of(states, 8 + 4 * lanes, 32, 0);
            let delta = Tile::of(states, 4, 32, 2 * THREADS * 16 + 16 * 8);
            assert!(scan.lanes <= THREADS && 4 * scan.lanes * scan.quads >= states);
            let quads = scan.lanes * scan.quads;
            let step = scan.channels() * 8 + THREADS * 4 + quads * 32;
            assert!(scan.steps * step <= SHARED_BYTES, "{states}");
            let step = delta.channels() * 4 + quads * 32 + 8;
            let used = delta.steps * step + 2 * THREADS * 16;
            assert!(used <= SHARED_BYTES, "{states}");
        }
    }
}
