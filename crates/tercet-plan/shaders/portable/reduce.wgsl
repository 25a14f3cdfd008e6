// Reduction: y = sum, product, maximum or minimum of the elements of each row. Reduced axes and
// strides are arbitrary. Numbers are 32 bits wide: F32 for floats, wrapping integers otherwise.
// Each result is rounded or truncated once.
//
// reduce_units.wgsl or reduce_vectors.wgsl reduces the units of one thread.
//
// A workgroup processes 256 / THREADS rows. If rows are split into `parts`, the workgroup processes
// part `group % parts`, `chunk` units long, and y receives `parts` results per row. A unit is a
// whole word of PER elements if rows are dense and aligned, else one element.
// uses numbers.wgsl: identity
// uses prelude.wgsl: BF16, flat_group, float_bits, int_bits, lanes, nan
// uses reduce_units.wgsl or reduce_vectors.wgsl: over_units
// uses row_numbers.wgsl: over_row, pool
// uses rows.wgsl: THREADS, group_rows, local, own_row, take_place, thread
// uses scalar/arithmetic.wgsl: f_div
// uses scalar/floats.wgsl: NATIVE_FLOATS
// uses strided.wgsl: row_start

struct Params {
    sizes: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    // Number of kept axes. In `sizes` and `strides`, the kept axes precede the reduced axes.
    kept: u32,
    along: u32,
    offset: u32,
    rows: u32,
    len: u32,
    parts: u32,
    chunk: u32,
    // 1: divides the result by `count` (mean).
    mean: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override IN: u32 = 0u;
override OUT: u32 = 0u;
override PER: u32 = 1u;

fn finished(all: u32) -> u32 {
    if IN > BF16 {
        return int_bits(bitcast<i32>(all), OUT);
    }
    var value = bitcast<f32>(all);
    if p.mean == 1u {
        let count = f32(p.count);
        if NATIVE_FLOATS {
            value = value / count;
        } else {
            value = f_div(value, count);
        }
        value = select(value, nan(), p.count == 0u);
    }
    return float_bits(value, OUT);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let flat = flat_group(group, groups);
    let first_row = (flat / p.parts) * group_rows();
    let part = flat % p.parts;
    let row = first_row + own_row;
    var own = identity();
    if row < p.rows {
        let units = p.len / PER;
        let begin = min(part * p.chunk, units) + thread;
        let to = min(part * p.chunk + p.chunk, units);
        if begin < to {
            own = over_units(row_start(row), begin, (to - begin + THREADS - 1u) / THREADS);
        }
    }
    let all = finished(over_row(own));
    let per = lanes(OUT);
    if per == 1u {
        if thread == 0u && row < p.rows {
            y[row * p.parts + part] = all;
        }
        return;
    }
    // A word contains the results of several rows; rows are then not split into parts.
    workgroupBarrier();
    if thread == 0u {
        pool[own_row] = select(0u, all, row < p.rows);
    }
    workgroupBarrier();
    let word = first_row / per + local;
    if local < group_rows() / per && word * per < p.rows {
        var out = 0u;
        for (var lane = 0u; lane < per; lane += 1u) {
            out |= pool[local * per + lane] << ((32u / per) * lane);
        }
        y[word] = out;
    }
}
