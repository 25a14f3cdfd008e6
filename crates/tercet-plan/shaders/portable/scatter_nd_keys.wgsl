// ScatterND keys: keys[i] = index of the slice that tuple i of COORDINATES indices selects, with
// axes of sizes `lens`. Negative coordinates count from the end. Out-of-range coordinates are
// clamped, and a separate data check fails the run. If LAST, a tuple that selects the same slice as
// a later one has the key NO_KEY: only the last update of a slice is stored. A thread writes one
// key.
// uses named.wgsl: named
// uses prelude.wgsl: flat_group

struct Params {
    lens: array<vec4<u32>, 2>,
    rows: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> idx: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;

override COORDINATES: u32 = 1u;
override LAST: u32 = 0u;

const NO_KEY: u32 = 0xffffffffu;

fn key_of(row: u32) -> u32 {
    var at = 0u;
    for (var c = 0u; c < COORDINATES; c += 1u) {
        let len = p.lens[c / 4u][c % 4u];
        if len > 0u {
            at = at * len + named(idx[row * COORDINATES + c], len);
        }
    }
    return at;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = flat_group(group, count) * 256u + local;
    if row >= p.rows {
        return;
    }
    var key = key_of(row);
    if LAST != 0u {
        for (var later = row + 1u; later < p.rows; later += 1u) {
            if key_of(later) == key {
                key = NO_KEY;
                break;
            }
        }
    }
    keys[row] = key;
}
