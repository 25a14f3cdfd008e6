// GEMV with quantized weights: columns of b are rows of blocks, read in the pieces of
// `dequant/pieces.wgsl`; `b_col` is in bytes. The next piece of each column is prefetched. The
// first pieces are loaded before the tile of a is filled.
// uses dequant/pieces.wgsl or dequant/pieces_coded.wgsl: GROUPS, PARTS, Raw, codes, hide_constants, raw_of, scales, spot_in
// uses matmul/gemv_tile.wgsl: PER, PIECE, STEPS, add_quad, place, turn_to, x_at
// uses matmul/operands.wgsl: b_base, p

const QUADS: u32 = 4u * GROUPS;
// With one row: the sums of the elements of each group, needed for the minima.
const EXTRA: u32 = HAS_MIN * (1u - SEVERAL_ROWS);

fn group_sum(step: u32, quad: u32, slice: u32) -> f32 {
    let first = x_at(step, 0u, quad, slice) + x_at(step, 0u, quad + 1u, slice);
    return total(first + x_at(step, 0u, quad + 2u, slice) + x_at(step, 0u, quad + 3u, slice));
}

fn add_extra(local: u32) {
    for (var i = local; i < STEPS * SLICES; i += 256u) {
        let step = i / SLICES;
        let slice = i % SLICES;
        var both = vec4<f32>(group_sum(step, 0u, slice), 0.0, 0.0, 0.0);
        if GROUPS == 2u {
            both.y = group_sum(step, 4u, slice);
        }
        memory[place(step, 0u, QUADS, slice)] = both;
    }
}

fn spot_of(i: u32) -> vec2<u32> {
    return spot_in(i / BLOCK_LEN, i % BLOCK_LEN);
}

// Per column and group: the sums of quantized values times elements.
struct Sums {
    u0: vec4<f32>,
    u1: vec4<f32>,
    v0: vec4<f32>,
    v1: vec4<f32>,
}

var<private> sums: Sums;

fn total(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}

// For one activation row: adds the products of the quantized values in word i.
fn add_word(u: Raw, v: Raw, i: u32, step: u32, slice: u32) {
    let x0 = x_at(step, 0u, i, slice);
    sums.u0 += codes(u, 0u, i) * x0;
    if PER == 2u {
        sums.v0 += codes(v, 0u, i) * x0;
    }
    if GROUPS == 2u {
        let x1 = x_at(step, 0u, 4u + i, slice);
        sums.u1 += codes(u, 1u, i) * x1;
        if PER == 2u {
            sums.v1 += codes(v, 1u, i) * x1;
        }
    }
}

// Sum of a piece, computed from the sums of its groups.
fn piece_sum(scale: vec4<f32>, codes0: vec4<f32>, codes1: vec4<f32>, x: vec2<f32>) -> f32 {
    var sum = scale.x * total(codes0);
    if GROUPS == 2u {
        sum += scale.z * total(codes1);
    }
    if HAS_MIN == 1u {
        sum += scale.y * x.x;
        if GROUPS == 2u {
            sum += scale.w * x.y;
        }
    }
    return sum;
}

fn one_row(u: Raw, v: Raw, step: u32, slice: u32) {
    sums = Sums();
    add_word(u, v, 0u, step, slice);
    add_word(u, v, 1u, step, slice);
    add_word(u, v, 2u, step, slice);
    add_word(u, v, 3u, step, slice);
    var x = vec2<f32>();
    if HAS_MIN == 1u {
        x = x_at(step, 0u, QUADS, slice).xy;
    }
    first_low.x += piece_sum(scales(u), sums.u0, sums.u1, x);
    if PER == 2u {
        second_low.x += piece_sum(scales(v), sums.v0, sums.v1, x);
    }
}

fn weights_of(raw: Raw, scale: vec2<f32>, group: u32, i: u32) -> vec4<f32> {
    let values = scale.x * codes(raw, group, i);
    if HAS_MIN == 1u {
        return values + vec4<f32>(scale.y);
    }
    return values;
}

fn all_rows(u: Raw, v: Raw, step: u32, slice: u32) {
    let us = scales(u);
    let vs = scales(v);
    add_group(u, v, us.xy, vs.xy, 0u, step, slice);
    if GROUPS == 2u {
        add_group(u, v, us.zw, vs.zw, 1u, step, slice);
    }
}

// For several activation rows: adds the products of a group of weights. The code is unrolled, so
// that words of pieces stay in registers.
fn add_group(u: Raw, v: Raw, us: vec2<f32>, vs: vec2<f32>, group: u32, step: u32, slice: u32) {
    let quad = 4u * group;
    add_quad(weights_of(u, us, group, 0u), weights_of(v, vs, group, 0u), step, quad, slice);
    add_quad(weights_of(u, us, group, 1u), weights_of(v, vs, group, 1u), step, quad + 1u, slice);
    add_quad(weights_of(u, us, group, 2u), weights_of(v, vs, group, 2u), step, quad + 2u, slice);
    add_quad(weights_of(u, us, group, 3u), weights_of(v, vs, group, 3u), step, quad + 3u, slice);
}

fn row_blocks() -> u32 {
    return p.k / BLOCK_LEN;
}

fn piece_of(column: u32, piece: u32) -> Raw {
    return raw_of(Block(column, piece / PARTS), piece % PARTS);
}

fn accumulate(col: u32, slice: u32, local: u32, fresh: bool) {
    let pieces = p.k / PIECE;
    if pieces == 0u {
        return;
    }
    hide_constants(p.zero);
    let u = b_base + col * p.b_col;
    let v = b_base + beside(col) * p.b_col;
    let last = pieces - 1u;
    var next_u = piece_of(u, min(slice, last));
    var next_v = next_u;
    if PER == 2u {
        next_v = piece_of(v, min(slice, last));
    }
    for (var first = 0u; first < pieces; first += STEPS * SLICES) {
        turn_to(first, local, fresh);
        // The trip count is unknown to the compiler, so the loop is not unrolled.
        let left = select(0u, (pieces - first - slice + SLICES - 1u) / SLICES, first + slice < pieces);
        for (var step = 0u; step < min(STEPS, left); step += 1u) {
            let piece = first + step * SLICES + slice;
            let now_u = next_u;
            let now_v = next_v;
            // The index is clamped instead of tested in a branch: inside a branch, compilers would
            // wait for the loads.
            let after = min(piece + SLICES, last);
            next_u = piece_of(u, after);
            if PER == 2u {
                next_v = piece_of(v, after);
            }
            if ROWS == 1u {
                one_row(now_u, now_v, step, slice);
            } else {
                all_rows(now_u, now_v, step, slice);
            }
        }
    }
}
