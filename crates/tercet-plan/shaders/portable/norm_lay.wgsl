// RMS norm of F32 rows that also stores the normalized rows prepacked for few_rows_laid.glsl: see
// matmul/lay_slice.wgsl. A workgroup processes a row; prepacked rows from `rows` on are zeros.
// uses matmul/lay_slice.wgsl: SLICE, TEAM, first_at, lay_slice, next_after
// uses norm_held.wgsl: about_row, normalized_all
// uses norm_load.wgsl: elements
// uses prelude.wgsl: flat_group
// uses row_vectors.wgsl: VECTORS, floats, held, vectors_in
// uses rows.wgsl: THREADS, local, take_place, thread

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
    slices: u32,
    units_at: u32,
    sums_at: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> gamma: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> laid: array<u32>;

const WORKGROUP: u32 = 256u;
const IS_SCALED: bool = true;

// The normalized row.
var<workgroup> row_values: array<vec4<f32>, VECTORS * WORKGROUP>;

fn value_at(row: u32, k: u32) -> vec4<f32> {
    if row >= p.rows || k >= p.len {
        return vec4<f32>();
    }
    return row_values[k / 4u];
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let row = flat_group(group, groups);
    let units = vectors_in(p.len);
    elements(row, units);
    let about = about_row(units);
    for (var i = 0u; i < VECTORS; i += 1u) {
        let unit = i * THREADS + thread;
        if unit < units {
            let values = normalized_all(held[i], about) * floats(gamma[unit], 0u);
            row_values[unit] = values;
            if row < p.rows {
                y[row * units + unit] = values;
            }
        }
    }
    workgroupBarrier();
    for (var first = 0u; first < p.slices; first += WORKGROUP / TEAM) {
        let slice = first + local / TEAM;
        let is_some = slice < p.slices;
        let k = slice * SLICE + first_at(local % TEAM / 4u, local % 4u);
        lay_slice(row, slice, is_some, local, value_at(row, k), value_at(row, k + next_after()));
        // The next slices use the same shared memory.
        workgroupBarrier();
    }
}
