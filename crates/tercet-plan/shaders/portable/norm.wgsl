// LayerNorm or RMSNorm of rows of any stride. With STATS = 1, only the row statistics are written.
// See norm_row.wgsl.
// uses norm_row.wgsl: DTYPE, PER
// uses norm_value.wgsl: Row
// uses prelude.wgsl: float_of, lane_of, word_of
// uses rows.wgsl: thread

struct Params {
    rows: u32,
    len: u32,
    x_offset: u32,
    x_row: u32,
    x_stride: u32,
    eps: f32,
    // Row strides: x_row between rows, x_outer between groups of x_count rows.
    x_count: u32,
    x_outer: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> gamma: array<u32>;
@group(0) @binding(3) var<storage, read> beta: array<u32>;
@group(0) @binding(4) var<storage, read_write> y: array<u32>;

override BETA: u32 = 0u;
override STATS: u32 = 0u;

fn element(row: u32, unit: u32, lane: u32) -> f32 {
    let start = p.x_offset + row / p.x_count * p.x_outer + row % p.x_count * p.x_row;
    if PER > 1u {
        return float_of(x[word_of(start, DTYPE) + unit], lane, DTYPE);
    }
    let i = start + unit * p.x_stride;
    return float_of(x[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn keep(row: u32, unit: u32, word: u32) {}

fn weigh(v: f32, unit: u32, lane: u32) -> f32 {
    if STATS == 1u {
        return 0.0;
    }
    let weighed = v * float_of(gamma[unit], lane, DTYPE);
    if BETA == 1u {
        return weighed + float_of(beta[unit], lane, DTYPE);
    }
    return weighed;
}

fn finish_row(row: u32, about: Row) {
    if STATS == 1u && thread == 0u && row < p.rows {
        y[row * 4u] = bitcast<u32>(about.scale);
        y[row * 4u + 1u] = bitcast<u32>(about.mean);
        y[row * 4u + 2u] = bitcast<u32>(about.rest);
        y[row * 4u + 3u] = bitcast<u32>(about.factor);
    }
}

fn finish(row: u32, unit: u32, word: u32) {
    if STATS == 0u {
        y[row * (p.len / PER) + unit] = word;
    }
}
