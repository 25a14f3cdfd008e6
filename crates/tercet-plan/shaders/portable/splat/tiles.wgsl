// Rasterization of a tile, front to back (Kerbl et al. 2023): alpha = min(opacity exp(-d^T conic d
// / 2), 0.99). Contributions below min_alpha are skipped, and a pixel ends before its
// transmittance falls below min_light. A workgroup draws one block, one thread per pixel. Each
// thread reads one word of the row's bit mask and selects the splats that cover the block's column.
// The selected splats are loaded into shared memory in order, in batches of 256. If SPECIAL is 1,
// each pixel skips the splats that do not cover its tile, and counts splats.
// uses prelude.wgsl: flat_group
// uses splat/common.wgsl: SPLAT_LEN, TILE, blocks_of
// uses splat/hits.wgsl: count_hits, hit

struct Params {
    count: u32,
    words: u32,
    width: u32,
    height: u32,
    tile_columns: u32,
    tiles: u32,
    // Side of a tile in pixels, and the most splats of a tile and of a pixel.
    tile: u32,
    max_entries: u32,
    max_steps: u32,
    min_alpha: f32,
    min_light: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> splats: array<f32>;
@group(0) @binding(2) var<storage, read> sorted: array<u32>;
@group(0) @binding(3) var<storage, read> columns: array<u32>;
@group(0) @binding(4) var<storage, read> reached: array<u32>;
@group(0) @binding(5) var<storage, read> background: array<f32>;
@group(0) @binding(6) var<storage, read_write> image: array<f32>;
@group(0) @binding(7) var<storage, read_write> left: array<f32>;

// 1: tiles have another side than blocks, or the splats of a tile or pixel are limited.
override SPECIAL: u32 = 0u;

const GREATEST_ALPHA: f32 = 0.99;

// Fields of the batch. `places`: position and first two conic entries. `rests`: third conic entry,
// opacity, red, green. `blues`: blue.
var<workgroup> places: array<vec4<f32>, 256>;
var<workgroup> rests: array<vec4<f32>, 256>;
var<workgroup> blues: array<f32, 256>;
// First and end column and row of tiles, if SPECIAL is 1.
var<workgroup> areas: array<vec2<u32>, 256>;
// Nonzero if any pixel is unfinished.
var<workgroup> open: atomic<u32>;
var<workgroup> goes_on: u32;

var<private> light: f32 = 1.0;
var<private> color: vec3<f32>;
var<private> has_ended: bool;
// Tile of the pixel, and its counts of covering and of blended splats, if SPECIAL is 1.
var<private> own_tile: vec2<u32>;
var<private> entries: u32;
var<private> steps: u32;

// The bits of a word whose splats cover a column of tiles.
fn hits_of(word: u32, bits: u32, column: u32) -> u32 {
    var rest = bits;
    var found = 0u;
    while rest != 0u {
        let bit = firstTrailingBit(rest);
        rest &= rest - 1u;
        let rank = min(32u * word + bit, p.count - 1u);
        if SPECIAL == 1u {
            let range = columns[2u * rank];
            let blocks = blocks_of(range & 0xffffu, range >> 16u, p.tile);
            found |= select(0u, 1u << bit, blocks.x <= column && column < blocks.y);
        } else {
            let range = columns[rank];
            found |= select(0u, 1u << bit, (range & 0xffffu) <= column && column < (range >> 16u));
        }
    }
    return found;
}

// Loads hit `k` of the words from `first_word` on into slot `local` of the batch.
fn bring(k: u32, first_word: u32, local: u32) {
    let found = hit(k);
    let rank = 32u * (first_word + found.x) + found.y;
    let at = SPLAT_LEN * min(sorted[min(rank, p.count - 1u)], p.count - 1u);
    places[local] = vec4(splats[at], splats[at + 1u], splats[at + 2u], splats[at + 3u]);
    rests[local] = vec4(splats[at + 4u], splats[at + 5u], splats[at + 6u], splats[at + 7u]);
    blues[local] = splats[at + 8u];
    if SPECIAL == 1u {
        let area = 2u * min(rank, p.count - 1u);
        areas[local] = vec2(columns[area], columns[area + 1u]);
    }
}

// True if a splat of the batch covers the tile of this thread's pixel.
fn covers(k: u32) -> bool {
    let across = areas[k].x;
    let down = areas[k].y;
    return (across & 0xffffu) <= own_tile.x && own_tile.x < (across >> 16u)
        && (down & 0xffffu) <= own_tile.y && own_tile.y < (down >> 16u);
}

// Blends the first `count` splats of the batch into a pixel.
fn blend(count: u32, center: vec2<f32>) {
    for (var k = 0u; k < count; k += 1u) {
        if SPECIAL == 1u {
            if !covers(k) {
                continue;
            }
            if entries == p.max_entries {
                has_ended = true;
                return;
            }
            entries += 1u;
        }
        let place = places[k];
        let rest = rests[k];
        let d = center - place.xy;
        let power = -0.5 * (place.z * d.x * d.x + rest.x * d.y * d.y) - place.w * d.x * d.y;
        let alpha = min(rest.y * exp(power), GREATEST_ALPHA);
        if !(power <= 0.0 && alpha >= p.min_alpha) {
            continue;
        }
        let next = light * (1.0 - alpha);
        if next < p.min_light || (SPECIAL == 1u && steps == p.max_steps) {
            has_ended = true;
            return;
        }
        steps += 1u;
        color += vec3(rest.z, rest.w, blues[k]) * (alpha * light);
        light = next;
    }
}

// Draws the hits of a range of words. Returns false if all pixels are finished.
fn draw(count: u32, first_word: u32, center: vec2<f32>, local: u32) -> bool {
    var more = 1u;
    for (var first = 0u; first < count && more != 0u; first += 256u) {
        let k = first + local;
        if k < count {
            bring(k, first_word, local);
        }
        if local == 0u {
            atomicStore(&open, 0u);
        }
        workgroupBarrier();
        if !has_ended {
            blend(min(256u, count - first), center);
        }
        if !has_ended {
            atomicStore(&open, 1u);
        }
        workgroupBarrier();
        if local == 0u {
            goes_on = atomicLoad(&open);
        }
        more = workgroupUniformLoad(&goes_on);
    }
    return more != 0u;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let tile = flat_group(group, groups);
    if tile >= p.tiles {
        return;
    }
    let column = tile % p.tile_columns;
    let row = tile / p.tile_columns;
    let x = column * TILE + local % TILE;
    let y = row * TILE + local / TILE;
    let is_inside = x < p.width && y < p.height;
    has_ended = !is_inside;
    let center = vec2(f32(x) + 0.5, f32(y) + 0.5);
    own_tile = vec2(x, y) / p.tile;
    var more = true;
    for (var first = 0u; first < p.words && more; first += 256u) {
        let word = first + local;
        var own = 0u;
        if word < p.words {
            own = hits_of(word, reached[row * p.words + word], column);
        }
        let count = count_hits(own, local);
        more = draw(count, first, center, local);
    }
    if is_inside {
        let pixel = y * p.width + x;
        image[3u * pixel] = color.x + light * background[0];
        image[3u * pixel + 1u] = color.y + light * background[1];
        image[3u * pixel + 2u] = color.z + light * background[2];
        left[pixel] = light;
    }
}
