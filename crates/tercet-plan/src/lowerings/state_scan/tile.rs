//! How the states of channels lie in invocations, and steps in shared memory.
//!
//! What is near a limit on GPUs that were measured is shared memory: a vector of four floats takes as long as four
//! of one, even where all invocations read the same. Rows are read once for all channels of an invocation, and
//! sums are exchanged for all its states, so that an invocation should have several of both; but as many
//! invocations as there are lanes should have any.

use crate::caps::Caps;

/// Invocations of a workgroup.
const THREADS: usize = 128;

/// The same where channels are few: two workgroups on a unit do not wait for each other.
const FEW_THREADS: usize = 64;

/// The most states of a channel: four vectors of four in each invocation of half a workgroup.
pub(super) const MOST_STATES: usize = 1024;

/// What there is to do at each step: rows of channels that have states.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Entries of the batch, or heads of all of them.
    pub(super) rows: usize,
    /// Channels of each.
    pub(super) channels: usize,
    /// States of each.
    pub(super) states: usize,
}

impl Work {
    /// Vectors of four states of a channel.
    fn vectors(self) -> usize {
        self.states.div_ceil(4).max(1)
    }

    /// Workgroups for each unit of the device, rounded up.
    fn per_unit(self, tile: Tile, caps: &Caps) -> usize {
        let units = caps.units();
        let tiles = self.channels.div_ceil(tile.channels());
        self.rows.saturating_mul(tiles).div_ceil(units)
    }
}

/// A tile of a workgroup: the constants of `states.wgsl`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tile {
    lanes: usize,
    quads: usize,
    columns: usize,
    fours: usize,
    staged: bool,
    threads: usize,
}

impl Tile {
    /// Whether channels of `SelectiveScan` are so few that workgroups should be small.
    pub(super) fn is_for_few(work: Work, caps: &Caps) -> bool {
        work.per_unit(Tile::of_few(work), caps) <= 3
    }

    fn of_few(work: Work) -> Tile {
        let few = Tile::of(work, work.vectors().div_ceil(16), 1);
        match 2 * few.lanes <= FEW_THREADS {
            true => Tile {
                threads: FEW_THREADS,
                ..few
            },
            false => few,
        }
    }

    /// Of `SelectiveScan` with few channels.
    pub(super) fn few_channels(work: Work, caps: &Caps, is_narrow: bool) -> Tile {
        // By what was measured: 16 bits want as many words on their way as F32 has, but no more.
        let most = if is_narrow { 6 } else { 4 };
        Tile::of_few(work).fit(work, caps, most, Tile::selective_bytes)
    }

    /// Of `SelectiveScan` with many.
    pub(super) fn many_channels(work: Work, caps: &Caps) -> Tile {
        let quads = work.vectors().div_ceil(16).max(2);
        Tile::of(work, quads, 1).fit(work, caps, 2, Tile::selective_bytes)
    }

    /// Of `Mamba2`.
    pub(super) fn heads(work: Work, caps: &Caps) -> Tile {
        let most = work.vectors().div_ceil(4).min(4);
        Tile::of_heads(work, most).fit(work, caps, 4, Tile::heads_bytes)
    }

    /// Of `GatedDeltaNet`.
    pub(super) fn delta(work: Work, caps: &Caps) -> Tile {
        let most = work.vectors().div_ceil(4).min(4);
        Tile::of_heads(work, most).fit(work, caps, 4, Tile::delta_bytes)
    }

    /// Two channels an invocation where a head has as many.
    fn of_heads(work: Work, quads: usize) -> Tile {
        let one = Tile::of(work, quads, 1);
        match one.channels() < work.channels && one.lanes > 1 {
            true => Tile::of(work, quads, 2),
            false => one,
        }
    }

    /// Up to four vectors of states an invocation.
    fn of(work: Work, quads: usize, columns: usize) -> Tile {
        let quads = quads.next_power_of_two().min(4);
        Tile {
            lanes: work.vectors().div_ceil(quads).next_power_of_two(),
            quads,
            columns,
            fours: 1,
            staged: true,
            threads: THREADS,
        }
    }

    /// As many steps as fit the shared memory, up to `most` fours; `bytes` is what a kernel takes.
    fn fit(self, work: Work, caps: &Caps, most: usize, bytes: fn(&Tile) -> usize) -> Tile {
        let budget = match work.per_unit(self, caps) {
            // It has a unit for itself.
            0..=1 => caps.workgroup_bytes,
            _ => caps.device.several_bytes,
        };
        let budget = budget as usize;
        let fits = |tile: &Tile| bytes(tile) <= budget;
        let fours = [8, 6, 4, 2, 1].into_iter().filter(|fours| *fours <= most);
        let staged = fours.map(|fours| Tile { fours, ..self }).find(fits);
        staged.unwrap_or(Tile {
            staged: false,
            ..self
        })
    }

    /// Shared memory of `states.wgsl`.
    fn bytes(&self) -> usize {
        let row = (self.lanes * self.quads) | 1;
        let rows = if self.staged { 4 * self.fours * row } else { 1 };
        let values = self.fours * self.channels();
        let sums = self.fours * self.columns * self.threads;
        (2 * rows + values + sums) * 16
    }

    /// Shared memory of `selective_scan.wgsl`: steps' sizes beside the values.
    fn selective_bytes(&self) -> usize {
        self.bytes() + self.fours * self.channels() * 16
    }

    /// Of `head_scan.wgsl`: steps of two blocks.
    fn heads_bytes(&self) -> usize {
        self.bytes() + 2 * self.fours * 16
    }

    /// Of `delta_scan.wgsl`: gates, products of rows in parts and whole, answers of lanes and of all.
    fn delta_bytes(&self) -> usize {
        let answers = self.columns * self.threads + self.channels();
        self.bytes() + (self.fours * (2 + 4) + self.threads + answers) * 16
    }

    /// Channels of a workgroup.
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

#[cfg(test)]
mod tests {
    use super::*;

    type Made = (fn(Work, &Caps) -> Tile, fn(&Tile) -> usize);

    #[test]
    fn tiles_have_all_states_and_fit_the_shared_memory() {
        let made: [Made; 5] = [
            (
                |w, c| Tile::few_channels(w, c, false),
                Tile::selective_bytes,
            ),
            (|w, c| Tile::few_channels(w, c, true), Tile::selective_bytes),
            (Tile::many_channels, Tile::selective_bytes),
            (Tile::heads, Tile::heads_bytes),
            (Tile::delta, Tile::delta_bytes),
        ];
        let works = (0..=MOST_STATES).flat_map(|states| {
            [(1, 3), (64, 64), (999, 4096)].map(|(rows, channels)| Work {
                rows,
                channels,
                states,
            })
        });
        for work in works {
            for caps in [Caps::browser(), Caps::h200()] {
                for (of, bytes) in made {
                    let tile = of(work, &caps);
                    assert!(4 * tile.lanes * tile.quads >= work.states, "{tile:?}");
                    assert!(2 * tile.lanes <= tile.threads, "{tile:?} has odd channels");
                    assert!(bytes(&tile) <= caps.workgroup_bytes as usize, "{tile:?}");
                }
            }
        }
    }
}
