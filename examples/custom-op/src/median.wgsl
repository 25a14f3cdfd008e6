// Median of the `width` elements around each element of a row. At the ends of a row, its first and last
// element are repeated. Each invocation computes one result. It is the element of the window with exactly
// half of the others before it in sorted order; equal elements are ordered by position.

struct Params {
    rows: u32,
    columns: u32,
    width: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

// Element `i` of the window around `column`, in the row that starts at `start`.
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
