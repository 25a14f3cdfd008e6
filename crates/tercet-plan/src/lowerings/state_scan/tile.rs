//! How a state scan assigns the states of channels to threads, and stages the operands of steps in
//! shared memory.
//!
//! On measured GPUs, shared memory bandwidth is the bottleneck: a vector of four floats takes as
//! long as four scalars, even if all threads read the same address. A thread reads operand rows
//! once for all its channels, and exchanges partial sums once for all its states, so it should have
//! several channels and several states. Nevertheless, at least as many threads should be active as
//! the compute units have lanes.

use crate::caps::DeviceCaps;

/// Threads per workgroup.
const THREADS: usize = 128;

/// Threads per workgroup if there are few channels; two independent workgroups then run on a
/// compute unit.
const SMALL_WORKGROUP_THREADS: usize = 64;

/// Maximum states per channel: four vectors of four in each thread of half a workgroup.
pub const MAX_STATES: usize = 1024;

/// The sizes of one scan step: number of rows, channels per row and states per channel.
#[derive(Clone, Copy, Debug)]
pub struct ScanStepSizes {
    /// Number of batch entries (`SelectiveScan`), or of heads of all batch entries.
    pub rows: usize,
    /// Channels per row.
    pub channels: usize,
    /// States per channel.
    pub states: usize,
}

impl ScanStepSizes {
    /// Number of four-state vectors per channel.
    fn vectors(self) -> usize {
        self.states.div_ceil(4).max(1)
    }

    /// Number of workgroups per compute unit with this tile, rounded up.
    fn per_unit(self, tile: ScanTile, caps: &DeviceCaps) -> usize {
        let units = caps.units();
        let tiles = self.channels.div_ceil(tile.channels());
        self.rows.saturating_mul(tiles).div_ceil(units)
    }
}

/// The part of a scan that a workgroup processes, as values of the constants of `states.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanTile {
    /// Number of threads that share the states of a channel.
    pub lanes: usize,
    /// Number of vectors of four states per thread and channel.
    pub quads: usize,
    columns: usize,
    fours: usize,
    staged: bool,
    /// Threads per workgroup.
    pub threads: usize,
}

impl ScanTile {
    /// Whether a `SelectiveScan` has so few channels that workgroups should be small.
    pub(super) fn uses_small_workgroups(work: ScanStepSizes, caps: &DeviceCaps) -> bool {
        work.per_unit(ScanTile::small(work), caps) <= 3
    }

    fn small(work: ScanStepSizes) -> ScanTile {
        let few = ScanTile::new(work, work.vectors().div_ceil(16), 1);
        match 2 * few.lanes <= SMALL_WORKGROUP_THREADS {
            true => ScanTile {
                threads: SMALL_WORKGROUP_THREADS,
                ..few
            },
            false => few,
        }
    }

    /// Tile of a `SelectiveScan` with few channels.
    pub fn few_channels(work: ScanStepSizes, caps: &DeviceCaps, is_narrow: bool) -> ScanTile {
        // By measurement, 16-bit data needs as many words in flight as F32 data, but no more.
        let most = if is_narrow { 6 } else { 4 };
        ScanTile::small(work).fit(work, caps, most, ScanTile::selective_bytes)
    }

    /// Tile of a `SelectiveScan` with many channels.
    pub fn many_channels(work: ScanStepSizes, caps: &DeviceCaps) -> ScanTile {
        let quads = work.vectors().div_ceil(16).max(2);
        ScanTile::new(work, quads, 1).fit(work, caps, 2, ScanTile::selective_bytes)
    }

    /// Tile of a `Mamba2` scan.
    pub fn heads(work: ScanStepSizes, caps: &DeviceCaps) -> ScanTile {
        let most = work.vectors().div_ceil(4).min(4);
        ScanTile::for_heads(work, most).fit(work, caps, 4, ScanTile::heads_bytes)
    }

    /// Tile of a `GatedDeltaNet` scan.
    pub fn delta(work: ScanStepSizes, caps: &DeviceCaps) -> ScanTile {
        let most = work.vectors().div_ceil(4).min(4);
        ScanTile::for_heads(work, most).fit(work, caps, 4, ScanTile::delta_bytes)
    }

    /// Selects a tile with two channels per thread if a head has enough channels, otherwise one.
    fn for_heads(work: ScanStepSizes, quads: usize) -> ScanTile {
        let one = ScanTile::new(work, quads, 1);
        match one.channels() < work.channels && one.lanes > 1 {
            true => ScanTile::new(work, quads, 2),
            false => one,
        }
    }

    /// Tile with at most four vectors of states per thread.
    fn new(work: ScanStepSizes, quads: usize, columns: usize) -> ScanTile {
        let quads = quads.next_power_of_two().min(4);
        ScanTile {
            lanes: work.vectors().div_ceil(quads).next_power_of_two(),
            quads,
            columns,
            fours: 1,
            staged: true,
            threads: THREADS,
        }
    }

    /// The tile that stages as many scan steps as fit into shared memory, up to `most` groups of
    /// four steps. `bytes` returns the shared memory that the kernel needs with a tile.
    fn fit(
        self,
        work: ScanStepSizes,
        caps: &DeviceCaps,
        most: usize,
        bytes: fn(&ScanTile) -> usize,
    ) -> ScanTile {
        let budget = match work.per_unit(self, caps) {
            // Each workgroup has a compute unit to itself, so it may use all the shared memory.
            0..=1 => caps.workgroup_bytes,
            _ => caps.device.multi_occupancy_shared_bytes,
        };
        let budget = budget as usize;
        let fits = |tile: &ScanTile| bytes(tile) <= budget;
        let fours = [8, 6, 4, 2, 1].into_iter().filter(|fours| *fours <= most);
        let staged = fours.map(|fours| ScanTile { fours, ..self }).find(fits);
        staged.unwrap_or(ScanTile {
            staged: false,
            ..self
        })
    }

    /// Shared memory of `states.wgsl` in bytes.
    fn bytes(&self) -> usize {
        let row = (self.lanes * self.quads) | 1;
        let rows = if self.staged { 4 * self.fours * row } else { 1 };
        let values = self.fours * self.channels();
        let sums = self.fours * self.columns * self.threads;
        (2 * rows + values + sums) * 16
    }

    /// Shared memory of `selective_scan.wgsl` in bytes, including the step sizes.
    pub fn selective_bytes(&self) -> usize {
        self.bytes() + self.fours * self.channels() * 16
    }

    /// Shared memory of `head_scan.wgsl` in bytes, including the steps of two blocks.
    pub fn heads_bytes(&self) -> usize {
        self.bytes() + 2 * self.fours * 16
    }

    /// Shared memory of `delta_scan.wgsl` in bytes: gates, partial and complete row products, and
    /// results per lane and in total.
    pub fn delta_bytes(&self) -> usize {
        let answers = self.columns * self.threads + self.channels();
        self.bytes() + (self.fours * (2 + 4) + self.threads + answers) * 16
    }

    /// Channels per workgroup.
    pub(super) fn channels(&self) -> usize {
        self.threads / self.lanes * self.columns
    }

    pub(super) fn consts(&self, dtype: u32, out: u32) -> [u32; 8] {
        [
            dtype,
            out,
            self.lanes as u32,
            self.quads as u32,
            self.columns as u32,
            self.fours as u32,
            self.staged.into(),
            self.threads as u32,
        ]
    }
}
