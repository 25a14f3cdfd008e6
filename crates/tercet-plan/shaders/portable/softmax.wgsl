// Softmax along one axis of any stride: y = exp(x - max) / sum(exp(x - max)). Log-softmax (LOG =
// 1): y = x - max - ln(sum(exp(x - max))). With STATS = 1, only (max, 1 / sum or ln(sum)) of each
// row is written.
//
// A workgroup processes 256 / THREADS rows. A unit is a whole word of PER elements if rows are
// dense and aligned, else one element. Rows of at most CACHE units per thread are read once. Longer
// rows (CACHE = 0) are read three times.
// uses prelude.wgsl: as_float, flat_group, float_bits, float_of, lane_of, word_of
// uses row_floats.wgsl: Total, add
// uses rows.wgsl: THREADS, group_rows, own_row, take_place, thread
// uses softmax_row.wgsl: Top, exp_of, greatest_of, raise, row_of
// uses softmax_value.wgsl: Row, part_of, value_of
// uses strided.wgsl: row_start

struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    kept: u32,
    offset: u32,
    rows: u32,
    len: u32,
    stride: u32,
    inner: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;
override PER: u32 = 1u;
override CACHE: u32 = 4u;
override STATS: u32 = 0u;
// Maximum of CACHE * PER.
const HELD: u32 = 32u;

fn element(start: u32, unit: u32, lane: u32) -> f32 {
    if PER > 1u {
        return float_of(x[word_of(start, DTYPE) + unit], lane, DTYPE);
    }
    let i = start + unit * p.stride;
    return float_of(x[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

// Stores a word of `PER` elements of the result.
fn put(row: u32, unit: u32, word: u32) {
    let outer = row / p.inner;
    let first = outer * p.len * p.inner + row % p.inner;
    if PER > 1u {
        y[word_of(first, DTYPE) + unit] = word;
    } else {
        y[first + unit * p.inner] = word;
    }
}

fn bits_at(value: f32, lane: u32) -> u32 {
    return float_bits(value, DTYPE) << (16u * lane);
}

fn held_rows(row: u32, start: u32, units: u32) {
    var held: array<f32, HELD>;
    var top = Top(as_float(0xff800000u), 0u);
    for (var i = 0u; i < CACHE; i += 1u) {
        let unit = i * THREADS + thread;
        for (var lane = 0u; lane < PER; lane += 1u) {
            var v = as_float(0xff800000u);
            if unit < units {
                v = element(start, unit, lane);
            }
            held[i * PER + lane] = v;
            top = raise(top, v);
        }
    }
    let greatest = greatest_of(top);
    var sum = 0.0;
    for (var i = 0u; i < CACHE * PER; i += 1u) {
        let part = part_of(held[i], greatest);
        held[i] = part;
        sum += exp_of(part);
    }
    let about = row_of(greatest, sum);
    if STATS == 1u {
        put_stats(row, about);
        return;
    }
    for (var i = 0u; i < CACHE; i += 1u) {
        let unit = i * THREADS + thread;
        var word = 0u;
        for (var lane = 0u; lane < PER; lane += 1u) {
            word |= bits_at(value_of(held[i * PER + lane], about), lane);
        }
        if unit < units {
            put(row, unit, word);
        }
    }
}

fn long_rows(row: u32, start: u32, units: u32) {
    var top = Top(as_float(0xff800000u), 0u);
    for (var unit = thread; unit < units; unit += THREADS) {
        for (var lane = 0u; lane < PER; lane += 1u) {
            top = raise(top, element(start, unit, lane));
        }
    }
    let greatest = greatest_of(top);
    var total: Total;
    for (var unit = thread; unit < units; unit += THREADS) {
        for (var lane = 0u; lane < PER; lane += 1u) {
            let part = part_of(element(start, unit, lane), greatest);
            total = add(total, vec2<f32>(exp_of(part), 0.0));
        }
    }
    let about = row_of(greatest, (total.high + total.low).x);
    if STATS == 1u {
        put_stats(row, about);
        return;
    }
    for (var unit = thread; unit < units; unit += THREADS) {
        var word = 0u;
        for (var lane = 0u; lane < PER; lane += 1u) {
            let part = part_of(element(start, unit, lane), greatest);
            word |= bits_at(value_of(part, about), lane);
        }
        put(row, unit, word);
    }
}

fn put_stats(row: u32, about: Row) {
    if thread == 0u && row < p.rows {
        y[row * 2u] = bitcast<u32>(about.greatest);
        y[row * 2u + 1u] = bitcast<u32>(about.factor);
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let row = flat_group(group, groups) * group_rows() + own_row;
    var start = 0u;
    var units = 0u;
    if row < p.rows {
        start = row_start(row);
        units = p.len / PER;
    }
    if CACHE > 0u {
        held_rows(row, start, units);
    } else {
        long_rows(row, start, units);
    }
}
