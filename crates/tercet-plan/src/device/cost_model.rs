//! What was measured, by the device that it was measured on: the only table of such numbers.
//!
//! There is one row so far, [`MEASURED`], of an H200 (132 units, fragments of 16 x 16 x 16 and subgroups of 32 invocations),
//! by `tercet tune` and `cargo bench --bench gpu`. Other devices take its rates, which count by the unit, in the shape in
//! which [`Device::divisions`](super::Device::divisions) and the methods here derive them: what counts is how ways compare.

/// How fast kernels are, and where ways cross.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rates {
    /// The device.
    pub(crate) of: &'static str,
    pub(crate) matrices: MatrixRates,
    pub(crate) tiles: TileRates,
    pub(crate) rows: RowRates,
    pub(crate) attention: AttentionRates,
    pub(crate) scans: ScanRates,
    /// Bytes that all units together read of memory in a second.
    pub(crate) bytes_per_s: f64,
    /// What a dispatch takes that waits for the one before, in seconds.
    pub(crate) dispatch_s: f64,
}

/// Products on cooperative matrices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MatrixRates {
    /// Of operands as they lie. Of equal cost the first is taken.
    pub(crate) divisions: &'static [Division],
    /// Of a right side that is gathered from windows: each element of it takes an instruction or more, so that many rows
    /// of a tile and few registers of an invocation pay. Measured with convolutions of 64 and 512 channels.
    pub(crate) windows: &'static [Division],
    /// Of weights that were laid out, in fragments that subgroups fill themselves.
    pub(crate) laid: &'static [Division],
    /// Of F32 as pairs of F16, each product of three of halves.
    pub(crate) pairs: &'static [Division],
    /// Subgroups of one workgroup that sum slices of `k` of such weights, by their number on a unit, and the most of them on a
    /// unit for which that was measured (128 and 197 rows times 768x768, 768x2304, 768x3072 and 3072x768, on an H100).
    pub(crate) sliced: Rate,
    pub(crate) most_sliced: usize,
    /// What the begin and the end of a tile take, as so much of `k`.
    pub(crate) start: f64,
    /// The same where sums of parts of `k` are stored in F32, and for windows.
    pub(crate) start_of_parts: f64,
    /// What a dispatch takes that waits for the one before, in products of a unit.
    pub(crate) dispatch: f64,
    /// What a partial sum takes, written and read, divided by the units, in products of a unit.
    pub(crate) per_sum: f64,
    /// Products of a unit in a second at rate 1.
    pub(crate) per_s: f64,
    /// How much longer products take whose rows do not begin with whole words of 16 bytes (14x14 windows of 256 channels: 36 of
    /// some 80 TFLOP/s, on an H100).
    pub(crate) broken_rows: f64,
    /// Windows for which laying out weights that change takes little beside the product, as each of them is read once; an estimate.
    pub(crate) many_windows: usize,
}

impl MatrixRates {
    /// Rows that fill a part of every division of weights that were laid out.
    pub(crate) fn tallest_laid_part(&self) -> u32 {
        self.laid.iter().map(|d| d.part[0]).max().unwrap_or(1)
    }
}

/// Products in tiles of 8 x 8 or 4 x 4 sums an invocation.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TileRates {
    /// Tiles of 8 x 8 sums by their invocations along rows and columns, of floats, in F32.
    pub(crate) floats: [TileRate; 4],
    /// The same of packed weights: each tile decodes them for itself, so that larger ones should pay; an estimate.
    pub(crate) blocks: [TileRate; 4],
    /// The same of windows.
    pub(crate) windows: [TileRate; 4],
    /// Estimates for kernels without vectors: 16 x 16 invocations with 8 x 8 sums each, with 4 x 4, and 8 x 8 with these.
    pub(crate) plain: [f64; 3],
    /// Invocations for each lane of a unit that keep it busy, of products (128 reach 0.79 of 128 lanes: 1024^3 in 67
    /// us), and of windows, whose gathering waits for memory more.
    pub(crate) busy: [f64; 2],
    /// What the begin and the end of a tile take, as so much of `k`.
    pub(crate) start: usize,
    /// What a dispatch takes that waits for the one before, in products of a busy unit.
    pub(crate) dispatch: f64,
    /// What a partial sum takes, divided by the units, in products of a busy unit.
    pub(crate) per_sum: f64,
    /// Products of a busy unit in a second at rate 1.
    pub(crate) per_s: f64,
}

/// A tile of so many invocations along rows and columns, and how fast it is beside others.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct TileRate {
    pub(crate) sides: [u32; 2],
    pub(crate) rate: f64,
}

/// Products of one to eight rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RowRates {
    /// How often as long as reading all weights once the variants take, of weights of floats and of packed ones: rows through
    /// shared memory, and in registers, with matrices (8 rows times 14336x4096: F16 36 and 49 us, Q4_0 20 and 22);
    pub(crate) streamed: [f64; 2],
    pub(crate) held: [f64; 2],
    /// one row of floats in registers;
    pub(crate) row: [f64; 2],
    /// rows in shared memory by vectors along k, by words along k, and with weights across k, or with a codebook, the
    /// latter two estimates;
    pub(crate) wide: [f64; 2],
    pub(crate) along: [f64; 2],
    pub(crate) across: [f64; 2],
    /// one row by strips of weights across k;
    pub(crate) strips: [f64; 2],
    /// one row in registers times packed weights as integers, and as floats (Q4_0 11.7 and 18 us).
    pub(crate) held_dots: f64,
    pub(crate) held_floats: f64,
    /// How much longer streamed rows take where a unit has few tiles, and integers than floats where teams have one column
    /// each (Q4_K 2048x2048: 6.24 and 5.92 us).
    pub(crate) few_tiles: f64,
    pub(crate) few_columns: f64,
    /// Tiles of a unit that make up for rows that every workgroup brings through shared memory.
    pub(crate) streamed_tiles: usize,
    /// Slices of k up to which held rows leave most of a workgroup without work.
    pub(crate) streamed_slices: usize,
    /// The least rows for which all weights of a product are decoded first; an estimate.
    pub(crate) decoded_rows: u32,
    /// Rows up to which packed weights are decoded for each eight again, where no kernel reads rows that are laid out, instead of by tiles
    /// (a model of 8 G weights in Q4_K, without matrices: 8 rows 14 ms, 16 to 64 by tiles 60).
    pub(crate) block_rows: u32,
    /// Rows up to which kernels read those that are laid out, instead of decoding all weights first (a model of 8 G weights in Q4_K: 64 rows 14 ms, 128 25, 256 47; 512
    /// with decoded weights 45).
    pub(crate) laid_rows: u32,
    /// Steps whose rows are under way in these kernels, for 16 rows and for more (products of an 8B layer: 16 rows 465 us with 4,
    /// 494 with 2, 518 with 1; 32 rows 713 with 1, 746 with 2).
    pub(crate) laid_ahead: [u32; 2],
    /// Rows with matrices of their own up to which each is multiplied by itself; an estimate.
    pub(crate) keyed_rows: u32,
}

/// Attention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionRates {
    /// How often as long as reading keys and values once one query takes (F16, 32 / 8 heads of 128, 4096 keys: 7, 15 and 21
    /// us beside an empty dispatch): in pieces on matrices, a head at a time, by ranges of keys.
    pub(crate) one_query: [f64; 3],
    /// How often as long as products at rate 1 many queries take (8 x 16 heads of 64, 1024 x 1024): on matrices (232 us) and
    /// as pairs (545 us), by matrices' rate; in large tiles (1.39 ms) and in others, an estimate, by that of tiles; on matrices that
    /// invocations fill, by matrices' rate.
    pub(crate) many_queries: [f64; 5],
    /// Keys up to which many queries are faster on matrices that invocations fill (heads of 64, on an H100: 64 x 8 heads of 77, causal, 10
    /// us where 21; 32 x 12 of 197 41 where 48; 8 x 16 of 1024 205 where 181).
    pub(crate) lane_keys: usize,
    /// Keys and values of a head, in bytes, that one workgroup takes in less time than putting ranges together does:
    /// where all keys are there, and where a run says how many are, which may be far fewer.
    pub(crate) alone_bytes: [usize; 2],
    /// Keys and values, in bytes, counted for each query head, that workgroups of one query head each read in less time than
    /// it takes to share them between query heads and to put ranges together in kernels of their own. An estimate.
    pub(crate) token_bytes: usize,
    /// Blocks of keys of a query head that one workgroup takes in less time than several, which put sums together after them: by what
    /// a block and putting together take, some 1.2 and 2.5 us.
    pub(crate) token_blocks: u32,
    /// Keys up to which one workgroup for each query head takes no longer than pieces on matrices.
    pub(crate) few_keys: usize,
    /// The least rows of a key head times keys for which F32 as pairs of F16 takes three dispatches in a row: 64 x 64
    /// lose 10 us, 128 x 128 win in models.
    pub(crate) pairs: usize,
    /// The least keys of a part where several workgroups share the keys of a tile of rows: what fewer take is less than joining
    /// parts does (6.5 us of an 8B's 65 rows).
    pub(crate) part_keys: u32,
}

/// Scans over states: states that a unit takes through a step in a second.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScanRates {
    /// Of `SelectiveScan` with many channels and with few (4096 channels of 16 states, 4096 steps, F32: 780 us for a batch of
    /// 8, 215 for one).
    pub(crate) channels: [f64; 2],
    /// Of `Mamba2` and `GatedDeltaNet`, step by step (64 heads of 64 with 128 states, 32 of 128, F32: 454 and 938 us), and in
    /// chunks on matrices (F16: 156 and 295 us).
    pub(crate) steps: [f64; 2],
    pub(crate) chunks: [f64; 2],
}

/// A division of a product: subgroups of a tile, elements of a subgroup's part, elements of `k` in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Division {
    pub(crate) subgroups: [u32; 2],
    pub(crate) part: [u32; 2],
    pub(crate) depth: u32,
    pub(crate) stages: u32,
    pub(crate) rate: Rate,
}

impl Division {
    /// The same with parts of half the size along both axes, each number of which is multiplied half as often.
    pub(super) fn half(self) -> Division {
        Division {
            part: self.part.map(|n| n / 2),
            rate: Rate {
                alone: self.rate.alone / 2.0,
                full: self.rate.full / 2.0,
            },
            ..self
        }
    }

    /// True if both divide a product alike.
    pub(super) fn is_like(&self, other: &Division) -> bool {
        let of = |d: &Division| (d.subgroups, d.part, d.depth, d.stages);
        of(self) == of(other)
    }
}

/// How fast a unit is with workgroups of a division, in parts of what the first of a table reaches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate {
    /// With one workgroup.
    pub(crate) alone: f64,
    /// With as many as it takes.
    pub(crate) full: f64,
}

impl Rate {
    /// Workgroups that it takes.
    pub(crate) fn together(self) -> usize {
        (self.full / self.alone).ceil().max(1.0) as usize
    }

    /// The same on a unit that runs so many at most.
    pub(crate) fn with_room_for(self, groups: u32) -> Rate {
        Rate {
            full: self.full.min(f64::from(groups) * self.alone),
            ..self
        }
    }

    /// What so many workgroups on one unit take, in units of one at rate 1.
    pub(crate) fn time(self, groups: usize) -> f64 {
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

const fn tile(sides: [u32; 2], rate: f64) -> TileRate {
    TileRate { sides, rate }
}

const fn tiles(rates: [f64; 4]) -> [TileRate; 4] {
    [
        tile([16, 16], rates[0]),
        tile([8, 16], rates[1]),
        tile([16, 8], rates[2]),
        tile([8, 8], rates[3]),
    ]
}

/// An H200, through Vulkan.
pub(crate) static MEASURED: Rates = Rates {
    of: "H200",
    matrices: MatrixRates {
        divisions: &[
            one([2, 2], [64, 64], 32, [0.6, 1.0]), // 128 x 128 x 32, 273 TFLOP/s
            two([2, 4], [64, 64], 16, [1.05, 1.05]), // 128 x 256 x 16
            two([4, 2], [64, 64], 16, [0.9, 0.9]), // 256 x 128 x 16
            one([2, 2], [64, 64], 64, [0.98, 0.91]),
            one([4, 2], [64, 64], 32, [1.0, 0.93]),
            one([2, 4], [64, 64], 32, [1.05, 0.96]),
            one([1, 2], [64, 64], 32, [0.5, 0.7]),
            one([2, 1], [64, 64], 32, [0.5, 0.7]),
            one([2, 2], [48, 64], 32, [0.8, 0.85]),
            one([2, 4], [64, 32], 32, [0.75, 0.89]),
            one([2, 4], [32, 32], 32, [0.54, 0.63]),
            one([2, 4], [32, 32], 64, [0.75, 0.62]),
            one([2, 2], [32, 64], 32, [0.61, 0.6]),
            one([2, 2], [64, 32], 32, [0.61, 0.71]),
            one([2, 2], [64, 32], 64, [0.72, 0.6]),
            one([2, 2], [32, 32], 32, [0.4, 0.58]),
            one([2, 2], [32, 32], 64, [0.52, 0.61]),
            one([2, 2], [32, 32], 128, [0.5, 0.5]),
            one([2, 2], [16, 32], 64, [0.23, 0.4]),
            one([2, 2], [16, 32], 128, [0.25, 0.3]),
            one([2, 2], [32, 16], 128, [0.25, 0.3]),
        ],
        windows: &[
            one([4, 2], [64, 64], 32, [0.82, 0.99]),
            one([2, 2], [64, 64], 32, [0.53, 0.86]),
            one([2, 2], [64, 32], 32, [0.35, 0.76]),
            one([2, 2], [64, 32], 64, [0.44, 0.53]),
            one([2, 4], [32, 32], 32, [0.34, 0.56]),
            one([2, 4], [32, 32], 64, [0.39, 0.47]),
            one([2, 2], [32, 32], 32, [0.17, 0.55]),
            one([2, 2], [32, 32], 64, [0.28, 0.51]),
            one([2, 2], [16, 32], 32, [0.1, 0.38]), // an estimate
            one([2, 2], [16, 32], 64, [0.12, 0.39]),
        ],
        laid: &[
            // 6,304 rows times 768x768 / 3072x768 / 768x2304 on an H100: 23.3 / 87 / 71 us, 24.3 / 87 / 70 and 28.3 / 102 / 70.
            one([4, 2], [40, 64], 32, [1.46, 1.46]),
            one([2, 2], [40, 64], 32, [0.72, 1.44]),
            one([2, 2], [48, 64], 32, [0.73, 1.46]),
            one([1, 1], [16, 64], 32, [0.15, 0.45]),
        ],
        pairs: &[
            one([2, 2], [64, 32], 16, [0.15, 0.305]), // 128 x 64 x 16, 83 TFLOP/s
            one([2, 2], [64, 64], 16, [0.23, 0.317]),
            one([2, 2], [32, 32], 16, [0.1, 0.27]),
        ],
        sliced: Rate {
            alone: 0.1,
            full: 0.75,
        },
        most_sliced: 12,
        start: 90.0,
        start_of_parts: 220.0,
        dispatch: 3.4e6,
        per_sum: 500.0,
        per_s: 1.03e12,
        broken_rows: 2.0,
        many_windows: 1024,
    },
    tiles: TileRates {
        // 35.9, 40.1, 35 and 44.2 TFLOP/s at 4096^3.
        floats: tiles([0.81, 0.91, 0.8, 1.0]),
        blocks: tiles([1.0, 0.95, 0.95, 0.85]),
        windows: tiles([1.0, 0.95, 0.95, 0.85]),
        plain: [0.55, 0.45, 0.35],
        busy: [1.25, 2.0],
        start: 48,
        dispatch: 4e5,
        per_sum: 60.0,
        per_s: 1.67e11,
    },
    rows: RowRates {
        streamed: [1.3, 2.4],
        held: [1.65, 2.65],
        row: [1.3, 1.3],
        wide: [1.8, 3.0],
        along: [2.5, 4.0],
        across: [3.0, 4.0],
        strips: [1.5, 1.5],
        held_dots: 1.4,
        held_floats: 2.2,
        few_tiles: 1.3,
        few_columns: 1.05,
        streamed_tiles: 4,
        streamed_slices: 4,
        decoded_rows: 64,
        block_rows: 32,
        laid_rows: 160,
        laid_ahead: [4, 1],
        keyed_rows: 512,
    },
    attention: AttentionRates {
        one_query: [1.75, 3.5, 5.0],
        many_queries: [1.85, 4.3, 1.8, 2.2, 1.6],
        lane_keys: 384,
        alone_bytes: [256 << 10, 1 << 20],
        token_bytes: 512 << 20,
        token_blocks: 4,
        few_keys: 512,
        pairs: 8192,
        part_keys: 256,
    },
    scans: ScanRates {
        channels: [2.09e10, 9.5e9],
        steps: [3.58e10, 1.73e10],
        chunks: [1.04e11, 5.5e10],
    },
    bytes_per_s: 4.0e12,
    dispatch_s: 2.5e-6,
};
