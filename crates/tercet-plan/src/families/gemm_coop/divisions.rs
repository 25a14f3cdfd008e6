//! Divisions of products on cooperative matrices that are tried, and how fast they are.

/// A division in units of fragments: subgroups of a tile, fragments of a subgroup, fragments of `k`.
pub(super) struct Division {
    pub(super) subgroups: [u32; 2],
    pub(super) part: [u32; 2],
    pub(super) depth: u32,
    pub(super) stages: u32,
    pub(super) rate: Rate,
}

/// How fast a unit of the device is with workgroups of a tiling, in parts of what the first of
/// [`DIVISIONS`] reaches; measured on a GPU of 132 units by `tercet tune`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Rate {
    /// With one workgroup.
    pub(super) alone: f64,
    /// With as many as it takes.
    pub(super) full: f64,
}

impl Rate {
    /// What so many workgroups on one unit take, in units of one at rate 1.
    pub(super) fn time(self, groups: usize) -> f64 {
        let rate = match groups {
            0 | 1 => self.alone,
            n => (n as f64 * self.alone).min(self.full),
        };
        groups as f64 / rate
    }
}

const fn one(subgroups: [u32; 2], part: [u32; 2], depth: u32, rate: [f64; 2]) -> Division {
    Division {
        subgroups,
        part,
        depth,
        stages: 1,
        rate: Rate {
            alone: rate[0],
            full: rate[1],
        },
    }
}

const fn two(subgroups: [u32; 2], part: [u32; 2], depth: u32, rate: [f64; 2]) -> Division {
    Division {
        stages: 2,
        ..one(subgroups, part, depth, rate)
    }
}

/// Of equal cost the first is taken. The comments are for fragments of 16 x 16 x 16.
pub(super) const DIVISIONS: &[Division] = &[
    one([2, 2], [4, 4], 2, [0.6, 1.0]),   // 128 x 128 x 32
    two([2, 4], [4, 4], 1, [1.05, 1.05]), // 128 x 256 x 16
    two([4, 2], [4, 4], 1, [0.9, 0.9]),   // 256 x 128 x 16
    one([2, 2], [4, 4], 4, [0.98, 0.91]), // 128 x 128 x 64
    one([4, 2], [4, 4], 2, [1.0, 0.93]),  // 256 x 128 x 32
    one([2, 4], [4, 4], 2, [1.05, 0.96]), // 128 x 256 x 32
    one([1, 2], [4, 4], 2, [0.5, 0.7]),   // 64 x 128 x 32 of 64 x 64
    one([2, 1], [4, 4], 2, [0.5, 0.7]),
    one([2, 2], [3, 4], 2, [0.8, 0.85]),  // 96 x 128 x 32
    one([2, 4], [4, 2], 2, [0.75, 0.89]), // 128 x 128 x 32 of 64 x 32
    one([2, 4], [2, 2], 2, [0.54, 0.63]), // 64 x 128 x 32 of 32 x 32
    one([2, 4], [2, 2], 4, [0.75, 0.62]),
    one([2, 2], [2, 4], 2, [0.61, 0.6]),  // 64 x 128 x 32
    one([2, 2], [4, 2], 2, [0.61, 0.71]), // 128 x 64 x 32
    one([2, 2], [4, 2], 4, [0.72, 0.6]),
    one([2, 2], [2, 2], 2, [0.4, 0.58]), // 64 x 64 x 32
    one([2, 2], [2, 2], 4, [0.52, 0.61]),
    one([2, 2], [2, 2], 8, [0.5, 0.5]),
    one([2, 2], [1, 2], 4, [0.23, 0.4]), // 32 x 64 x 64
    one([2, 2], [1, 2], 8, [0.25, 0.3]),
    one([2, 2], [2, 1], 8, [0.25, 0.3]), // 64 x 32 x 128
];

/// As [`DIVISIONS`], of products whose right side is gathered from windows: each element of it takes an
/// instruction or more, so that many rows of a tile and few registers of an invocation pay. Measured on the
/// same GPU with convolutions of 64 and 512 channels; `32 x 64 x 32` is an estimate.
pub(super) const WINDOW_DIVISIONS: &[Division] = &[
    one([4, 2], [4, 4], 2, [0.82, 0.99]), // 256 x 128 x 32
    one([2, 2], [4, 4], 2, [0.53, 0.86]), // 128 x 128 x 32
    one([2, 2], [4, 2], 2, [0.35, 0.76]), // 128 x 64 x 32
    one([2, 2], [4, 2], 4, [0.44, 0.53]),
    one([2, 4], [2, 2], 2, [0.34, 0.56]), // 64 x 128 x 32 of 32 x 32
    one([2, 4], [2, 2], 4, [0.39, 0.47]),
    one([2, 2], [2, 2], 2, [0.17, 0.55]), // 64 x 64 x 32
    one([2, 2], [2, 2], 4, [0.28, 0.51]),
    one([2, 2], [1, 2], 2, [0.1, 0.38]), // 32 x 64 x 32
    one([2, 2], [1, 2], 4, [0.12, 0.39]),
];

/// As [`DIVISIONS`], in fragments of 8 x 16 x 16 that subgroups fill themselves from weights that were laid out: 64
/// columns and 32 of `k`.
pub(super) const LAID: &[Division] = &[
    one([2, 2], [6, 4], 2, [0.6, 1.17]),  // 96 x 128
    one([1, 1], [2, 4], 2, [0.15, 0.45]), // 16 x 64
];

/// Tiles and invocations of kernels of a workgroup's matrices.
pub(super) const BLOCKS: &[([u32; 3], u32)] = &[
    ([128, 256, 64], 256),
    ([256, 128, 64], 256),
    ([128, 256, 32], 256),
    ([256, 128, 32], 256),
    ([128, 128, 64], 256),
    ([128, 128, 64], 128),
    ([128, 128, 32], 128),
    ([64, 128, 64], 128),
    ([128, 64, 64], 128),
    ([64, 64, 64], 128),
];
