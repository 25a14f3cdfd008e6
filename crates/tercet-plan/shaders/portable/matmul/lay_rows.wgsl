// Activation prepack for few_rows_laid.glsl: see lay_slice.wgsl. 32 threads process a slice of a row.
// uses matmul/lay_slice.wgsl: SLICE, TEAM, first_at, lay_slice, next_after
// uses prelude.wgsl: F16, flat_group, float_of, lane_of, word_of

struct Params {
    m: u32,
    k: u32,
    offset: u32,
    row: u32,
    rows: u32,
    slices: u32,
    units_at: u32,
    sums_at: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read_write> laid: array<u32>;

override X_TYPE: u32 = 0u;

const WORKGROUP: u32 = 256u;
const IS_SCALED: bool = X_TYPE != F16;

fn x_at(row: u32, k: u32) -> f32 {
    if row >= p.m || k >= p.k {
        return 0.0;
    }
    let at = p.offset + row * p.row + k;
    return float_of(x_data[word_of(at, X_TYPE)], lane_of(at, X_TYPE), X_TYPE);
}

fn four_at(row: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(x_at(row, k), x_at(row, k + 1u), x_at(row, k + 2u), x_at(row, k + 3u));
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let team = flat_group(group, groups) * (WORKGROUP / TEAM) + local / TEAM;
    let is_some = team < p.rows * p.slices;
    let row = team / p.slices;
    let slice = team % p.slices;
    let step = local % TEAM / 4u;
    let t = local % 4u;
    var x = vec4<f32>();
    var next = vec4<f32>();
    if is_some {
        let k = slice * SLICE + first_at(step, t);
        x = four_at(row, k);
        next = four_at(row, k + next_after());
    }
    lay_slice(row, slice, is_some, local, x, next);
}
