//! Variants of state scans: the tables of `SelectiveScan`, and of `Mamba2` and `GatedDeltaNet`.
//!
//! For `SelectiveScan`, the number of channels and batch entries selects the variant. For `Mamba2`
//! and `GatedDeltaNet`, the selection depends on whether cooperative matrices can process chunks of
//! the sequence.

use tercet_ir::ops::ScanSizes;
use tercet_ir::{CompileError, DType, VariantFamily};

use super::chunked::{self, MAX_SEQUENTIAL_STEPS};
use super::states::ScanStates;
use super::tile::{ScanStepSizes, ScanTile};
use super::{HeadScan, SELECTIVE_SCAN, SelectiveScanParams, num};
use crate::caps::DeviceCaps;
use crate::emit::{LoweringCtx, SlotView};
use crate::lowerings::code;
use crate::tuning::TuningKey;
use crate::variant::{self, KernelVariant, needs};

/// A `SelectiveScan` with its operands in the form that the kernels take.
pub(super) struct ChannelScan<'v> {
    pub(super) sizes: ScanSizes,
    /// The operands x, dt, a, b and c.
    pub(super) operands: &'v [SlotView; 5],
    pub(super) results: &'v SlotView,
    pub(super) states: &'v ScanStates,
}

/// A `SelectiveScan` with at most `steps` steps.
struct BoundedChannelScan<'v> {
    scan: &'v ChannelScan<'v>,
    steps: usize,
}

/// A scan over heads (`Mamba2` or `GatedDeltaNet`) with at most `steps` steps.
struct BoundedHeadScan<'v> {
    scan: &'v HeadScan<'v>,
    steps: usize,
}

/// Emits the cheapest variant of a `SelectiveScan`, and a separate one for single steps if they may
/// occur.
pub(super) fn emit_channels(
    e: &mut LoweringCtx<'_>,
    scan: &ChannelScan<'_>,
) -> Result<(), CompileError> {
    let shape = scan.operands[0].layout.shape();
    let [batch, bound] = [e.bound(&shape[0])?, e.bound(&shape[1])?];
    e.switch_on_size(&shape[1], &[1], |e, arm| {
        let asked = BoundedChannelScan {
            scan,
            steps: match arm {
                0 => bound.min(1),
                _ => bound,
            },
        };
        let sizes = [batch, asked.steps];
        let measured = tuned_variant(e.caps, scan.dtype(), SELECTIVE, sizes, scan.sizes);
        variant::run(e, SELECTIVE, &by_channels(), measured, &asked)
    })
}

/// Families of the variants, which are also the names of the scans in tuning tables.
const SELECTIVE: &str = "selective_scan";
const GATED_DELTA: &str = "gated_delta_net";
const MAMBA2: &str = "mamba2";

/// The families of scans with the names of their variants.
pub(in crate::lowerings) fn families() -> [VariantFamily; 3] {
    [
        variant::family(SELECTIVE, &[&by_channels()]),
        variant::family(GATED_DELTA, &[&by_heads()]),
        variant::family(MAMBA2, &[&by_heads()]),
    ]
}

/// Emits the cheapest variants of a scan over heads, one per range of step counts.
pub(super) fn emit_heads(e: &mut LoweringCtx<'_>, scan: &HeadScan<'_>) -> Result<(), CompileError> {
    let [batch, steps] = scan.batch_and_steps();
    let [batch, bound] = [e.bound(batch)?, e.bound(steps)?];
    let one = (!scan.is_delta).then_some(1);
    let few = chunked::tiling(e, scan)?.map(|_| MAX_SEQUENTIAL_STEPS);
    let bounds: Vec<u32> = one.into_iter().chain(few).collect();
    e.switch_on_size(steps, &bounds, |e, arm| {
        let most = bounds.get(arm).map(|most| bound.min(*most as usize));
        let asked = BoundedHeadScan {
            scan,
            steps: most.unwrap_or(bound),
        };
        let what = match scan.is_delta {
            true => GATED_DELTA,
            false => MAMBA2,
        };
        let sizes = [batch, asked.steps];
        let measured = tuned_variant(e.caps, scan.rows[0].dtype, what, sizes, scan.sizes);
        variant::run(e, what, &by_heads(), measured, &asked)
    })
}

/// The variant that the autotuning table names.
fn tuned_variant<'c>(
    caps: &'c DeviceCaps,
    dtype: DType,
    what: &str,
    [batch, steps]: [usize; 2],
    sizes: ScanSizes,
) -> Option<&'c str> {
    let sizes = [batch, steps, sizes.heads, sizes.per_head, sizes.states];
    caps.device
        .tuning
        .find(|| TuningKey::scan(what, dtype, sizes))
}

/// The reason text if a single-step variant rejects a longer sequence.
const ONE_STEP: &str = "one step";

/// Estimated time in seconds: a dispatch plus `states` times `steps` updates at `per_s` updates per
/// unit and second.
fn seconds(e: &LoweringCtx<'_>, states: f64, steps: f64, per_s: f64) -> f64 {
    let units = e.caps.units() as f64;
    e.caps.device.rates.dispatch_s + states * steps / (per_s * units)
}

/// Variants of `SelectiveScan`.
fn by_channels<'v>() -> [KernelVariant<BoundedChannelScan<'v>>; 3] {
    [
        KernelVariant {
            name: "one",
            supports: |_, asked| needs(asked.steps <= 1, ONE_STEP),
            cost: |e, _| Ok(e.caps.device.rates.dispatch_s),
            emit: |e, asked| asked.scan.one(e),
        },
        KernelVariant {
            name: "many_channels",
            supports: |e, asked| {
                let work = asked.scan.work(e)?;
                needs(
                    !ScanTile::uses_small_workgroups(work, e.caps),
                    "at least four workgroups per compute unit",
                )
            },
            cost: |e, asked| asked.seconds(e, e.caps.device.rates.scans.channels[0]),
            emit: |e, asked| {
                let tile = ScanTile::many_channels(asked.scan.work(e)?, e.caps);
                asked.scan.emit(e, tile)
            },
        },
        KernelVariant {
            name: "few_channels",
            supports: |_, _| Ok(()),
            cost: |e, asked| asked.seconds(e, e.caps.device.rates.scans.channels[1]),
            emit: |e, asked| {
                let is_narrow = asked.scan.dtype() != DType::F32;
                let tile = ScanTile::few_channels(asked.scan.work(e)?, e.caps, is_narrow);
                asked.scan.emit(e, tile)
            },
        },
    ]
}

/// Variants of scans over heads.
fn by_heads<'v>() -> [KernelVariant<BoundedHeadScan<'v>>; 3] {
    [
        KernelVariant {
            name: "one",
            supports: |_, asked| {
                needs(!asked.scan.is_delta, "a scan other than gated_delta_net")?;
                needs(asked.steps <= 1, ONE_STEP)
            },
            cost: |e, _| Ok(e.caps.device.rates.dispatch_s),
            emit: |e, asked| asked.scan.one(e),
        },
        KernelVariant {
            name: "chunks",
            supports: |e, asked| {
                needs(
                    asked.steps > MAX_SEQUENTIAL_STEPS as usize,
                    "more than 127 steps",
                )?;
                let what = "16-bit cooperative matrices, at most 128 states in whole fragments, \
                        and columns in whole fragments";
                needs(chunked::tiling(e, asked.scan)?.is_some(), what)
            },
            cost: |e, asked| asked.seconds(e, e.caps.device.rates.scans.chunks),
            emit: |e, asked| match chunked::tiling(e, asked.scan)? {
                Some(tiling) => chunked::dispatch(e, asked.scan, &tiling),
                None => unreachable!("invariant: the variant supports it"),
            },
        },
        KernelVariant {
            name: "steps",
            supports: |_, _| Ok(()),
            cost: |e, asked| asked.seconds(e, e.caps.device.rates.scans.steps),
            emit: |e, asked| asked.scan.by_steps(e),
        },
    ]
}

impl BoundedHeadScan<'_> {
    /// Estimated time of a scan over heads in seconds, with the measured rate of `Mamba2` or of
    /// `GatedDeltaNet`.
    fn seconds(&self, e: &LoweringCtx<'_>, rates: [f64; 2]) -> Result<f64, CompileError> {
        let sizes = self.scan.sizes;
        let [batch, _] = self.scan.batch_and_steps();
        let states = [e.bound(batch)?, sizes.heads, sizes.per_head, sizes.states];
        let states = states.iter().map(|n| *n as f64).product();
        let rate = rates[usize::from(self.scan.is_delta)];
        Ok(seconds(e, states, self.steps as f64, rate))
    }
}

impl BoundedChannelScan<'_> {
    fn seconds(&self, e: &LoweringCtx<'_>, rate: f64) -> Result<f64, CompileError> {
        let ScanStepSizes {
            rows,
            channels,
            states,
        } = self.scan.work(e)?;
        let states = rows as f64 * channels as f64 * states as f64;
        Ok(seconds(e, states, self.steps as f64, rate))
    }
}

impl ChannelScan<'_> {
    fn dtype(&self) -> DType {
        self.operands[0].dtype
    }

    fn work(&self, e: &LoweringCtx<'_>) -> Result<ScanStepSizes, CompileError> {
        Ok(ScanStepSizes {
            rows: e.bound(&self.operands[0].layout.shape()[0])?,
            channels: self.sizes.heads,
            states: self.sizes.states,
        })
    }

    fn emit(&self, e: &mut LoweringCtx<'_>, tile: ScanTile) -> Result<(), CompileError> {
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
        let made = self.states.allocate(e)?;
        let initial = self.states.initial.unwrap_or(x);
        let others = [x, self.results.slot, dt, a, initial, made.slot];
        let rows = (rows.each_ref(), sizes.states);
        SELECTIVE_SCAN.dispatch(e, rows, &others, &consts, &params, count)?;
        self.states.finish(e, made);
        Ok(())
    }
}
