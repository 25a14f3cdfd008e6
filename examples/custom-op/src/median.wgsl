// The median of the `width` elements around each element of a row; beyond the ends the first and last
// element are repeated. One invocation makes one element: the one of its window before which exactly half
// of the others stand, equal ones in their order.

struct Params {
    rows: u32,
    columns: u32,
    width: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

// Element `i` of the window around a column of the row that begins at `start`.
fn element(start: u32, column: u32, i: u32) -> f32 {
    let at = max(column + i, p.width / 2u) - p.width / 2u;
    return x[start + min(at, p.columns - 1u)];
}

@compute @workgroup_size(64)
fn median(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = (group.y * count.x + group.x) * 64u + local;
    if at >= p.rows * p.columns {
        return;
    }
    let column = at % p.columns;
    let start = at - column;
    for (var i = 0u; i < p.width; i += 1u) {
        let candidate = element(start, column, i);
        var before = 0u;
        for (var j = 0u; j < p.width; j += 1u) {
            let other = element(start, column, j);
            before += select(0u, 1u, other < candidate || (other == candidate && j < i));
        }
        if before == p.width / 2u {
            y[at] = candidate;
        }
    }
}
