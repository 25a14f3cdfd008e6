//! Measured constants of the cost model, one set per measured device. No other file contains
//! constants that were measured on a device.
//!
//! The table has one row, [`MEASURED`]: an H200 with 132 SMs, fragments of 16 x 16 x 16 and
//! subgroups of 32. The rates of [`MEASURED`] were determined with `tercet tune` and `cargo bench
//! --bench gpu`. Kernel rates are per compute unit. For other devices, these rates are adapted by
//! [`DeviceModel::divisions`](super::DeviceModel::divisions) and the methods of this file.
//! Selection only compares the costs of kernel variants, so only the ratios of the rates matter.

/// Cost model: rates of kernels, and thresholds at which another kernel variant becomes faster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CostModel {
    /// Name of the device on which the rates were measured.
    pub(crate) of: &'static str,
    pub(crate) matrices: CoopGemmCosts,
    pub(crate) tiles: TileRates,
    pub(crate) rows: GemvCosts,
    pub(crate) attention: AttentionRates,
    pub(crate) scans: ScanRates,
    /// Memory bandwidth of the whole device, in bytes per second.
    pub(crate) bytes_per_s: f64,
    /// Fixed time in seconds of a dispatch that waits for the previous dispatch.
    pub(crate) dispatch_s: f64,
}

/// Cost model of matmuls on cooperative matrices.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CoopGemmCosts {
    /// Tile configurations for GEMMs whose operands are not prepacked. Among tile configurations of
    /// equal cost, the first one is selected.
    pub(crate) divisions: &'static [TileConfig],
    /// Tile configurations for implicit GEMM, whose right operand is gathered from convolution
    /// windows. Each gathered element takes an instruction or more, so tall tiles with few
    /// registers per thread are fastest. The implicit GEMM rates were measured with convolutions of
    /// 64 and 512 channels.
    pub(crate) windows: &'static [TileConfig],
    /// Tile configurations for prepacked weights in mma-style fragments.
    pub(crate) prepacked: &'static [TileConfig],
    /// Tile configurations for F32 emulated with split-F16; each product takes three F16 products
    /// (3xTF32 scheme).
    pub(crate) split_f16: &'static [TileConfig],
    /// Tile configurations for cooperative matrices in WGSL and right operands that are contiguous
    /// along `k`. Subgroup tiles have two or four fragments in each direction, and one stage.
    pub(crate) wgsl_k_major: &'static [TileConfig],
    /// The same, for right operands that are contiguous along `n`.
    pub(crate) wgsl_n_major: &'static [TileConfig],
    /// Slowdown of tiles in WGSL that dequantize their weights; an estimate.
    pub(crate) wgsl_dequant: f64,
    /// Tile configurations for the grouped GEMM of experts, which dequantizes weights while it
    /// stages them. The first configuration that the device supports is selected; its rate is unused.
    /// Measured with a layer of 128 experts in Q4_K (gate and up 2048x768, down 768x2048; 8 experts
    /// per token) and 512 and 2048 tokens: the first one takes 0.71 and 1.78 ms, the second one 0.69
    /// and 2.00 ms. The fastest of twelve take 0.69 and 1.73 ms.
    pub(crate) grouped: &'static [TileConfig],
    /// Rates of matmuls with prepacked weights and split-K within a workgroup, by the number of
    /// subgroups on a compute unit. `max_sliced` is the largest number of subgroups that was
    /// measured (128 and 197 rows times 768x768, 768x2304, 768x3072 and 3072x768, on an H100).
    pub(crate) sliced: TileThroughput,
    pub(crate) max_sliced: usize,
    /// Start-up and epilogue cost of a tile, expressed as the number of additional `k` elements
    /// that would cost the same.
    pub(crate) start: f64,
    /// Start-up and epilogue cost of a tile that stores F32 partial sums (split-K), and of a tile
    /// of implicit GEMM, in additional `k` elements.
    pub(crate) start_of_parts: f64,
    /// Fixed cost of a dispatch that waits for the previous dispatch, as the number of
    /// multiply-adds that one compute unit performs in that time.
    pub(crate) dispatch: f64,
    /// Cost of writing and reading one split-K partial sum per compute unit, in multiply-adds of
    /// one unit.
    pub(crate) per_sum: f64,
    /// Multiply-adds per second of one compute unit whose tiles have rate 1.
    pub(crate) per_s: f64,
    /// Slowdown of matmuls whose rows are not 16-byte aligned (14x14 windows of 256 channels on an
    /// H100: 36 instead of about 80 TFLOP/s).
    pub(crate) broken_rows: f64,
    /// Minimum number of convolution windows for which repacking non-constant weights is cheap
    /// relative to the GEMM, which uses every weight once per window; an estimate.
    pub(crate) min_windows_for_prepack: usize,
}

impl CoopGemmCosts {
    /// Largest number of rows (M) of a subgroup tile among the configurations for prepacked
    /// weights.
    pub(crate) fn max_prepacked_tile_m(&self) -> u32 {
        self.prepacked
            .iter()
            .map(|d| d.subgroup_tile[0])
            .max()
            .unwrap_or(1)
    }
}

/// Cost model of tiled matmuls without cooperative matrices; each thread accumulates 8 x 8 or 4 x 4
/// sums.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TileRates {
    /// Rates of F32 tiles with 8 x 8 sums per thread; one entry per number of threads in each
    /// direction of the tile.
    pub(crate) floats: [TileRate; 4],
    /// Rates of F32 tiles for quantized weights; an estimate. Every tile dequantizes the weights
    /// that it reads, so larger tiles should be faster.
    pub(crate) blocks: [TileRate; 4],
    /// Rates of F32 tiles for implicit GEMM on convolution windows.
    pub(crate) windows: [TileRate; 4],
    /// Estimated rates of kernels without vector loads: 16 x 16 threads with 8 x 8 sums each, 16 x
    /// 16 threads with 4 x 4 sums, and 8 x 8 threads with 4 x 4 sums.
    pub(crate) plain: [f64; 3],
    /// Threads per hardware lane that saturate a compute unit: for matmuls (one thread per lane
    /// reaches 0.79 of the peak: 1024^3 in 67 us), and for implicit GEMM, which has longer memory
    /// stalls.
    pub(crate) saturating_threads: [f64; 2],
    /// Start-up and epilogue cost of a tile, expressed as the number of additional `k` elements
    /// that would cost the same.
    pub(crate) start: usize,
    /// Fixed cost of a dispatch that waits for the previous dispatch, as the number of
    /// multiply-adds that a saturated compute unit performs in that time.
    pub(crate) dispatch: f64,
    /// Cost of writing and reading one split-K partial sum per compute unit, in multiply-adds of a
    /// saturated unit.
    pub(crate) per_sum: f64,
    /// Multiply-adds per second of one saturated compute unit whose tiles have rate 1.
    pub(crate) per_s: f64,
}

/// A tile shape, as the number of threads in each direction, with the relative rate of tiles of
/// this shape.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileRate {
    /// Number of threads in each direction.
    pub sides: [u32; 2],
    /// Relative rate.
    pub rate: f64,
}

/// Cost model of GEMV and skinny GEMM. Each factor is the kernel's time divided by the time of
/// reading the weights once: first for float, then for quantized weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GemvCosts {
    /// Factors of skinny GEMM on cooperative matrices, with activation rows staged through shared
    /// memory (`shared_mem`) or kept in registers (`register_resident`). Measured with 8 rows times
    /// 14336x4096 weights: `shared_mem` and `register_resident` take 36 and 49 us for F16 weights,
    /// 20 and 22 us for Q4_0.
    pub(crate) shared_mem: [f64; 2],
    pub(crate) register_resident: [f64; 2],
    /// Factors of GEMV kernels that keep one float activation row in registers.
    pub(crate) row: [f64; 2],
    /// Factors of GEMV with activation rows in shared memory: vector loads of weights contiguous
    /// along k (`wide`), word loads of such weights (`along`), and weights contiguous along n or
    /// with a codebook (`across`). The factors `along` and `across` are estimates.
    pub(crate) wide: [f64; 2],
    pub(crate) along: [f64; 2],
    pub(crate) across: [f64; 2],
    /// Factors of the GEMV kernel that multiplies one activation row by column strips of weights
    /// contiguous along n.
    pub(crate) strips: [f64; 2],
    /// Factors of GEMV with one activation row in registers and quantized weights: by int8 dot
    /// products (`register_int_dot`) and in float arithmetic (`register_float`). Measured with Q4_0
    /// weights: 11.7 us with int8 dot products, 18 us in float arithmetic.
    pub(crate) register_int_dot: f64,
    pub(crate) register_float: f64,
    /// Slowdown of kernels that stage activation rows through shared memory if a compute unit has
    /// few tiles (`few_tiles`). Slowdown of int8 relative to float arithmetic if each group of
    /// threads computes only one column (`few_columns`; Q4_K weights of 2048x2048: 6.24 us with
    /// int8, 5.92 us with floats).
    pub(crate) few_tiles: f64,
    pub(crate) few_columns: f64,
    /// Minimum number of tiles per compute unit that makes it profitable to stage the activation
    /// rows through shared memory in each workgroup.
    pub(crate) streamed_tiles: usize,
    /// Maximum number of slices of k for which kernels with activation rows in registers leave most
    /// threads of a workgroup idle.
    pub(crate) streamed_slices: usize,
    /// Minimum number of activation rows for which all weights of a matmul are dequantized in a
    /// separate step first; an estimate.
    pub(crate) min_rows_for_dequant: u32,
    /// Maximum number of activation rows for the kernel that dequantizes the weights once per block
    /// of eight rows; beyond it, the tiled kernel is faster. The limit applies if no kernel
    /// supports prepacked activation rows. Measured without cooperative matrices on a Q4_K model
    /// with 8 G weights: 8 rows take 14 ms, and 16 to 64 rows with the tiled kernel take 60 ms.
    pub(crate) block_rows: u32,
    /// Maximum number of rows for the quantized matmul kernels with prepacked activation rows;
    /// beyond it, all weights are dequantized in a separate step first. Measured on a Q4_K model
    /// with 8 G weights: 64 rows take 11 ms, 128 rows 19 ms, 256 rows 32 ms. If the weights are
    /// dequantized first, 256 rows take 25 ms.
    pub(crate) max_prepacked_rows: u32,
    /// The same maximum for weights that are too large to be dequantized in a separate step.
    pub(crate) max_prepacked_rows_of_large_weights: u32,
    /// Maximum number of rows for which kernels hold prepacked activations in registers instead of
    /// shared memory. Measured with 16 rows on 8 layers of an 8B: 10,800 tokens a second in registers, 9,250 in
    /// shared memory.
    pub(crate) max_register_rows: u32,
    /// Number of k steps by which kernels prefetch prepacked activation rows into registers. Measured on the matmuls
    /// of an 8B layer with 16 rows: 465 us at distance 4, 494 us at 2, 518 us at 1.
    pub(crate) prepacked_prefetch: u32,
    /// Number of subgroups that saturates a compute unit in kernels with prepacked activation rows in shared memory.
    /// Measured with 32 rows and gate weights of an 8B: 7 subgroups take 64 us, 14 take 66 to 74 us.
    pub(crate) min_prepacked_subgroups: u32,
    /// Maximum number of token rows for which every row is multiplied separately by the weight
    /// matrix of its expert (mixture of experts); an estimate.
    pub(crate) keyed_rows: u32,
    /// The same per expert, if cooperative matrices multiply more rows. Measured with 128 experts: 256
    /// rows take 0.65 ms alone and 0.79 ms in groups, 512 rows 1.25 and 0.87 ms.
    pub(crate) keyed_rows_per_expert: u32,
    /// The same for any number of experts, so that rows of decoding and of drafts are always
    /// multiplied alone.
    pub(crate) min_keyed_rows: u32,
}

/// Cost model of attention.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionRates {
    /// Time of single-query attention divided by the time of reading keys and values once, for
    /// three kernels: split-KV on cooperative matrices, one head per workgroup, and separate
    /// workgroups per key range. Measured with F16, 32 query heads and 8 KV heads of size 128, and
    /// 4096 keys: 7, 15 and 21 us above an empty dispatch.
    pub(crate) single_query: [f64; 3],
    /// Time of many-query attention divided by the time of its matmuls at rate 1. Entries 0, 1 and
    /// 4 are relative to the matmul rate of cooperative matrices: opaque matrices (232 us),
    /// split-F16 (545 us), mma-style fragments. Entries 2 and 3 are relative to the rate of tiled
    /// F32 matmuls: large tiles (1.39 ms), and small tiles, which is an estimate. Entry 5, for
    /// matrices in WGSL, is an estimate relative to the rate of cooperative matrices. The attention
    /// times were measured with batch 8, 16 heads of size 64, 1024 queries and 1024 keys.
    pub(crate) many_queries: [f64; 6],
    /// Maximum number of keys for which many-query attention is faster with mma-style fragments
    /// than with opaque cooperative matrices. Measured with heads of size 64 on an H100, mma-style
    /// against opaque: 64 x 8 heads with 77 causal keys take 10 against 21 us; 32 x 12 heads with
    /// 197 keys take 41 against 48 us; 8 x 16 heads with 1024 keys take 205 against 181 us.
    pub(crate) lane_keys: usize,
    /// Maximum size in bytes of a head's keys and values for which one workgroup is faster than
    /// split-KV. The first number applies if the key count is fixed. The second number applies if
    /// the KV length is known only at run time and may be far smaller than its bound.
    pub(crate) alone_bytes: [usize; 2],
    /// Maximum size in bytes of keys and values, counted per query head, for which one workgroup
    /// per query head is fastest. Beyond this size, query heads of a KV head share the reads of
    /// keys and values, and a separate kernel combines the results of key ranges. An estimate.
    pub(crate) token_bytes: usize,
    /// Maximum number of key blocks for which one workgroup per query head is faster than several
    /// workgroups with a combining step. The kernel takes about 1.2 us per key block, and the
    /// combining step about 2.5 us.
    pub(crate) token_blocks: u32,
    /// Maximum number of key blocks for which a workgroup per query head is faster than a workgroup
    /// for several query heads of a KV head. The latter reads their keys and values once.
    /// An estimate.
    pub(crate) token_blocks_apart: u32,
    /// Maximum number of keys for which one workgroup per query head is as fast as split-KV on
    /// cooperative matrices.
    pub(crate) max_single_workgroup_keys: usize,
    /// Minimum product of query rows per KV head and keys for which split-F16 attention is worth
    /// its three dependent dispatches. With 64 rows and 64 keys, split-F16 is 10 us slower than the
    /// F32 kernel; with 128 rows and 128 keys it is faster.
    pub(crate) min_split_f16_work: usize,
    /// Minimum number of keys per workgroup if several workgroups share the keys of one tile of
    /// query rows (split-KV). With fewer keys, split-KV gains less time than the combining step
    /// costs (6.5 us for 65 rows of an 8B model).
    pub(crate) min_split_kv_keys: u32,
}

/// Cost model of recurrent scans: state updates per second of one compute unit.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScanRates {
    /// Rates of `SelectiveScan` with many and with few channels. Measured with 4096 channels of 16
    /// states, 4096 steps, F32: 780 us for a batch of 8, 215 us for a batch of 1.
    pub(crate) channels: [f64; 2],
    /// Rates of `Mamba2` and `GatedDeltaNet`: step by step (`steps`), and in chunks on cooperative
    /// matrices (`chunks`). Measured with 64 heads of size 64 and 128 states for `Mamba2`, 32 heads
    /// of size 128 for `GatedDeltaNet`: 454 and 938 us in steps of F32, 156 and 295 us in chunks of
    /// F16.
    pub(crate) steps: [f64; 2],
    pub(crate) chunks: [f64; 2],
}

/// A tile configuration of a matmul: the number of subgroups per tile, the size of a subgroup tile
/// in elements, and the number of `k` elements per step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileConfig {
    /// Number of subgroups per tile in each direction.
    pub subgroups: [u32; 2],
    /// Rows and columns of a subgroup tile in elements.
    pub subgroup_tile: [u32; 2],
    /// Number of `k` elements per step.
    pub depth: u32,
    pub(crate) stages: u32,
    /// Rate of a compute unit with this tile configuration.
    pub rate: TileThroughput,
}

impl TileConfig {
    /// Returns this tile configuration with subgroup tiles of half the size along both axes.
    /// Smaller subgroup tiles reuse each loaded element half as often.
    pub(super) fn half(self) -> TileConfig {
        TileConfig {
            subgroup_tile: self.subgroup_tile.map(|n| n / 2),
            rate: TileThroughput {
                single_workgroup: self.rate.single_workgroup / 2.0,
                full: self.rate.full / 2.0,
            },
            ..self
        }
    }

    /// True if both tile configurations have the same sizes; their rates may differ.
    pub fn is_same_division(&self, other: &TileConfig) -> bool {
        let of = |d: &TileConfig| (d.subgroups, d.subgroup_tile, d.depth, d.stages);
        of(self) == of(other)
    }
}

/// Rate of a compute unit that runs workgroups of a tile configuration, relative to the first
/// configuration of the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileThroughput {
    /// Rate with one workgroup.
    pub(crate) single_workgroup: f64,
    /// Rate at full occupancy.
    pub full: f64,
}

impl TileThroughput {
    /// Number of concurrent workgroups that saturate a compute unit.
    pub(crate) fn resident_workgroups(self) -> usize {
        (self.full / self.single_workgroup).ceil().max(1.0) as usize
    }

    /// The rate on a compute unit that runs at most `groups` workgroups concurrently.
    pub(crate) fn limited_to(self, groups: u32) -> TileThroughput {
        TileThroughput {
            full: self.full.min(f64::from(groups) * self.single_workgroup),
            ..self
        }
    }

    /// Time of `groups` workgroups on one compute unit, in multiples of the time of one workgroup
    /// at rate 1.
    pub(crate) fn time(self, groups: usize) -> f64 {
        let rate = match groups {
            0 | 1 => self.single_workgroup,
            n => (n as f64 * self.single_workgroup).min(self.full),
        };
        groups as f64 / rate
    }
}

const fn one(subgroups: [u32; 2], part: [u32; 2], depth: u32, rate: [f64; 2]) -> TileConfig {
    TileConfig {
        subgroups,
        subgroup_tile: part,
        depth,
        stages: 1,
        rate: TileThroughput {
            single_workgroup: rate[0],
            full: rate[1],
        },
    }
}

const fn two(subgroups: [u32; 2], part: [u32; 2], depth: u32, rate: [f64; 2]) -> TileConfig {
    TileConfig {
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

/// Kernel rates measured on an NVIDIA H200 through Vulkan.
pub(crate) static MEASURED: CostModel = CostModel {
    of: "H200",
    matrices: CoopGemmCosts {
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
        prepacked: &[
            // These entries were measured on an H100 with matmuls of 6,304 rows times 768x768 /
            // 3072x768 / 768x2304 weights. For these three sizes, the first entry takes 23.3 / 87 /
            // 71 us. The second takes 24.3 / 87 / 70 us, the third 28.3 / 102 / 70 us.
            one([4, 2], [40, 64], 32, [1.46, 1.46]),
            one([2, 2], [40, 64], 32, [0.72, 1.44]),
            one([2, 2], [48, 64], 32, [0.73, 1.46]),
            one([1, 1], [16, 64], 32, [0.15, 0.45]),
        ],
        split_f16: &[
            one([2, 2], [64, 32], 16, [0.15, 0.305]), // 128 x 64 x 16, 83 TFLOP/s
            one([2, 2], [64, 64], 16, [0.23, 0.317]),
            one([2, 2], [32, 32], 16, [0.1, 0.27]),
        ],
        // Through wgpu on Vulkan, without passthrough of SPIR-V. Comments give the rate of a matmul
        // of 4096^3. The last two entries of each table are estimates. Both tables have the same
        // divisions, because an autotuning table may name any of them.
        wgsl_k_major: &[
            one([2, 4], [64, 64], 32, [0.61, 0.61]), // 128 x 256 x 32, 158 TFLOP/s
            one([4, 2], [64, 64], 32, [0.59, 0.59]), // 152 TFLOP/s
            one([2, 2], [64, 64], 16, [0.32, 0.55]), // 142 TFLOP/s
            one([2, 2], [64, 64], 32, [0.46, 0.41]), // 105 TFLOP/s
            one([2, 2], [64, 32], 32, [0.33, 0.48]), // 124 TFLOP/s
            one([2, 2], [32, 32], 32, [0.17, 0.4]),  // 105 TFLOP/s
            one([2, 2], [16, 32], 32, [0.1, 0.2]),
            one([2, 2], [16, 16], 32, [0.05, 0.12]),
        ],
        wgsl_n_major: &[
            one([2, 2], [64, 64], 32, [0.42, 0.61]), // 128 x 128 x 32, 157 TFLOP/s
            one([2, 4], [64, 64], 32, [0.53, 0.53]), // 137 TFLOP/s
            one([4, 2], [64, 64], 32, [0.51, 0.51]), // 132 TFLOP/s
            one([2, 2], [64, 64], 16, [0.4, 0.56]),  // 143 TFLOP/s
            one([2, 2], [64, 32], 32, [0.28, 0.37]), // 96 TFLOP/s
            one([2, 2], [32, 32], 32, [0.2, 0.44]),  // 112 TFLOP/s
            one([2, 2], [16, 32], 32, [0.1, 0.2]),
            one([2, 2], [16, 16], 32, [0.05, 0.12]),
        ],
        wgsl_dequant: 1.5,
        grouped: &[
            one([1, 8], [64, 32], 64, [0.25, 0.6]),
            one([1, 4], [32, 32], 64, [0.25, 0.6]),
        ],
        sliced: TileThroughput {
            single_workgroup: 0.1,
            full: 0.75,
        },
        max_sliced: 12,
        start: 90.0,
        start_of_parts: 220.0,
        dispatch: 3.4e6,
        per_sum: 500.0,
        per_s: 1.03e12,
        broken_rows: 2.0,
        min_windows_for_prepack: 1024,
    },
    tiles: TileRates {
        // The four tile shapes reach 35.9, 40.1, 35 and 44.2 TFLOP/s in a matmul of 4096^3.
        floats: tiles([0.81, 0.91, 0.8, 1.0]),
        blocks: tiles([1.0, 0.95, 0.95, 0.85]),
        windows: tiles([1.0, 0.95, 0.95, 0.85]),
        plain: [0.55, 0.45, 0.35],
        saturating_threads: [1.25, 2.0],
        start: 48,
        dispatch: 4e5,
        per_sum: 60.0,
        per_s: 1.67e11,
    },
    rows: GemvCosts {
        shared_mem: [1.3, 2.4],
        register_resident: [1.65, 2.65],
        row: [1.3, 1.3],
        wide: [1.8, 3.0],
        along: [2.5, 4.0],
        across: [3.0, 4.0],
        strips: [1.5, 1.5],
        register_int_dot: 1.4,
        register_float: 2.2,
        few_tiles: 1.3,
        few_columns: 1.05,
        streamed_tiles: 4,
        streamed_slices: 4,
        min_rows_for_dequant: 64,
        block_rows: 32,
        max_prepacked_rows: 160,
        max_prepacked_rows_of_large_weights: 1024,
        max_register_rows: 16,
        prepacked_prefetch: 4,
        min_prepacked_subgroups: 7,
        keyed_rows: 512,
        keyed_rows_per_expert: 2,
        min_keyed_rows: 128,
    },
    attention: AttentionRates {
        single_query: [1.75, 3.5, 5.0],
        many_queries: [1.85, 4.3, 1.8, 2.2, 1.6, 5.5],
        lane_keys: 384,
        alone_bytes: [256 << 10, 1 << 20],
        token_bytes: 512 << 20,
        token_blocks: 4,
        token_blocks_apart: 16,
        max_single_workgroup_keys: 512,
        min_split_f16_work: 8192,
        min_split_kv_keys: 256,
    },
    scans: ScanRates {
        channels: [2.09e10, 9.5e9],
        steps: [3.58e10, 1.73e10],
        chunks: [1.04e11, 5.5e10],
    },
    bytes_per_s: 4.0e12,
    dispatch_s: 2.5e-6,
};
