// y[n, o, p] = f(sum_k w[o, k] x[n, window p, tap k] + bias[o]): a product whose right side is gathered from x
// while it is multiplied (implicit GEMM). Rows are the m channels of the result in a group, columns the
// windows of all batch entries, k the channels of a group times taps.
//
// TM x TN invocations compute tiles of 8 TM x 8 TN in steps of 16 along k; tiles in x and y of the grid,
// groups in z. An invocation owns four squares of 4 x 4, TM quads of rows and TN of columns apart, and
// gathers the same four columns in all steps. While a step is multiplied, the next is on its way from memory.
// Shared tiles hold 4 neighbours along rows or columns at one k; places of rows are permuted by k, so that
// filling them along k does not run into one bank. 16-bit results have an even number of windows.

override TM: u32 = 16u;
override TN: u32 = 16u;

const COUNT: u32 = TM * TN;
const STEP: u32 = 16u;
const W_QUADS: u32 = 2u * TM;
const X_QUADS: u32 = 2u * TN;
// Quads that an invocation loads of each operand per step: up to 4.
const W_LOADS: u32 = 32u / TN;
const X_LOADS: u32 = 32u / TM;
const X_STEP: u32 = COUNT / X_QUADS;

var<workgroup> w_tile: array<vec4<f32>, STEP * W_QUADS>;
var<workgroup> x_tile: array<vec4<f32>, STEP * X_QUADS>;

// The first taps of four windows, as places in x and along the spatial axes.
struct Columns {
    place: vec4<u32>,
    d: vec4<u32>,
    h: vec4<u32>,
    w: vec4<u32>,
}

// Columns beyond the last are read as the last: their sums are not stored.
fn column_at(column: u32, group_place: u32) -> vec4<u32> {
    let j = min(column, p.batch * p.windows - 1u);
    let at = window_at(j % p.windows);
    return vec4<u32>(group_place + (j / p.windows) * p.x_batch + place_of(at), at);
}

fn columns_at(first: u32, group_place: u32) -> Columns {
    let a = column_at(first, group_place);
    let b = column_at(first + 1u, group_place);
    let c = column_at(first + 2u, group_place);
    let d = column_at(first + 3u, group_place);
    return Columns(
        vec4<u32>(a.x, b.x, c.x, d.x),
        vec4<u32>(a.y, b.y, c.y, d.y),
        vec4<u32>(a.z, b.z, c.z, d.z),
        vec4<u32>(a.w, b.w, c.w, d.w),
    );
}

// What four windows read at one k.
fn gathered(c: Columns, k: u32) -> vec4<f32> {
    if k >= p.k {
        return vec4<f32>();
    }
    let tap = tap_at(k % TAPS);
    let step = (k / TAPS) * p.x_channel + place_of(tap);
    return vec4<f32>(
        x_at(c.place.x + step, is_inside(vec3<u32>(c.d.x, c.h.x, c.w.x) + tap)),
        x_at(c.place.y + step, is_inside(vec3<u32>(c.d.y, c.h.y, c.w.y) + tap)),
        x_at(c.place.z + step, is_inside(vec3<u32>(c.d.z, c.h.z, c.w.z) + tap)),
        x_at(c.place.w + step, is_inside(vec3<u32>(c.d.w, c.h.w, c.w.w) + tap)),
    );
}

fn turned(quad: u32, k: u32) -> u32 {
    return quad ^ ((k >> 1u) & 6u);
}

// Four neighbours along k of a row of w, spread over their places.
fn put_w(line: u32, k: u32, x: vec4<f32>) {
    let at = k * W_QUADS + turned(line / 4u, k);
    w_tile[at][line % 4u] = x.x;
    w_tile[at + W_QUADS][line % 4u] = x.y;
    w_tile[at + 2u * W_QUADS][line % 4u] = x.z;
    w_tile[at + 3u * W_QUADS][line % 4u] = x.w;
}

fn next_w(row: u32, k: u32) -> vec4<f32> {
    return w_quad(row + k, max(p.k, k) - k);
}

// Stores four windows of a channel.
fn store_quad(channel: u32, column: u32, sums: vec4<f32>) {
    let columns = p.batch * p.windows;
    var word = 0u;
    for (var i = 0u; i < 4u; i += 1u) {
        let j = column + i;
        if j >= columns {
            break;
        }
        let at = ((j / p.windows) * p.groups * p.m + channel) * p.windows + j % p.windows;
        let lane = lane_of(at, Y_TYPE);
        word |= float_bits(finish(sums[i], 0u, channel), Y_TYPE) << (16u * lane);
        if lane + 1u == lanes(Y_TYPE) {
            y_data[word_of(at, Y_TYPE)] = word;
            word = 0u;
        }
    }
}

@compute @workgroup_size(COUNT)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let tiles_m = (p.m + 8u * TM - 1u) / (8u * TM);
    let tiles_n = (p.batch * p.windows + 8u * TN - 1u) / (8u * TN);
    let tile = flat_group(group, groups);
    if tile >= tiles_m * tiles_n {
        return;
    }
    // Tiles of the same windows run near each other.
    let row_first = (tile % tiles_m) * 8u * TM;
    let col_first = (tile / tiles_m) * 8u * TN;
    let x_quad = local % TN;
    let y_quad = local / TN;
    let own_line = local / 4u;
    let own_k = (local % 4u) * 4u;
    let own_quad = local % X_QUADS;
    let first_k = local / X_QUADS;
    for (var g = group.z; g < p.groups; g += groups.z) {
        let cols = columns_at(col_first + own_quad * 4u, p.x_offset + g * p.channels * p.x_channel);
        // By name, not in arrays: they are to stay in registers.
        let row0 = (g * p.m + min(row_first + own_line, p.m - 1u)) * p.k;
        let row1 = (g * p.m + min(row_first + own_line + COUNT / 4u, p.m - 1u)) * p.k;
        let row2 = (g * p.m + min(row_first + own_line + 2u * (COUNT / 4u), p.m - 1u)) * p.k;
        let row3 = (g * p.m + min(row_first + own_line + 3u * (COUNT / 4u), p.m - 1u)) * p.k;
        // Left and right four columns of eight rows.
        var l0 = vec4<f32>();
        var l1 = vec4<f32>();
        var l2 = vec4<f32>();
        var l3 = vec4<f32>();
        var l4 = vec4<f32>();
        var l5 = vec4<f32>();
        var l6 = vec4<f32>();
        var l7 = vec4<f32>();
        var r0 = vec4<f32>();
        var r1 = vec4<f32>();
        var r2 = vec4<f32>();
        var r3 = vec4<f32>();
        var r4 = vec4<f32>();
        var r5 = vec4<f32>();
        var r6 = vec4<f32>();
        var r7 = vec4<f32>();
        var u0 = next_w(row0, own_k);
        var u1 = next_w(row1, own_k);
        var u2 = vec4<f32>();
        var u3 = vec4<f32>();
        if W_LOADS > 2u {
            u2 = next_w(row2, own_k);
            u3 = next_w(row3, own_k);
        }
        var v0 = gathered(cols, first_k);
        var v1 = gathered(cols, first_k + X_STEP);
        var v2 = vec4<f32>();
        var v3 = vec4<f32>();
        if X_LOADS > 2u {
            v2 = gathered(cols, first_k + 2u * X_STEP);
            v3 = gathered(cols, first_k + 3u * X_STEP);
        }
        for (var k_first = 0u; k_first < p.k; k_first += STEP) {
            workgroupBarrier();
            put_w(own_line, own_k, u0);
            put_w(own_line + COUNT / 4u, own_k, u1);
            x_tile[first_k * X_QUADS + own_quad] = v0;
            x_tile[(first_k + X_STEP) * X_QUADS + own_quad] = v1;
            if W_LOADS > 2u {
                put_w(own_line + 2u * (COUNT / 4u), own_k, u2);
                put_w(own_line + 3u * (COUNT / 4u), own_k, u3);
            }
            if X_LOADS > 2u {
                x_tile[(first_k + 2u * X_STEP) * X_QUADS + own_quad] = v2;
                x_tile[(first_k + 3u * X_STEP) * X_QUADS + own_quad] = v3;
            }
            workgroupBarrier();
            let next = k_first + STEP;
            if next < p.k {
                u0 = next_w(row0, next + own_k);
                u1 = next_w(row1, next + own_k);
                v0 = gathered(cols, next + first_k);
                v1 = gathered(cols, next + first_k + X_STEP);
                if W_LOADS > 2u {
                    u2 = next_w(row2, next + own_k);
                    u3 = next_w(row3, next + own_k);
                }
                if X_LOADS > 2u {
                    v2 = gathered(cols, next + first_k + 2u * X_STEP);
                    v3 = gathered(cols, next + first_k + 3u * X_STEP);
                }
            } else {
                // Without this compilers keep the old values, and wait for the new ones at once.
                u0 = vec4<f32>();
                u1 = vec4<f32>();
                u2 = vec4<f32>();
                u3 = vec4<f32>();
                v0 = vec4<f32>();
                v1 = vec4<f32>();
                v2 = vec4<f32>();
                v3 = vec4<f32>();
            }
            // Four of k have the same places.
            for (var k = 0u; k < STEP; k += 4u) {
                let at_u = k * W_QUADS + turned(y_quad, k);
                let at_s = k * W_QUADS + turned(y_quad + TM, k);
                let at_v = k * X_QUADS + x_quad;
                for (var i = 0u; i < 4u; i += 1u) {
                    let u = w_tile[at_u + i * W_QUADS];
                    let s = w_tile[at_s + i * W_QUADS];
                    let v = x_tile[at_v + i * X_QUADS];
                    let w = x_tile[at_v + TN + i * X_QUADS];
                    l0 += u.x * v;
                    l1 += u.y * v;
                    l2 += u.z * v;
                    l3 += u.w * v;
                    l4 += s.x * v;
                    l5 += s.y * v;
                    l6 += s.z * v;
                    l7 += s.w * v;
                    r0 += u.x * w;
                    r1 += u.y * w;
                    r2 += u.z * w;
                    r3 += u.w * w;
                    r4 += s.x * w;
                    r5 += s.y * w;
                    r6 += s.z * w;
                    r7 += s.w * w;
                }
            }
        }
        // One place in the code applies f: it is long, and compilers copy it to each place.
        for (var i = 0u; i < 16u; i += 1u) {
            var sums = l0;
            switch i {
                case 1u: { sums = l1; }
                case 2u: { sums = l2; }
                case 3u: { sums = l3; }
                case 4u: { sums = l4; }
                case 5u: { sums = l5; }
                case 6u: { sums = l6; }
                case 7u: { sums = l7; }
                case 8u: { sums = r0; }
                case 9u: { sums = r1; }
                case 10u: { sums = r2; }
                case 11u: { sums = r3; }
                case 12u: { sums = r4; }
                case 13u: { sums = r5; }
                case 14u: { sums = r6; }
                case 15u: { sums = r7; }
                default: {}
            }
            let row = row_first + (y_quad + TM * ((i / 4u) % 2u)) * 4u + i % 4u;
            let col = col_first + (x_quad + TN * (i / 8u)) * 4u;
            if row < p.m {
                store_quad(g * p.m + row, col, sums);
            }
        }
    }
}
