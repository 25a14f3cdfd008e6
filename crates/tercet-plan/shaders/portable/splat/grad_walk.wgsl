// Backward rasterization of a tile, front to back in drawing order; raster_grad.rs gives the
// formula. A workgroup processes the splats of one chunk of the depth order for one tile, one
// thread per pixel. Pixel states carry over from chunk to chunk. Four splats are processed
// together: each pixel computes its contributions, then 64 threads per splat sum them over the
// pixels.
//
// The sums of each splat and tile are stored separately, so that grad_sum.wgsl adds them in a fixed
// order. With v the cotangent of a power and d the offset from the splat's position, the sums are:
// - v, v d (2 sums), and v times the products xx, xy, yy of d (3 sums);
// - the cotangents of the color (3 sums).
// uses prelude.wgsl: flat_group
// uses splat/common.wgsl: SPLAT_LEN, SUMS, TILE, blocks_of
// uses splat/hits.wgsl: count_hits, hit

struct Params {
    count: u32,
    words: u32,
    // First and end word of the chunk, and number of its splats.
    first_word: u32,
    end_word: u32,
    chunk: u32,
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
@group(0) @binding(5) var<storage, read> d_image: array<f32>;
// Transmittance and remaining cotangent product of each pixel. A transmittance of 0 marks a
// finished pixel. If SPECIAL is 1, the counts of covering and of blended splats follow.
@group(0) @binding(6) var<storage, read_write> pixels: array<f32>;
@group(0) @binding(7) var<storage, read_write> sums: array<f32>;
// For each tile, the rank after the last splat of the chunk that has sums.
@group(0) @binding(8) var<storage, read_write> walked: array<u32>;

// 1: tiles have another side than blocks, or the splats of a tile or pixel are limited.
override SPECIAL: u32 = 0u;

const GREATEST_ALPHA: f32 = 0.99;
// Numbers per pixel.
const STATE: u32 = 2u + 2u * SPECIAL;
// Splats per batch in shared memory, and splats processed together.
const BATCH: u32 = 64u;
const TURN: u32 = 4u;

// Fields of the batch. `places`: position and first two conic entries. `rests`: third conic entry,
// opacity, red, green. `blues`: blue. `ranks`: rank.
var<workgroup> places: array<vec4<f32>, 64>;
var<workgroup> rests: array<vec4<f32>, 64>;
var<workgroup> blues: array<f32, 64>;
var<workgroup> ranks: array<u32, 64>;
// First and end column and row of tiles, if SPECIAL is 1.
var<workgroup> areas: array<vec2<u32>, 64>;
// Contributions of all pixels to four splats: the cotangent of the power and the weight of the
// color. Later the same memory stores sums over some pixels.
var<workgroup> terms: array<f32, 2304>;
// Sums over a quarter of the threads.
var<workgroup> quarters: array<f32, 144>;
// Nonzero if any pixel is unfinished.
var<workgroup> open: atomic<u32>;
var<workgroup> goes_on: u32;

var<private> light: f32;
var<private> rest: f32;
var<private> has_ended: bool;
// Tile of the pixel, and its counts of covering and of blended splats, if SPECIAL is 1.
var<private> own_tile: vec2<u32>;
var<private> entries: u32;
var<private> steps: u32;
var<private> d_color: vec3<f32>;
// Color cotangents of the four pixels that this thread sums.
var<private> d_colors: array<vec3<f32>, 4>;

// The bits of a word whose splats cover a column of tiles.
fn hits_of(word: u32, bits: u32, column: u32) -> u32 {
    var rest_of_bits = bits;
    var found = 0u;
    while rest_of_bits != 0u {
        let bit = firstTrailingBit(rest_of_bits);
        rest_of_bits &= rest_of_bits - 1u;
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
    let rank = min(32u * (first_word + found.x) + found.y, p.count - 1u);
    let at = SPLAT_LEN * min(sorted[rank], p.count - 1u);
    places[local] = vec4(splats[at], splats[at + 1u], splats[at + 2u], splats[at + 3u]);
    rests[local] = vec4(splats[at + 4u], splats[at + 5u], splats[at + 6u], splats[at + 7u]);
    blues[local] = splats[at + 8u];
    ranks[local] = rank;
    if SPECIAL == 1u {
        areas[local] = vec2(columns[2u * rank], columns[2u * rank + 1u]);
    }
}

// True if a splat of the batch covers the tile of this thread's pixel.
fn covers(k: u32) -> bool {
    let across = areas[k].x;
    let down = areas[k].y;
    return (across & 0xffffu) <= own_tile.x && own_tile.x < (across >> 16u)
        && (down & 0xffffu) <= own_tile.y && own_tile.y < (down >> 16u);
}

// Contribution of a pixel to a splat of the batch: the cotangent of its power, and the weight of
// its color.
fn given(k: u32, center: vec2<f32>) -> vec2<f32> {
    if SPECIAL == 1u {
        if !covers(k) {
            return vec2(0.0);
        }
        if entries == p.max_entries {
            has_ended = true;
            return vec2(0.0);
        }
        entries += 1u;
    }
    let place = places[k];
    let more = rests[k];
    let d = center - place.xy;
    let power = -0.5 * (place.z * d.x * d.x + more.x * d.y * d.y) - place.w * d.x * d.y;
    let full = more.y * exp(power);
    let alpha = min(full, GREATEST_ALPHA);
    if !(power <= 0.0 && alpha >= p.min_alpha) {
        return vec2(0.0);
    }
    let next = light * (1.0 - alpha);
    if next < p.min_light || (SPECIAL == 1u && steps == p.max_steps) {
        has_ended = true;
        return vec2(0.0);
    }
    steps += 1u;
    let weight = alpha * light;
    let shown = dot(d_color, vec3(more.z, more.w, blues[k]));
    rest -= weight * shown;
    let d_alpha = light * shown - rest / (1.0 - alpha);
    light = next;
    return vec2(select(0.0, full * d_alpha, full <= GREATEST_ALPHA), weight);
}

// Sums four splats of the batch, from slot `first` on, over the pixels. All threads of the
// workgroup must call this function.
fn sum_turn(first: u32, count: u32, origin: vec2<f32>, tile: u32, local: u32) {
    let own = local / 64u;
    let lane = local % 64u;
    let place = places[min(first + own, BATCH - 1u)];
    var parts: array<f32, 9>;
    for (var j = 0u; j < 4u; j += 1u) {
        let pixel = lane + 64u * j;
        let v = terms[256u * own + pixel];
        let color = terms[1024u + 256u * own + pixel] * d_colors[j];
        let d = origin + vec2(f32(pixel % TILE), f32(pixel / TILE)) - place.xy;
        parts[0] += v;
        parts[1] += v * d.x;
        parts[2] += v * d.y;
        parts[3] += v * d.x * d.x;
        parts[4] += v * d.x * d.y;
        parts[5] += v * d.y * d.y;
        parts[6] += color.x;
        parts[7] += color.y;
        parts[8] += color.z;
    }
    workgroupBarrier();
    for (var value = 0u; value < SUMS; value += 1u) {
        terms[256u * value + local] = parts[value];
    }
    workgroupBarrier();
    if local < 4u * TURN * SUMS {
        // Each invocation adds 16 partial sums: those of one value, of one splat and of one of the four
        // quarters of the splat's threads. `at` is the index of the first of them in `terms`.
        let at = 256u * (local / 16u) + 16u * (local % 16u);
        var sum = 0.0;
        for (var k = 0u; k < 16u; k += 1u) {
            sum += terms[at + k];
        }
        quarters[local] = sum;
    }
    workgroupBarrier();
    if local < TURN * SUMS {
        let splat = local / SUMS;
        let value = local % SUMS;
        if first + splat < count {
            let at = 16u * value + 4u * splat;
            let rank = ranks[min(first + splat, BATCH - 1u)] - 32u * p.first_word;
            let to = SUMS * (tile * p.chunk + rank) + value;
            sums[to] = quarters[at] + quarters[at + 1u] + quarters[at + 2u] + quarters[at + 3u];
        }
    }
}

// True if any pixel is unfinished. All threads of the workgroup must call this function.
fn any_goes_on(local: u32) -> bool {
    workgroupBarrier();
    if local == 0u {
        atomicStore(&open, 0u);
    }
    workgroupBarrier();
    if !has_ended {
        atomicStore(&open, 1u);
    }
    workgroupBarrier();
    if local == 0u {
        goes_on = atomicLoad(&open);
    }
    return workgroupUniformLoad(&goes_on) != 0u;
}

// Processes the hits of a range of words. Returns the rank after the last splat that has sums, or
// 0.
fn walk(count: u32, first_word: u32, center: vec2<f32>, origin: vec2<f32>, tile: u32, local: u32) -> u32 {
    var end = 0u;
    for (var first = 0u; first < count; first += BATCH) {
        if !any_goes_on(local) {
            break;
        }
        if local < BATCH && first + local < count {
            bring(first + local, first_word, local);
        }
        workgroupBarrier();
        let own = min(BATCH, count - first);
        for (var turn = 0u; turn < own; turn += TURN) {
            for (var k = 0u; k < TURN; k += 1u) {
                var gives = vec2(0.0);
                if turn + k < own && !has_ended {
                    gives = given(turn + k, center);
                }
                terms[256u * k + local] = gives.x;
                terms[1024u + 256u * k + local] = gives.y;
            }
            workgroupBarrier();
            sum_turn(turn, own, origin, tile, local);
        }
        end = ranks[own - 1u] + 1u;
    }
    return end;
}

// Cotangent of the color of a pixel; 0 outside the image.
fn d_color_of(x: u32, y: u32) -> vec3<f32> {
    if x >= p.width || y >= p.height {
        return vec3(0.0);
    }
    let at = 3u * (y * p.width + x);
    return vec3(d_image[at], d_image[at + 1u], d_image[at + 2u]);
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
    let at = y * p.width + x;
    light = 0.0;
    if is_inside {
        light = pixels[STATE * at];
        rest = pixels[STATE * at + 1u];
        if SPECIAL == 1u {
            entries = u32(pixels[STATE * at + 2u]);
            steps = u32(pixels[STATE * at + 3u]);
        }
    }
    own_tile = vec2(x, y) / p.tile;
    has_ended = light == 0.0;
    d_color = d_color_of(x, y);
    for (var j = 0u; j < 4u; j += 1u) {
        let pixel = local % 64u + 64u * j;
        d_colors[j] = d_color_of(column * TILE + pixel % TILE, row * TILE + pixel / TILE);
    }
    let origin = vec2(f32(column * TILE) + 0.5, f32(row * TILE) + 0.5);
    let center = vec2(f32(x) + 0.5, f32(y) + 0.5);
    var end = 0u;
    var more = any_goes_on(local);
    for (var first = p.first_word; first < min(p.end_word, p.words) && more; first += 256u) {
        let word = first + local;
        var own = 0u;
        if word < min(p.end_word, p.words) {
            own = hits_of(word, reached[row * p.words + word], column);
        }
        let count = count_hits(own, local);
        if count > 0u {
            end = max(end, walk(count, first, center, origin, tile, local));
            more = any_goes_on(local);
        }
    }
    if is_inside {
        pixels[STATE * at] = select(light, 0.0, has_ended);
        pixels[STATE * at + 1u] = rest;
        if SPECIAL == 1u {
            pixels[STATE * at + 2u] = f32(entries);
            pixels[STATE * at + 3u] = f32(steps);
        }
    }
    if local == 0u {
        walked[tile] = end;
    }
}
