// Residual add and norm in one kernel: sum = x + residual + bias, rounded to its dtype, and its
// LayerNorm or RMSNorm. See norm_row.wgsl.
// uses norm_row.wgsl: DTYPE, PER
// uses norm_value.wgsl: Row
// uses prelude.wgsl: float_of, round_to, word_of

struct Params {
    rows: u32,
    len: u32,
    x_offset: u32,
    x_row: u32,
    x_stride: u32,
    r_offset: u32,
    r_row: u32,
    r_stride: u32,
    eps: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> residual: array<u32>;
@group(0) @binding(3) var<storage, read> gamma: array<u32>;
@group(0) @binding(4) var<storage, read> beta: array<u32>;
@group(0) @binding(5) var<storage, read> bias: array<u32>;
@group(0) @binding(6) var<storage, read_write> y: array<u32>;
@group(0) @binding(7) var<storage, read_write> sum: array<u32>;

override BETA: u32 = 0u;
override BIAS: u32 = 0u;

// Buffer index of unit `unit` of a row. A unit is PER elements: one packed word, or one element if
// PER = 1.
fn place(offset: u32, row_stride: u32, stride: u32, row: u32, unit: u32) -> u32 {
    let start = offset + row * row_stride;
    if PER > 1u {
        return word_of(start, DTYPE) + unit;
    }
    return start + unit * stride;
}

fn element(row: u32, unit: u32, lane: u32) -> f32 {
    let a = x[place(p.x_offset, p.x_row, p.x_stride, row, unit)];
    let b = residual[place(p.r_offset, p.r_row, p.r_stride, row, unit)];
    var v = float_of(a, lane, DTYPE) + float_of(b, lane, DTYPE);
    if BIAS == 1u {
        v += float_of(bias[unit], lane, DTYPE);
    }
    return round_to(v, DTYPE);
}

fn keep(row: u32, unit: u32, word: u32) {
    sum[row * (p.len / PER) + unit] = word;
}

fn weigh(v: f32, unit: u32, lane: u32) -> f32 {
    let weighed = v * float_of(gamma[unit], lane, DTYPE);
    if BETA == 1u {
        return weighed + float_of(beta[unit], lane, DTYPE);
    }
    return weighed;
}

fn finish_row(row: u32, about: Row) {}

fn finish(row: u32, unit: u32, word: u32) {
    y[row * (p.len / PER) + unit] = word;
}
