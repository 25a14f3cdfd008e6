// K-major GEMV with 16-byte loads: b has stride 1 along k and is read in vectors of 4 or 8
// elements. Offsets, columns and k are multiples of the vector length. Two pieces of each column
// are prefetched while two are used, so that memory stays busy. The first pieces are loaded before
// the tile of a is filled.
// uses matmul/gemv_tile.wgsl: PER, PIECE, STEPS, add_quad, turn_to
// uses matmul/operands.wgsl: b_base, p

override B_TYPE: u32 = 0u;

@group(0) @binding(2) var<storage, read> b_data: array<vec4<u32>>;

const QUADS: u32 = 1u + (B_TYPE + 1u) / 2u;
const EXTRA: u32 = 0u;

fn add_extra(local: u32) {}

fn spot_of(i: u32) -> vec2<u32> {
    return vec2<u32>(i / PIECE, i % PIECE / 4u);
}

struct Pieces {
    u0: vec4<u32>,
    u1: vec4<u32>,
    v0: vec4<u32>,
    v1: vec4<u32>,
}

// Loads pieces `piece` and `piece + SLICES` of two columns at vector offsets u and v. Indices are
// clamped to the last piece.
fn load(u: u32, v: u32, piece: u32, last: u32) -> Pieces {
    let i = min(piece, last);
    let j = min(piece + SLICES, last);
    var pieces = Pieces(b_data[u + i], b_data[u + j], vec4<u32>(), vec4<u32>());
    if PER == 2u {
        pieces.v0 = b_data[v + i];
        pieces.v1 = b_data[v + j];
    }
    return pieces;
}

fn floats_of(words: vec2<u32>) -> vec4<f32> {
    return vec4<f32>(pair_of(words.x, B_TYPE), pair_of(words.y, B_TYPE));
}

fn take(u: vec4<u32>, v: vec4<u32>, step: u32, slice: u32) {
    if QUADS == 1u {
        add_quad(bitcast<vec4<f32>>(u), bitcast<vec4<f32>>(v), step, 0u, slice);
        return;
    }
    add_quad(floats_of(u.xy), floats_of(v.xy), step, 0u, slice);
    add_quad(floats_of(u.zw), floats_of(v.zw), step, 1u, slice);
}

fn accumulate(col: u32, slice: u32, local: u32, fresh: bool) {
    let pieces = p.k / PIECE;
    if pieces == 0u {
        return;
    }
    let u = (b_base + col * p.b_col) / PIECE;
    let v = (b_base + beside(col) * p.b_col) / PIECE;
    var next = load(u, v, slice, pieces - 1u);
    for (var first = 0u; first < pieces; first += STEPS * SLICES) {
        turn_to(first, local, fresh);
        for (var step = 0u; step < STEPS && first + step * SLICES < pieces; step += 2u) {
            let piece = first + step * SLICES + slice;
            let now = next;
            next = load(u, v, piece + 2u * SLICES, pieces - 1u);
            if piece < pieces {
                take(now.u0, now.v0, step, slice);
            }
            if piece + SLICES < pieces {
                take(now.u1, now.v1, step + 1u, slice);
            }
        }
    }
}
