// Split-F16 conversion of F32 matrices for gemm_pairs_f32.comp: s * x = high + low / 2^11. `high`
// is s * x rounded to F16, and `low` is 2^11 * (s * x - high) rounded to F16. The error is below
// 2^-24 of x, or 2^-49 of the largest magnitude with the same scale.
//
// A workgroup converts BLOCK rows and columns of a batch entry; columns are contiguous. A block
// shares one scale s: the power of two that scales the largest magnitude to between 2^13 and 2^14.
// Blocks are stored row by row: for each 16 elements, 8 words of high halves, then 8 words of low
// halves, zero-padded. After all blocks follows one word per block: 1 / s.
//
// If the split loses precision compared to F32, all bits of this word are set, and a fallback
// kernel computes the affected tiles in F32. A block loses precision in these cases:
// - an element is NaN or infinite;
// - a row or column is nonzero, and all its elements are below 2^-24 of the largest;
// - more than 1 / MOST_SMALL of the elements are nonzero and below 2^-25 of the largest;
// - the largest magnitude is above 2^44 or below 2^-44.
// uses prelude.wgsl: flat_group

struct Params {
    offset: u32,
    row: u32,
    rows: u32,
    columns: u32,
    // Number of blocks: across, per batch entry, and in total.
    across: u32,
    of_batch: u32,
    blocks: u32,
    // Stride between batch entries.
    batch: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

const THREADS: u32 = 256u;
const BLOCK: u32 = 64u;
const BLOCK_LEN: u32 = 4096u;
// Pairs of elements per row. A thread processes one pair of every eighth row.
const PAIRS: u32 = BLOCK / 2u;
const LINES: u32 = THREADS / PAIRS;
const UNFIT: u32 = 0xffffffffu;
// Maximum difference between the exponent of a block's largest magnitude and that of any row or
// column. RANGE limits the exponent of the block's largest magnitude.
const SPREAD: u32 = 24u;
const RANGE: u32 = 44u;
// Scaled numbers below this threshold, 2^-12, lose bits of their low halves. At most 1 / MOST_SMALL
// of the elements of a block may be below this threshold.
const SMALL: f32 = 0.000244140625;
const MOST_SMALL: u32 = 8u;
// The exponent bits of 1.0.
const ONE: u32 = 127u;

// Largest magnitudes, as float bits: of two neighbouring elements, of a row, of a column, and of the
// block.
var<workgroup> of_pairs: array<u32, BLOCK * (PAIRS + 1u)>;
var<workgroup> of_rows: array<atomic<u32>, BLOCK>;
var<workgroup> of_columns: array<atomic<u32>, BLOCK>;
var<workgroup> most: atomic<u32>;
var<workgroup> small: atomic<u32>;
var<workgroup> is_unfit: atomic<u32>;

fn two(begin: u32, row: u32, column: u32) -> vec2<u32> {
    if (row >= p.rows) {
        return vec2<u32>();
    }
    let at = begin + row * p.row;
    let columns = vec2<u32>(column, column + 1u);
    let inside = min(columns, vec2<u32>(p.columns - 1u));
    let found = vec2<u32>(x[at + inside.x], x[at + inside.y]);
    return select(vec2<u32>(), found, columns < vec2<u32>(p.columns));
}

// Rounds a number to the nearest F16, as F32. The code uses integers, because compilers remove a
// conversion to F16 and back.
fn high_of(x: f32) -> f32 {
    let bits = bitcast<u32>(x);
    let exponent = (bits >> 23u) & 255u;
    // Below 2^-14, the unit in the last place is 2^-24.
    let drop = 13u + select(0u, 113u - exponent, exponent < 113u);
    let unit = 1u << min(drop, 23u);
    let rounded = (bits + (unit >> 1u)) & ~(unit - 1u);
    return select(bitcast<f32>(rounded), 0.0, drop > 23u);
}

// Updates the maxima with two numbers of a row.
fn count(row: u32, pair: u32, x: vec2<u32>) -> vec2<u32> {
    let size = x & vec2<u32>(0x7fffffffu);
    of_pairs[row * (PAIRS + 1u) + pair] = max(size.x, size.y);
    return size;
}

// Stores two scaled numbers. Returns how many of the two are nonzero and below the threshold SMALL.
fn put(to: u32, x: vec2<u32>, scale: f32) -> u32 {
    let scaled = bitcast<vec2<f32>>(x) * scale;
    let high = vec2<f32>(high_of(scaled.x), high_of(scaled.y));
    let low = (scaled - high) * 2048.0;
    y[to] = pack2x16float(high);
    y[to + 8u] = pack2x16float(vec2<f32>(high_of(low.x), high_of(low.y)));
    let is_small = (abs(scaled) < vec2<f32>(SMALL)) & (scaled != vec2<f32>());
    let ones = select(vec2<u32>(), vec2<u32>(1u), is_small);
    return ones.x + ones.y;
}

// True if a row or column with this maximum loses more precision than F32.
fn is_lost(size: u32, exponent: u32) -> bool {
    return size != 0u && (size >> 23u) + SPREAD < exponent;
}

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count_of: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, count_of);
    if (flat >= p.blocks) {
        return;
    }
    let within = flat % p.of_batch;
    let begin = p.offset + flat / p.of_batch * p.batch;
    let pair = local % PAIRS;
    let line = local / PAIRS;
    let row = within / p.across * BLOCK + line;
    let column = within % p.across * BLOCK + pair * 2u;
    // The values are in named variables instead of an array, so that they stay in registers.
    let x0 = two(begin, row, column);
    let x1 = two(begin, row + LINES, column);
    let x2 = two(begin, row + 2u * LINES, column);
    let x3 = two(begin, row + 3u * LINES, column);
    let x4 = two(begin, row + 4u * LINES, column);
    let x5 = two(begin, row + 5u * LINES, column);
    let x6 = two(begin, row + 6u * LINES, column);
    let x7 = two(begin, row + 7u * LINES, column);
    if (local < BLOCK) {
        atomicStore(&of_rows[local], 0u);
        atomicStore(&of_columns[local], 0u);
    }
    if (local == 0u) {
        atomicStore(&most, 0u);
        atomicStore(&small, 0u);
        atomicStore(&is_unfit, 0u);
    }
    workgroupBarrier();
    var size = count(line, pair, x0);
    size = max(size, count(line + LINES, pair, x1));
    size = max(size, count(line + 2u * LINES, pair, x2));
    size = max(size, count(line + 3u * LINES, pair, x3));
    size = max(size, count(line + 4u * LINES, pair, x4));
    size = max(size, count(line + 5u * LINES, pair, x5));
    size = max(size, count(line + 6u * LINES, pair, x6));
    size = max(size, count(line + 7u * LINES, pair, x7));
    atomicMax(&of_columns[pair * 2u], size.x);
    atomicMax(&of_columns[pair * 2u + 1u], size.y);
    workgroupBarrier();
    var greatest_of = 0u;
    for (var i = 0u; i < 8u; i += 1u) {
        greatest_of = max(greatest_of, of_pairs[local / 4u * (PAIRS + 1u) + local % 4u * 8u + i]);
    }
    atomicMax(&of_rows[local / 4u], greatest_of);
    workgroupBarrier();
    if (local < BLOCK) {
        atomicMax(&most, atomicLoad(&of_rows[local]));
    }
    workgroupBarrier();
    let greatest = atomicLoad(&most);
    let exponent = greatest >> 23u;
    var lost = greatest != 0u && (exponent < ONE - RANGE || exponent > ONE + RANGE);
    if (local < BLOCK) {
        lost = lost || is_lost(atomicLoad(&of_rows[local]), exponent) || is_lost(atomicLoad(&of_columns[local]), exponent);
    }
    if (lost) {
        atomicStore(&is_unfit, 1u);
    }
    let scale = bitcast<f32>(select((ONE + ONE + 13u - exponent) << 23u, ONE << 23u, greatest == 0u));
    let inverse = select((exponent - 13u) << 23u, ONE << 23u, greatest == 0u);
    let to = flat * BLOCK_LEN + line * BLOCK + pair / 8u * 16u + pair % 8u;
    let step = LINES * BLOCK;
    var own_small = put(to, x0, scale);
    own_small += put(to + step, x1, scale);
    own_small += put(to + 2u * step, x2, scale);
    own_small += put(to + 3u * step, x3, scale);
    own_small += put(to + 4u * step, x4, scale);
    own_small += put(to + 5u * step, x5, scale);
    own_small += put(to + 6u * step, x6, scale);
    own_small += put(to + 7u * step, x7, scale);
    if (own_small != 0u) {
        atomicAdd(&small, own_small);
    }
    workgroupBarrier();
    if (local == 0u) {
        let is_wide = atomicLoad(&small) * MOST_SMALL > BLOCK_LEN;
        y[p.blocks * BLOCK_LEN + flat] = select(inverse, UNFIT, is_wide || atomicLoad(&is_unfit) != 0u);
    }
}
