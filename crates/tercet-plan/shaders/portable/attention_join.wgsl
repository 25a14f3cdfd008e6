// Split-KV reduction for cooperative-matrix attention: y = the combined partial results of
// attention_parts.glsl. For each row and key range there is a normalized result, a reference score
// and a sum of weights. A weight is 2 or e to the power of score minus reference score.
//
// Partial results are ordered by tile, then by key range, then by row. A thread computes four elements of a row.
// uses prelude.wgsl: F16, flat_group, float_bits

struct Params {
    y_batch: u32,
    y_head: u32,
    y_seq: u32,
    rows: u32,
    kv_heads: u32,
    group: u32,
    quads: u32,
    tiles: u32,
    tile_rows: u32,
    parts: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> sums: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec2<u32>>;

// Dtype of y: F32 or F16.
override OUT: u32 = 0u;
// 1: weights are powers of e; 0: powers of two.
override NATURAL: u32 = 0u;

const LOG2_E: f32 = 1.44269504;

fn bits2(x: f32, z: f32) -> u32 {
    return float_bits(x, OUT) | (float_bits(z, OUT) << 16u);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let own = flat_group(group, groups) * 256u + local;
    if own >= p.count {
        return;
    }
    let quad = own % p.quads;
    let row = own / p.quads % p.rows;
    let head = own / p.quads / p.rows;
    let first = (head * p.tiles + row / p.tile_rows) * p.parts * p.tile_rows + row % p.tile_rows;
    var top = stats[first].x;
    for (var part = 1u; part < p.parts; part += 1u) {
        top = max(top, stats[first + part * p.tile_rows].x);
    }
    var sum = vec4<f32>();
    var total = 0.0;
    for (var part = 0u; part < p.parts; part += 1u) {
        let at = first + part * p.tile_rows;
        let about = stats[at];
        let below = select(about.x - top, (about.x - top) * LOG2_E, NATURAL == 1u);
        let weight = about.y * exp2(below);
        // A key range without visible keys has sum 0 and undefined values.
        if about.y != 0.0 {
            sum += weight * sums[at * p.quads + quad];
            total += weight;
        }
    }
    let x = select(sum / total, vec4<f32>(), total == 0.0);
    let query_head = head % p.kv_heads * p.group + row % p.group;
    let to = head / p.kv_heads * p.y_batch + query_head * p.y_head + row / p.group * p.y_seq + 4u * quad;
    if OUT == F16 {
        y[to / 4u] = vec2<u32>(bits2(x.x, x.y), bits2(x.z, x.w));
    } else {
        y[to / 2u] = bitcast<vec2<u32>>(x.xy);
        y[to / 2u + 1u] = bitcast<vec2<u32>>(x.zw);
    }
}
