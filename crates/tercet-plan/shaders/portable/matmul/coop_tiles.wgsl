// Tiled GEMM on cooperative matrices that WGSL loads and multiplies. DOWN x ACROSS subgroups compute
// tiles of ROWS x COLUMNS in steps of DEPTH along k. Tiles map to x and y of the grid, matmuls and
// split-K parts to z. A subgroup owns FRAGS_M x FRAGS_N square fragments of SIDE.
//
// Both operands are staged through shared memory in the element type of the fragments: a as [m, k],
// b as [n, k], or as [k, n] with B_ALONG = 1. Lines are padded against bank conflicts. Vectors of the
// next step are prefetched to registers during the arithmetic; a second buffer in shared memory was
// slower. Only the first step may be shorter than DEPTH: its missing vectors are 0.
// Indices beyond the edges are clamped, and their sums are not stored. Results go through shared
// memory one fragment at a time, because the positions of elements in a fragment are unspecified.
//
// Accumulators are named variables, because compilers keep them in registers in any case.
//
// Other fragments define:
// - the type of staged elements (Staged), of an element of shared memory (Slot) with 2^SLOT_SHIFT of
//   them, SIDE, the fragment types, put_a and put_b;
// - a_load: four elements of a row of a;
// - b_line, b_load, B_ALONG: four elements of b, along columns or along k.

override DOWN: u32 = 2u;
override ACROSS: u32 = 2u;
override FRAGS_M: u32 = 4u;
override FRAGS_N: u32 = 4u;
override DEPTH: u32 = 32u;
override SUBGROUP: u32 = 32u;
override PARTS: u32 = 1u;

const COUNT: u32 = DOWN * ACROSS * SUBGROUP;
const ROWS: u32 = DOWN * FRAGS_M * SIDE;
const COLUMNS: u32 = ACROSS * FRAGS_N * SIDE;
const PADDING: u32 = 8u;
const A_LINE: u32 = DEPTH + PADDING;
const B_LINE: u32 = DEPTH * (1u - B_ALONG) + COLUMNS * B_ALONG + PADDING;
const A_SIZE: u32 = ROWS * A_LINE;
const B_SIZE: u32 = (COLUMNS * (1u - B_ALONG) + DEPTH * B_ALONG) * B_LINE;
// Vectors of each operand that a thread loads per step: 1, 2, 4 or 8.
const A_LOADS: u32 = ROWS * DEPTH / 4u / COUNT;
const B_LOADS: u32 = COLUMNS * DEPTH / 4u / COUNT;
// Vectors of a line of the staged operands.
const A_QUADS: u32 = DEPTH / 4u;
const B_QUADS: u32 = (DEPTH * (1u - B_ALONG) + COLUMNS * B_ALONG) / 4u;
// Whether a subgroup has four fragments in both directions.
const ALL_FRAGS: bool = FRAGS_M + FRAGS_N == 8u;
const SUMS_LINE: u32 = SIDE + 4u;
const SUMS_SIZE: u32 = SIDE * SUMS_LINE;
// Rows of tiles per stripe. Tiles that share columns of b run close together, for cache reuse.
const STRIPE: u32 = 8u;

const A_SLOTS: u32 = A_SIZE >> SLOT_SHIFT;
const B_SLOTS: u32 = B_SIZE >> SLOT_SHIFT;

var<workgroup> a_tile: array<Slot, A_SLOTS>;
var<workgroup> b_tile: array<Slot, B_SLOTS>;
var<workgroup> sums_tile: array<f32, DOWN * ACROSS * SUMS_SIZE>;

// First element and length of the part of k to sum.
var<private> part_first: u32;
var<private> part_length: u32;

fn enter_product(product: u32) {
    enter_batch(product % p.batch);
    part_first = 0u;
    part_length = p.k;
    if PARTS > 1u {
        let part = product / p.batch;
        let length = ((p.k + DEPTH - 1u) / DEPTH + PARTS - 1u) / PARTS * DEPTH;
        part_first = min(part * length, p.k);
        part_length = min(length, p.k - part_first);
        y_base += part * (p.batch * p.m * p.n);
    }
}

// Row of a and k of a thread's load i.
fn own_a(local: u32, i: u32) -> vec2<u32> {
    let at = local + i * COUNT;
    return vec2<u32>(at / A_QUADS, at % A_QUADS * 4u);
}

// Column of b (or first column of four) and k of a thread's load i.
fn own_b(local: u32, i: u32) -> vec2<u32> {
    let at = local + i * COUNT;
    if B_ALONG == 1u {
        return vec2<u32>(at % B_QUADS * 4u, at / B_QUADS);
    }
    return vec2<u32>(at / B_QUADS, at % B_QUADS * 4u);
}

fn first_a(row_first: u32, local: u32, i: u32) -> u32 {
    let own = own_a(local, i);
    return a_base + min(row_first + own.x, p.m - 1u) * p.a_row + own.y;
}

fn first_b(col_first: u32, local: u32, i: u32) -> u32 {
    let own = own_b(local, i);
    if B_ALONG == 1u {
        return b_base + min(col_first + own.x, p.n - 4u);
    }
    return b_line(min(col_first + own.x, p.n - 1u));
}

// Vector of a for the step at `k_first`, which has `size` elements.
fn next_a(first: u32, local: u32, i: u32, k_first: u32, size: u32) -> vec4<Staged> {
    if own_a(local, i).y >= size {
        return vec4<Staged>();
    }
    return a_load((first + part_first + k_first) / 4u);
}

fn next_b(first: u32, local: u32, i: u32, k_first: u32, size: u32) -> vec4<Staged> {
    let k = own_b(local, i).y;
    if k >= size {
        return vec4<Staged>();
    }
    if B_ALONG == 1u {
        return b_load(first, (part_first + k_first + k) * p.b_row);
    }
    return b_load(first, part_first + k_first + k);
}

// Position of a load in the staged operands.
fn place_a(local: u32, i: u32) -> u32 {
    let own = own_a(local, i);
    return own.x * A_LINE + own.y;
}

fn place_b(local: u32, i: u32) -> u32 {
    let own = own_b(local, i);
    if B_ALONG == 1u {
        return own.y * B_LINE + own.x;
    }
    return own.x * B_LINE + own.y;
}

// Words of a row of a fragment of results, and of a fragment.
fn line_words() -> u32 {
    return SIDE / lanes(Y_TYPE);
}

// Row and first column of word `i` of the fragment that begins at `corner`.
fn place_y(corner: vec2<u32>, i: u32) -> vec2<u32> {
    return corner + vec2<u32>(i / line_words(), i % line_words() * lanes(Y_TYPE));
}

// Whether word `i` is one of the fragment, and within the result.
fn has_word(corner: vec2<u32>, i: u32) -> bool {
    let at = place_y(corner, i);
    return i < SIDE * line_words() && at.x < p.m && at.y < p.n;
}

// The bias of word `i`.
fn word_bias(corner: vec2<u32>, i: u32) -> vec2<f32> {
    var sums = vec2<f32>();
    if BIAS == 1u && has_word(corner, i) {
        let at = place_y(corner, i);
        sums.x = bias_at(at.x, at.y);
        if lanes(Y_TYPE) == 2u {
            sums.y = bias_at(at.x, at.y + 1u);
        }
    }
    return sums;
}

// Stores word `i`, whose fragment of sums starts at `first`.
fn store_word(corner: vec2<u32>, i: u32, first: u32, bias: vec2<f32>) {
    if !has_word(corner, i) {
        return;
    }
    let at = place_y(corner, i);
    let from_sum = first + i / line_words() * SUMS_LINE + i % line_words() * lanes(Y_TYPE);
    var word = 0u;
    for (var lane = 0u; lane < lanes(Y_TYPE); lane += 1u) {
        var y = sums_tile[from_sum + lane];
        if BIAS == 1u {
            y += bias[lane];
        }
        word |= float_bits(activate(y), Y_TYPE) << (16u * lane);
    }
    y_data[(y_base + at.x * p.n + at.y) / lanes(Y_TYPE)] = word;
}

// Marks a value that is uniform across the workgroup. Browsers require a proof of uniformity, so
// `pipeline.rs` of tercet-wgpu replaces this function for them. The replacement contains a barrier,
// so all threads of the workgroup must call this function.
fn uniform_word(x: u32) -> u32 {
    return x;
}

@compute @workgroup_size(COUNT)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let tiles_m = (p.m + ROWS - 1u) / ROWS;
    let tiles_n = (p.n + COLUMNS - 1u) / COLUMNS;
    // Not by a function: naga accepts matrices behind this return only if it sees that all threads
    // of a workgroup agree.
    let tile = group.y * groups.x + group.x;
    if tile >= tiles_m * tiles_n {
        return;
    }
    let stripe = tile / (STRIPE * tiles_n);
    let within = tile % (STRIPE * tiles_n);
    let high = min(STRIPE, tiles_m - stripe * STRIPE);
    let row_first = (stripe * STRIPE + within % high) * ROWS;
    let col_first = (within / high) * COLUMNS;
    let unit = local / SUBGROUP;
    let unit_row = unit / ACROSS * FRAGS_M * SIDE;
    let unit_col = unit % ACROSS * FRAGS_N * SIDE;
    let products = p.batch * PARTS;
    for (var product = group.z; product < products; product += groups.z) {
        enter_product(product);
        let length = uniform_word(part_length);
        var c00 = MatC();
        var c01 = MatC();
        var c02 = MatC();
        var c03 = MatC();
        var c10 = MatC();
        var c11 = MatC();
        var c12 = MatC();
        var c13 = MatC();
        var c20 = MatC();
        var c21 = MatC();
        var c22 = MatC();
        var c23 = MatC();
        var c30 = MatC();
        var c31 = MatC();
        var c32 = MatC();
        var c33 = MatC();
        let a0 = first_a(row_first, local, 0u);
        let a1 = first_a(row_first, local, 1u);
        let a2 = first_a(row_first, local, 2u);
        let a3 = first_a(row_first, local, 3u);
        let a4 = first_a(row_first, local, 4u);
        let a5 = first_a(row_first, local, 5u);
        let a6 = first_a(row_first, local, 6u);
        let a7 = first_a(row_first, local, 7u);
        let b0 = first_b(col_first, local, 0u);
        let b1 = first_b(col_first, local, 1u);
        let b2 = first_b(col_first, local, 2u);
        let b3 = first_b(col_first, local, 3u);
        let b4 = first_b(col_first, local, 4u);
        let b5 = first_b(col_first, local, 5u);
        let b6 = first_b(col_first, local, 6u);
        let b7 = first_b(col_first, local, 7u);
        // The first step has the remainder of k. If k is 0, the first step is empty.
        let size = select((length - 1u) % DEPTH + 1u, 0u, length == 0u);
        var u0 = vec4<Staged>();
        var u1 = vec4<Staged>();
        var u2 = vec4<Staged>();
        var u3 = vec4<Staged>();
        var u4 = vec4<Staged>();
        var u5 = vec4<Staged>();
        var u6 = vec4<Staged>();
        var u7 = vec4<Staged>();
        var v0 = vec4<Staged>();
        var v1 = vec4<Staged>();
        var v2 = vec4<Staged>();
        var v3 = vec4<Staged>();
        var v4 = vec4<Staged>();
        var v5 = vec4<Staged>();
        var v6 = vec4<Staged>();
        var v7 = vec4<Staged>();
        u0 = next_a(a0, local, 0u, 0u, size);
        if A_LOADS > 1u {
            u1 = next_a(a1, local, 1u, 0u, size);
        }
        if A_LOADS > 2u {
            u2 = next_a(a2, local, 2u, 0u, size);
            u3 = next_a(a3, local, 3u, 0u, size);
        }
        if A_LOADS > 4u {
            u4 = next_a(a4, local, 4u, 0u, size);
            u5 = next_a(a5, local, 5u, 0u, size);
            u6 = next_a(a6, local, 6u, 0u, size);
            u7 = next_a(a7, local, 7u, 0u, size);
        }
        v0 = next_b(b0, local, 0u, 0u, size);
        if B_LOADS > 1u {
            v1 = next_b(b1, local, 1u, 0u, size);
        }
        if B_LOADS > 2u {
            v2 = next_b(b2, local, 2u, 0u, size);
            v3 = next_b(b3, local, 3u, 0u, size);
        }
        if B_LOADS > 4u {
            v4 = next_b(b4, local, 4u, 0u, size);
            v5 = next_b(b5, local, 5u, 0u, size);
            v6 = next_b(b6, local, 6u, 0u, size);
            v7 = next_b(b7, local, 7u, 0u, size);
        }
        for (var next = size; ; next += DEPTH) {
            workgroupBarrier();
            put_a(place_a(local, 0u), u0);
            if A_LOADS > 1u {
                put_a(place_a(local, 1u), u1);
            }
            if A_LOADS > 2u {
                put_a(place_a(local, 2u), u2);
                put_a(place_a(local, 3u), u3);
            }
            if A_LOADS > 4u {
                put_a(place_a(local, 4u), u4);
                put_a(place_a(local, 5u), u5);
                put_a(place_a(local, 6u), u6);
                put_a(place_a(local, 7u), u7);
            }
            put_b(place_b(local, 0u), v0);
            if B_LOADS > 1u {
                put_b(place_b(local, 1u), v1);
            }
            if B_LOADS > 2u {
                put_b(place_b(local, 2u), v2);
                put_b(place_b(local, 3u), v3);
            }
            if B_LOADS > 4u {
                put_b(place_b(local, 4u), v4);
                put_b(place_b(local, 5u), v5);
                put_b(place_b(local, 6u), v6);
                put_b(place_b(local, 7u), v7);
            }
            workgroupBarrier();
            let more = next < length;
            if more {
                u0 = next_a(a0, local, 0u, next, DEPTH);
                if A_LOADS > 1u {
                    u1 = next_a(a1, local, 1u, next, DEPTH);
                }
                if A_LOADS > 2u {
                    u2 = next_a(a2, local, 2u, next, DEPTH);
                    u3 = next_a(a3, local, 3u, next, DEPTH);
                }
                if A_LOADS > 4u {
                    u4 = next_a(a4, local, 4u, next, DEPTH);
                    u5 = next_a(a5, local, 5u, next, DEPTH);
                    u6 = next_a(a6, local, 6u, next, DEPTH);
                    u7 = next_a(a7, local, 7u, next, DEPTH);
                }
                v0 = next_b(b0, local, 0u, next, DEPTH);
                if B_LOADS > 1u {
                    v1 = next_b(b1, local, 1u, next, DEPTH);
                }
                if B_LOADS > 2u {
                    v2 = next_b(b2, local, 2u, next, DEPTH);
                    v3 = next_b(b3, local, 3u, next, DEPTH);
                }
                if B_LOADS > 4u {
                    v4 = next_b(b4, local, 4u, next, DEPTH);
                    v5 = next_b(b5, local, 5u, next, DEPTH);
                    v6 = next_b(b6, local, 6u, next, DEPTH);
                    v7 = next_b(b7, local, 7u, next, DEPTH);
                }
            }
            for (var k = 0u; k < DEPTH; k += SIDE) {
                let a_at = unit_row * A_LINE + k;
                var m0: MatA;
                m0 = coopLoadT<MatA>(&a_tile[(a_at + 0u * SIDE * A_LINE) >> SLOT_SHIFT], A_LINE >> SLOT_SHIFT);
                var m1: MatA;
                m1 = coopLoadT<MatA>(&a_tile[(a_at + 1u * SIDE * A_LINE) >> SLOT_SHIFT], A_LINE >> SLOT_SHIFT);
                var m2: MatA;
                if FRAGS_M > 2u {
                    m2 = coopLoadT<MatA>(&a_tile[(a_at + 2u * SIDE * A_LINE) >> SLOT_SHIFT], A_LINE >> SLOT_SHIFT);
                }
                var m3: MatA;
                if FRAGS_M > 2u {
                    m3 = coopLoadT<MatA>(&a_tile[(a_at + 3u * SIDE * A_LINE) >> SLOT_SHIFT], A_LINE >> SLOT_SHIFT);
                }
                var n0: MatB;
                var n1: MatB;
                var n2: MatB;
                var n3: MatB;
                if B_ALONG == 1u {
                    let b_at = k * B_LINE + unit_col;
                    n0 = coopLoadT<MatB>(&b_tile[(b_at + 0u * SIDE) >> SLOT_SHIFT], B_LINE >> SLOT_SHIFT);
                    n1 = coopLoadT<MatB>(&b_tile[(b_at + 1u * SIDE) >> SLOT_SHIFT], B_LINE >> SLOT_SHIFT);
                    if FRAGS_N > 2u {
                        n2 = coopLoadT<MatB>(&b_tile[(b_at + 2u * SIDE) >> SLOT_SHIFT], B_LINE >> SLOT_SHIFT);
                        n3 = coopLoadT<MatB>(&b_tile[(b_at + 3u * SIDE) >> SLOT_SHIFT], B_LINE >> SLOT_SHIFT);
                    }
                } else {
                    let b_at = unit_col * B_LINE + k;
                    n0 = coopLoad<MatB>(&b_tile[(b_at + 0u * SIDE * B_LINE) >> SLOT_SHIFT], B_LINE >> SLOT_SHIFT);
                    n1 = coopLoad<MatB>(&b_tile[(b_at + 1u * SIDE * B_LINE) >> SLOT_SHIFT], B_LINE >> SLOT_SHIFT);
                    if FRAGS_N > 2u {
                        n2 = coopLoad<MatB>(&b_tile[(b_at + 2u * SIDE * B_LINE) >> SLOT_SHIFT], B_LINE >> SLOT_SHIFT);
                        n3 = coopLoad<MatB>(&b_tile[(b_at + 3u * SIDE * B_LINE) >> SLOT_SHIFT], B_LINE >> SLOT_SHIFT);
                    }
                }
                c00 = coopMultiplyAdd(m0, n0, c00);
                c01 = coopMultiplyAdd(m0, n1, c01);
                c10 = coopMultiplyAdd(m1, n0, c10);
                c11 = coopMultiplyAdd(m1, n1, c11);
                if FRAGS_N > 2u {
                    c02 = coopMultiplyAdd(m0, n2, c02);
                    c03 = coopMultiplyAdd(m0, n3, c03);
                    c12 = coopMultiplyAdd(m1, n2, c12);
                    c13 = coopMultiplyAdd(m1, n3, c13);
                }
                if FRAGS_M > 2u {
                    c20 = coopMultiplyAdd(m2, n0, c20);
                    c21 = coopMultiplyAdd(m2, n1, c21);
                    c30 = coopMultiplyAdd(m3, n0, c30);
                    c31 = coopMultiplyAdd(m3, n1, c31);
                    if FRAGS_N > 2u {
                        c22 = coopMultiplyAdd(m2, n2, c22);
                        c23 = coopMultiplyAdd(m2, n3, c23);
                        c32 = coopMultiplyAdd(m3, n2, c32);
                        c33 = coopMultiplyAdd(m3, n3, c33);
                    }
                }
            }
            if !more {
                break;
            }
        }
        let sums_at = unit * SUMS_SIZE;
        for (var i = 0u; i < FRAGS_M * FRAGS_N; i += 1u) {
            let down = i / FRAGS_N;
            let across = i % FRAGS_N;
            switch down * 4u + across {
                case 0u: {
                    coopStoreT(c00, &sums_tile[sums_at], SUMS_LINE);
                }
                case 1u: {
                    coopStoreT(c01, &sums_tile[sums_at], SUMS_LINE);
                }
                case 2u: {
                    if FRAGS_N > 2u {
                        coopStoreT(c02, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 3u: {
                    if FRAGS_N > 2u {
                        coopStoreT(c03, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 4u: {
                    coopStoreT(c10, &sums_tile[sums_at], SUMS_LINE);
                }
                case 5u: {
                    coopStoreT(c11, &sums_tile[sums_at], SUMS_LINE);
                }
                case 6u: {
                    if FRAGS_N > 2u {
                        coopStoreT(c12, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 7u: {
                    if FRAGS_N > 2u {
                        coopStoreT(c13, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 8u: {
                    if FRAGS_M > 2u {
                        coopStoreT(c20, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 9u: {
                    if FRAGS_M > 2u {
                        coopStoreT(c21, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 10u: {
                    if ALL_FRAGS {
                        coopStoreT(c22, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 11u: {
                    if ALL_FRAGS {
                        coopStoreT(c23, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 12u: {
                    if FRAGS_M > 2u {
                        coopStoreT(c30, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 13u: {
                    if FRAGS_M > 2u {
                        coopStoreT(c31, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 14u: {
                    if ALL_FRAGS {
                        coopStoreT(c32, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                case 15u: {
                    if ALL_FRAGS {
                        coopStoreT(c33, &sums_tile[sums_at], SUMS_LINE);
                    }
                }
                default: {}
            }
            workgroupBarrier();
            // Neighbouring threads store neighbouring words. A thread waits once for four biases.
            let corner = vec2<u32>(row_first + unit_row + down * SIDE, col_first + unit_col + across * SIDE);
            for (var i = local % SUBGROUP; i < SIDE * line_words(); i += 4u * SUBGROUP) {
                let b0 = word_bias(corner, i);
                let b1 = word_bias(corner, i + SUBGROUP);
                let b2 = word_bias(corner, i + 2u * SUBGROUP);
                let b3 = word_bias(corner, i + 3u * SUBGROUP);
                for (var j = 0u; j < 4u; j += 1u) {
                    let bias = select(select(b2, b3, j == 3u), select(b0, b1, j == 1u), j < 2u);
                    store_word(corner, i + j * SUBGROUP, sums_at, bias);
                }
            }
            workgroupBarrier();
        }
    }
}
