// Initial states of a recurrent layer: copies h and c to `states`. The kernel also stores h in the
// transposed layout that recurrence_step.wgsl reads, with zeros for rows beyond the batch.
// uses prelude.wgsl: flat_group, float_of, lane_of, word_of

struct Params {
    batch: u32,
    size: u32,
    rows: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> h_data: array<u32>;
@group(0) @binding(2) var<storage, read> c_data: array<u32>;
@group(0) @binding(3) var<storage, read_write> first: array<f32>;
@group(0) @binding(4) var<storage, read_write> states: array<f32>;

override DTYPE: u32 = 0u;
override CELL_STATE: u32 = 0u;

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let place = flat_group(group, groups) * 128u + local;
    if place >= p.size * p.rows {
        return;
    }
    let i = place / p.rows;
    let row = place % p.rows;
    var h = 0.0;
    if row < p.batch {
        let at = row * p.size + i;
        h = float_of(h_data[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
        states[at] = h;
        if CELL_STATE == 1u {
            let c = float_of(c_data[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
            states[p.batch * p.size + at] = c;
        }
    }
    first[place] = h;
}
