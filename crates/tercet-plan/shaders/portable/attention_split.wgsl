// Split-F16 conversion of F32 rows for cooperative-matrix attention: s x = high + low. `high` is s
// x rounded to F16, and `low` is the remainder rounded to F16. The error is below 2^-23 of x, or
// 2^-38 of the largest magnitude with the same scale.
//
// A workgroup converts CHUNK rows of a batch entry and KV head. For queries, row r is query r /
// group of query head head * group + r % group. All rows of a chunk share one scale s: the power of
// two that scales the largest magnitude to between 2^13 and 2^14. Each row is written as COLS / 8
// 16-byte words of high halves and equally many words of low halves, with zero padding. After the
// rows of a chunk follow SCALE_LEN words, which begin with the scale.
//
// If the split loses precision compared to F32, all bits of the scale are set, and a fallback
// kernel computes the head in F32. A chunk loses precision in these cases:
// - an element is NaN or infinite;
// - a row or column is nonzero, and all its elements are below 2^-14 of the largest (2^-28 for
//   BF16);
// - more than 1 / MOST_SMALL of the elements are nonzero and below 2^-17 of the largest (2^-29 for
//   BF16);
// - the largest magnitude is above 2^40 or below 2^-40.
//
// The flat group is (batch * heads + head) * chunks + chunk.
// uses prelude.wgsl: flat_group

struct Params {
    offset: u32,
    of_batch: u32,
    of_head: u32,
    of_seq: u32,
    rows: u32,
    group: u32,
    heads: u32,
    dim: u32,
    chunks: u32,
    lens_offset: u32,
    lens_stride: u32,
    has_lens: u32,
    groups: u32,
    sign: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> lens: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<u32>>;

// Columns of a row, padded to a multiple of the fragment size.
override COLS: u32 = 64u;
// 1: the input is BF16 and only the high halves are written. F16 halves represent BF16 exactly.
override PIECES: u32 = 2u;

const THREADS: u32 = 256u;
const CHUNK: u32 = 32u;
const SCALE_LEN: u32 = 8u;
const UNFIT: u32 = 0xffffffffu;
// Maximum difference between the exponent of a chunk's largest magnitude and that of any row or
// column. RANGE limits the exponent of the chunk's largest magnitude.
fn spread() -> u32 { return select(14u, 28u, PIECES == 1u); }
const RANGE: u32 = 40u;
// Scaled numbers below this threshold lose bits of their low halves. At most 1 / MOST_SMALL of the
// elements of a chunk may be below this threshold.
fn small_is() -> f32 { return select(0.0625, 0.0000152587890625, PIECES == 1u); }
const MOST_SMALL: u32 = 8u;
// The exponent bits of 1.0.
const ONE: u32 = 127u;

// Largest magnitude of each row, as float bits. `of_columns` and `most` do the same for columns and
// for the chunk.
var<workgroup> of_rows: array<atomic<u32>, CHUNK>;
var<workgroup> of_columns: array<atomic<u32>, COLS>;
var<workgroup> most: atomic<u32>;
var<workgroup> small: atomic<u32>;
var<workgroup> is_unfit: atomic<u32>;

// Offset of a row of this chunk.
fn start_of(batch: u32, head: u32, row: u32) -> u32 {
    return p.offset + batch * p.of_batch + (head * p.group + row % p.group) * p.of_head + row / p.group * p.of_seq;
}

fn four(at: u32, column: u32, is_there: bool) -> vec4<u32> {
    if (!is_there || column >= p.dim) {
        return vec4<u32>();
    }
    return x[(at + column) / 4u];
}

// Rounds numbers to the nearest F16, as F32.
fn high_of(x: vec4<f32>) -> vec4<f32> {
    return bitcast<vec4<f32>>((bitcast<vec4<u32>>(x) + vec4<u32>(0x1000u)) & vec4<u32>(0xffffe000u));
}

fn pack(x: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(pack2x16float(x.xy), pack2x16float(x.zw));
}

// Updates the maxima of a row and of its columns with four numbers.
fn count(row: u32, column: u32, x: vec4<u32>) {
    let size = x & vec4<u32>(0x7fffffffu);
    let greatest = max(max(size.x, size.y), max(size.z, size.w));
    if (greatest == 0u) {
        return;
    }
    atomicMax(&of_rows[row], greatest);
    atomicMax(&of_columns[column], size.x);
    atomicMax(&of_columns[column + 1u], size.y);
    atomicMax(&of_columns[column + 2u], size.z);
    atomicMax(&of_columns[column + 3u], size.w);
}

// Number of nonzero values below the precision threshold, out of four scaled values.
fn small_of(x: vec4<f32>) -> u32 {
    let is_small = (abs(x) < vec4<f32>(small_is())) & (x != vec4<f32>());
    let ones = select(vec4<u32>(), vec4<u32>(1u), is_small);
    return ones.x + ones.y + ones.z + ones.w;
}

// True if a row or column with this maximum loses more precision than F32.
fn is_lost(size: u32, exponent: u32) -> bool {
    return size != 0u && (size >> 23u) + spread() < exponent;
}

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count_of: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, count_of);
    if (flat >= p.groups) {
        return;
    }
    let batch = flat / p.chunks / p.heads;
    let head = flat / p.chunks % p.heads;
    let first = flat % p.chunks * CHUNK;
    var rows = p.rows;
    if (p.has_lens != 0u) {
        rows = u32(clamp(bitcast<i32>(lens[p.lens_offset + batch * p.lens_stride]), 0, i32(p.rows)));
    }
    if (first >= max(rows, 1u)) {
        // The attention kernel skips chunks without rows, but reads their scales.
        if (local == 0u) {
            y[(flat + 1u) * (CHUNK * COLS / 8u * PIECES + SCALE_LEN) - SCALE_LEN].x = ONE << 23u;
        }
        return;
    }
    for (var at = local; at < max(CHUNK, COLS); at += THREADS) {
        if (at < CHUNK) {
            atomicStore(&of_rows[at], 0u);
        }
        if (at < COLS) {
            atomicStore(&of_columns[at], 0u);
        }
    }
    if (local == 0u) {
        atomicStore(&most, 0u);
        atomicStore(&small, 0u);
        atomicStore(&is_unfit, 0u);
    }
    workgroupBarrier();
    for (var at = local; at < CHUNK * COLS / 8u; at += THREADS) {
        let row = at / (COLS / 8u);
        let column = at % (COLS / 8u) * 8u;
        let begin = start_of(batch, head, first + row);
        let is_there = first + row < rows;
        let low = four(begin, column, is_there);
        let high = four(begin, column + 4u, is_there);
        count(row, column, low);
        count(row, column + 4u, high);
    }
    workgroupBarrier();
    if (local < CHUNK) {
        atomicMax(&most, atomicLoad(&of_rows[local]));
    }
    workgroupBarrier();
    let greatest = atomicLoad(&most);
    let exponent = greatest >> 23u;
    for (var at = local; at < max(CHUNK, COLS); at += THREADS) {
        var lost = greatest != 0u && (exponent < ONE - RANGE || exponent > ONE + RANGE);
        if (at < CHUNK) {
            lost = lost || is_lost(atomicLoad(&of_rows[at]), exponent);
        }
        if (at < COLS) {
            lost = lost || is_lost(atomicLoad(&of_columns[at]), exponent);
        }
        if (lost) {
            atomicStore(&is_unfit, 1u);
        }
    }
    workgroupBarrier();
    let bits = select((ONE + ONE + 13u - exponent) << 23u, ONE << 23u, greatest == 0u);
    let scale = bitcast<f32>(bits) * p.sign;
    let len = CHUNK * COLS / 8u * PIECES + SCALE_LEN;
    var own_small = 0u;
    for (var at = local; at < CHUNK * COLS / 8u; at += THREADS) {
        let row = at / (COLS / 8u);
        let column = at % (COLS / 8u);
        let begin = start_of(batch, head, first + row);
        let is_there = first + row < rows;
        let a = bitcast<vec4<f32>>(four(begin, column * 8u, is_there)) * scale;
        let b = bitcast<vec4<f32>>(four(begin, column * 8u + 4u, is_there)) * scale;
        own_small += small_of(a) + small_of(b);
        let high_a = high_of(a);
        let high_b = high_of(b);
        let to = flat * len + row * (COLS / 8u * PIECES) + column;
        y[to] = vec4<u32>(pack(high_a), pack(high_b));
        if (PIECES == 2u) {
            y[to + COLS / 8u] = vec4<u32>(pack(high_of(a - high_a)), pack(high_of(b - high_b)));
        }
    }
    if (own_small != 0u) {
        atomicAdd(&small, own_small);
    }
    workgroupBarrier();
    if (local == 0u) {
        let is_wide = atomicLoad(&small) * MOST_SMALL > CHUNK * p.dim;
        y[(flat + 1u) * len - SCALE_LEN].x = select(bits, UNFIT, is_wide || atomicLoad(&is_unfit) != 0u);
    }
}
