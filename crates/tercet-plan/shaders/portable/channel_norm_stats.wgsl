// Row statistics of a norm whose row elements are `stride` apart: four floats per row (see
// norm_value.wgsl). strided.wgsl maps rows, rows.wgsl assigns them to workgroups, and norm_row.wgsl
// contains the kernel.
// uses norm_row.wgsl: DTYPE, PER
// uses norm_value.wgsl: Row
// uses prelude.wgsl: float_of, lane_of, word_of
// uses rows.wgsl: thread
// uses strided.wgsl: row_start

struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    kept: u32,
    offset: u32,
    rows: u32,
    len: u32,
    stride: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> stats: array<u32>;

// The row whose first element is at `begin`.
var<private> begun: u32 = 0xffffffffu;
var<private> begin: u32;

fn element(row: u32, unit: u32, lane: u32) -> f32 {
    if row != begun {
        begun = row;
        begin = row_start(row);
    }
    if PER > 1u {
        return float_of(x[word_of(begin, DTYPE) + unit], lane, DTYPE);
    }
    let i = begin + unit * p.stride;
    return float_of(x[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn keep(row: u32, unit: u32, word: u32) {}

fn weigh(v: f32, unit: u32, lane: u32) -> f32 {
    return 0.0;
}

fn finish_row(row: u32, about: Row) {
    if thread == 0u && row < p.rows {
        stats[row * 4u] = bitcast<u32>(about.scale);
        stats[row * 4u + 1u] = bitcast<u32>(about.mean);
        stats[row * 4u + 2u] = bitcast<u32>(about.rest);
        stats[row * 4u + 3u] = bitcast<u32>(about.factor);
    }
}

fn finish(row: u32, unit: u32, word: u32) {}
