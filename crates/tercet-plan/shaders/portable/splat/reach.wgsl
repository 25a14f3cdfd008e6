// Screen-space bounds: for each row of blocks, one bit per splat in drawing order, set if the splat
// covers the row. The kernel also stores the first and end column of tiles of each splat, 16 bits
// each. If SPECIAL is 1, a second word has the first and end row. Splats with a non-finite position,
// conic or opacity cover nothing. A workgroup processes 256 splats: eight words of each row.
// uses prelude.wgsl: flat_group
// uses splat/common.wgsl: FOOTPRINT_LEN, SPLAT_LEN, blocks_of, is_finite

struct Params {
    count: u32,
    words: u32,
    // Rows of blocks, and side of a tile in pixels.
    tile_rows: u32,
    tile: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> splats: array<f32>;
@group(0) @binding(2) var<storage, read> footprints: array<i32>;
@group(0) @binding(3) var<storage, read> sorted: array<u32>;
@group(0) @binding(4) var<storage, read_write> columns: array<u32>;
@group(0) @binding(5) var<storage, read_write> reached: array<u32>;

// 1: tiles have another side than blocks, or the splats of a tile or pixel are limited.
override SPECIAL: u32 = 0u;

// First and end row of blocks of each splat.
var<workgroup> rows: array<vec2<u32>, 256>;

// A range of tiles. Images have fewer than 2^16 tiles per axis.
fn range_of(first: i32, end: i32) -> vec2<u32> {
    return vec2(u32(clamp(first, 0, 0xffff)), u32(clamp(end, 0, 0xffff)));
}

fn packed(range: vec2<u32>) -> u32 {
    return range.x | (range.y << 16u);
}

fn is_drawn(splat: u32) -> bool {
    var all = true;
    for (var k = 0u; k < 6u; k += 1u) {
        all = all && is_finite(splats[SPLAT_LEN * splat + k]);
    }
    return all;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let chunk = flat_group(group, groups);
    if chunk * 256u >= p.count {
        return;
    }
    let rank = chunk * 256u + local;
    var own = vec2<u32>();
    if rank < p.count {
        let splat = min(sorted[rank], p.count - 1u);
        let at = FOOTPRINT_LEN * splat;
        let of_tiles = range_of(footprints[at + 1u], footprints[at + 3u]);
        if is_drawn(splat) && footprints[at] < footprints[at + 2u] {
            own = blocks_of(of_tiles.x, of_tiles.y, p.tile);
        }
        let across = packed(range_of(footprints[at], footprints[at + 2u]));
        if SPECIAL == 1u {
            columns[2u * rank] = across;
            columns[2u * rank + 1u] = packed(of_tiles);
        } else {
            columns[rank] = across;
        }
    }
    rows[local] = own;
    workgroupBarrier();
    for (var task = local; task < 8u * p.tile_rows; task += 256u) {
        let row = task / 8u;
        let word = task % 8u;
        var bits = 0u;
        for (var k = 0u; k < 32u; k += 1u) {
            let range = rows[32u * word + k];
            let is_reached = range.x <= row && row < range.y;
            bits |= select(0u, 1u << k, is_reached);
        }
        if 8u * chunk + word < p.words {
            reached[row * p.words + 8u * chunk + word] = bits;
        }
    }
}
