//! Which kernels a scan over states runs on: the tables of `SelectiveScan`, and of `Mamba2` and `GatedDeltaNet`.
//!
//! What channels and batch fill of a device decides for the former, for the latter whether matrices take chunks of the
//! sequence.

use tercet_ir::ops::ScanSizes;
use tercet_ir::{CompileError, DType};

use super::chunked::{self, FEW_STEPS};
use super::states::States;
use super::tile::{Tile, Work};
use super::{SELECTIVE_SCAN, Scan, SelectiveScanParams, num};
use crate::caps::Caps;
use crate::emit::{Emit, View};
use crate::families::code;
use crate::tuning::Key;
use crate::variant::{self, Variant, needs};

/// A `SelectiveScan` as its kernels take it.
pub(super) struct Channels<'v> {
    pub(super) sizes: ScanSizes,
    /// x, dt, a, b and c.
    pub(super) operands: &'v [View; 5],
    pub(super) results: &'v View,
    pub(super) states: &'v States,
}

/// Channels through so many steps at most.
struct Steps<'v> {
    scan: &'v Channels<'v>,
    steps: usize,
}

/// A scan over heads of so many steps at most.
struct Heads<'v> {
    scan: &'v Scan<'v>,
    steps: usize,
}

/// Emits the cheapest variant of a `SelectiveScan`, or two where there may be a single step.
pub(super) fn of_channels(e: &mut Emit<'_>, scan: &Channels<'_>) -> Result<(), CompileError> {
    let shape = scan.operands[0].layout.shape();
    let [batch, bound] = [e.bound(&shape[0])?, e.bound(&shape[1])?];
    e.choose(&shape[1], &[1], |e, arm| {
        let asked = Steps {
            scan,
            steps: match arm {
                0 => bound.min(1),
                _ => bound,
            },
        };
        let sizes = [batch, asked.steps];
        let measured = measured(e.caps, scan.dtype(), "selective_scan", sizes, scan.sizes);
        variant::run(e, &by_channels(), measured, &asked)
    })
}

/// Emits the cheapest variant of a scan over heads, or several where the number of steps decides.
pub(super) fn of_heads(e: &mut Emit<'_>, scan: &Scan<'_>) -> Result<(), CompileError> {
    let [batch, steps] = scan.batch_and_steps();
    let [batch, bound] = [e.bound(batch)?, e.bound(steps)?];
    let one = (!scan.is_delta).then_some(1);
    let few = chunked::tiling(e, scan)?.map(|_| FEW_STEPS);
    let bounds: Vec<u32> = one.into_iter().chain(few).collect();
    e.choose(steps, &bounds, |e, arm| {
        let most = bounds.get(arm).map(|most| bound.min(*most as usize));
        let asked = Heads {
            scan,
            steps: most.unwrap_or(bound),
        };
        let what = match scan.is_delta {
            true => "gated_delta_net",
            false => "mamba2",
        };
        let sizes = [batch, asked.steps];
        let measured = measured(e.caps, scan.rows[0].dtype, what, sizes, scan.sizes);
        variant::run(e, &by_heads(), measured, &asked)
    })
}

/// The variant that a table of measurements names.
fn measured<'c>(
    caps: &'c Caps,
    dtype: DType,
    what: &str,
    [batch, steps]: [usize; 2],
    sizes: ScanSizes,
) -> Option<&'c str> {
    let sizes = [batch, steps, sizes.heads, sizes.per_head, sizes.states];
    caps.device.tuning.find(|| Key::scan(what, dtype, sizes))
}

/// What a variant for a single step needs.
const ONE_STEP: &str = "one step";

/// What a dispatch takes and so many states through so many steps, where a unit takes so many a second.
fn seconds(e: &Emit<'_>, states: f64, steps: f64, per_s: f64) -> f64 {
    let units = e.caps.units() as f64;
    e.caps.device.rates.dispatch_s + states * steps / (per_s * units)
}

/// The variants of a `SelectiveScan`.
fn by_channels<'v>() -> [Variant<Steps<'v>>; 3] {
    [
        Variant {
            name: "one",
            supports: |_, asked| needs(asked.steps <= 1, ONE_STEP),
            cost: |e, _| Ok(e.caps.device.rates.dispatch_s),
            emit: |e, asked| asked.scan.one(e),
        },
        Variant {
            name: "many_channels",
            supports: |e, asked| {
                let work = asked.scan.work(e)?;
                needs(
                    !Tile::is_for_few(work, e.caps),
                    "four workgroups or more on each unit",
                )
            },
            cost: |e, asked| asked.seconds(e, e.caps.device.rates.scans.channels[0]),
            emit: |e, asked| {
                let tile = Tile::many_channels(asked.scan.work(e)?, e.caps);
                asked.scan.emit(e, tile)
            },
        },
        Variant {
            name: "few_channels",
            supports: |_, _| Ok(()),
            cost: |e, asked| asked.seconds(e, e.caps.device.rates.scans.channels[1]),
            emit: |e, asked| {
                let is_narrow = asked.scan.dtype() != DType::F32;
                let tile = Tile::few_channels(asked.scan.work(e)?, e.caps, is_narrow);
                asked.scan.emit(e, tile)
            },
        },
    ]
}

/// The variants of a scan over heads.
fn by_heads<'v>() -> [Variant<Heads<'v>>; 3] {
    [
        Variant {
            name: "one",
            supports: |_, asked| {
                needs(!asked.scan.is_delta, "a state that answers no values")?;
                needs(asked.steps <= 1, ONE_STEP)
            },
            cost: |e, _| Ok(e.caps.device.rates.dispatch_s),
            emit: |e, asked| asked.scan.one(e),
        },
        Variant {
            name: "chunks",
            supports: |e, asked| {
                needs(asked.steps > FEW_STEPS as usize, "more than 127 steps")?;
                let what = "cooperative matrices of 16-bit floats, whole fragments of up to 128 states, \
                        and of columns";
                needs(chunked::tiling(e, asked.scan)?.is_some(), what)
            },
            cost: |e, asked| asked.seconds(e, e.caps.device.rates.scans.chunks),
            emit: |e, asked| match chunked::tiling(e, asked.scan)? {
                Some(tiling) => chunked::dispatch(e, asked.scan, &tiling),
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        Variant {
            name: "steps",
            supports: |_, _| Ok(()),
            cost: |e, asked| asked.seconds(e, e.caps.device.rates.scans.steps),
            emit: |e, asked| asked.scan.by_steps(e),
        },
    ]
}

impl Heads<'_> {
    /// By the rates of `Mamba2` and `GatedDeltaNet`.
    fn seconds(&self, e: &Emit<'_>, rates: [f64; 2]) -> Result<f64, CompileError> {
        let sizes = self.scan.sizes;
        let [batch, _] = self.scan.batch_and_steps();
        let states = [e.bound(batch)?, sizes.heads, sizes.per_head, sizes.states];
        let states = states.iter().map(|n| *n as f64).product();
        let rate = rates[usize::from(self.scan.is_delta)];
        Ok(seconds(e, states, self.steps as f64, rate))
    }
}

impl Steps<'_> {
    fn seconds(&self, e: &Emit<'_>, rate: f64) -> Result<f64, CompileError> {
        let Work {
            rows,
            channels,
            states,
        } = self.scan.work(e)?;
        let states = rows as f64 * channels as f64 * states as f64;
        Ok(seconds(e, states, self.steps as f64, rate))
    }
}

impl Channels<'_> {
    fn dtype(&self) -> DType {
        self.operands[0].dtype
    }

    fn work(&self, e: &Emit<'_>) -> Result<Work, CompileError> {
        Ok(Work {
            rows: e.bound(&self.operands[0].layout.shape()[0])?,
            channels: self.sizes.heads,
            states: self.sizes.states,
        })
    }

    fn emit(&self, e: &mut Emit<'_>, tile: Tile) -> Result<(), CompileError> {
        let sizes = self.sizes;
        let [x, dt, a, b, c] = self.operands;
        let (batch, steps) = (&x.layout.shape()[0], &x.layout.shape()[1]);
        let tiles = sizes.heads.div_ceil(tile.channels());
        let (batch, steps) = (e.num(batch), e.num(steps));
        let count = e.tape().mul(batch, num(tiles));
        let params = SelectiveScanParams {
            steps,
            states: num(sizes.states),
            channels: num(sizes.heads),
            tiles: num(tiles),
            count,
        };
        let mut consts = tile
            .consts(code(x.dtype), code(self.results.dtype))
            .to_vec();
        consts.extend(self.states.consts());
        let [x, dt, a] = [e.dense(x)?.slot, e.dense(dt)?.slot, e.dense(a)?.slot];
        let rows = [e.dense(b)?, e.dense(c)?];
        let made = self.states.make(e)?;
        let initial = self.states.initial.unwrap_or(x);
        let others = [x, self.results.slot, dt, a, initial, made.slot];
        let rows = (rows.each_ref(), sizes.states);
        SELECTIVE_SCAN.dispatch(e, rows, &others, &consts, &params, count)?;
        self.states.finish(e, made);
        Ok(())
    }
}
