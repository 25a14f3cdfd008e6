// Backward rasterization, splat gradients of one chunk of the depth order. A thread adds the sums
// of the tiles that a splat covers, row by row, and converts them to cotangents of position, conic
// and opacity.
// uses prelude.wgsl: flat_group
// uses splat/common.wgsl: FOOTPRINT_LEN, SPLAT_LEN, SUMS, blocks_of, is_finite

struct Params {
    count: u32,
    // The chunk: position of its first splat in depth order, and number of splats.
    first: u32,
    chunk: u32,
    tile_columns: u32,
    tile_rows: u32,
    // Side of a tile in pixels.
    tile: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> splats: array<f32>;
@group(0) @binding(2) var<storage, read> footprints: array<i32>;
@group(0) @binding(3) var<storage, read> sorted: array<u32>;
@group(0) @binding(4) var<storage, read> sums: array<f32>;
@group(0) @binding(5) var<storage, read> walked: array<u32>;
@group(0) @binding(6) var<storage, read_write> cotangents: array<f32>;

// The blocks of the image that a range of tiles reaches.
fn range_of(first: i32, end: i32, count: u32) -> vec2<u32> {
    let blocks = blocks_of(u32(clamp(first, 0, 0xffff)), u32(clamp(end, 0, 0xffff)), p.tile);
    return min(blocks, vec2(count));
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let own = flat_group(group, groups) * 64u + local;
    let rank = p.first + own;
    if own >= p.chunk || rank >= p.count {
        return;
    }
    let splat = min(sorted[rank], p.count - 1u);
    let at = SPLAT_LEN * splat;
    var is_drawn = true;
    for (var k = 0u; k < 6u; k += 1u) {
        is_drawn = is_drawn && is_finite(splats[at + k]);
    }
    var parts: array<f32, 9>;
    if is_drawn {
        let tiles = FOOTPRINT_LEN * splat;
        let columns = range_of(footprints[tiles], footprints[tiles + 2u], p.tile_columns);
        let rows = range_of(footprints[tiles + 1u], footprints[tiles + 3u], p.tile_rows);
        for (var row = rows.x; row < rows.y; row += 1u) {
            for (var column = columns.x; column < columns.y; column += 1u) {
                let tile = row * p.tile_columns + column;
                if rank >= walked[tile] {
                    continue;
                }
                let start = SUMS * (tile * p.chunk + own);
                for (var value = 0u; value < SUMS; value += 1u) {
                    parts[value] += sums[start + value];
                }
            }
        }
    }
    let xx = splats[at + 2u];
    let xy = splats[at + 3u];
    let yy = splats[at + 4u];
    // alpha = opacity exp(power), so d_opacity = (sum of the cotangents of the powers) / opacity.
    var d_opacity = 0.0;
    if parts[0] != 0.0 {
        d_opacity = parts[0] / splats[at + 5u];
    }
    var d_place = vec2(0.0);
    if is_drawn {
        d_place = vec2(xx * parts[1] + xy * parts[2], xy * parts[1] + yy * parts[2]);
    }
    cotangents[at] = d_place.x;
    cotangents[at + 1u] = d_place.y;
    cotangents[at + 2u] = -0.5 * parts[3];
    cotangents[at + 3u] = -parts[4];
    cotangents[at + 4u] = -0.5 * parts[5];
    cotangents[at + 5u] = d_opacity;
    cotangents[at + 6u] = parts[6];
    cotangents[at + 7u] = parts[7];
    cotangents[at + 8u] = parts[8];
    cotangents[at + 9u] = 0.0;
}
