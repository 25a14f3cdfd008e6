// Tiled GEMM core with vector loads. TM x TN threads compute tiles of 8 TM x 8 TN in steps of 16
// along k. Tiles map to x and y of the grid, matmuls to z. A thread owns four squares of 4 x 4, TM
// vectors of rows and TN vectors of columns apart.
//
// Shared tiles store 4 adjacent elements along m or n at one k. The positions of these vectors are
// permuted by k, which avoids bank conflicts of stores along k and of loads. The vectors of the
// next step are prefetched during the arithmetic. Only the first step may be shorter than 16.
// Indices beyond the edges are clamped, and their sums are not stored.
//
// Another fragment defines the operands:
// - row_count, column_count, product_count: the shape and the number of matmuls;
// - enter_product: selects a matmul, for a thread whose vectors begin at a given column;
// - sum_length: k of the selected matmul;
// - first_a, first_b: offsets;
// - first_quad_a, first_quad_b, next_a, next_b: vectors of the first and of later steps;
// - B_ALONG = 1: vectors of b run along columns;
// - store_sums: stores four adjacent results.

override TM: u32 = 16u;
override TN: u32 = 16u;

const COUNT: u32 = TM * TN;
const STEP: u32 = 16u;
const A_QUADS: u32 = 2u * TM;
const B_QUADS: u32 = 2u * TN;
// Vectors of each operand that a thread loads per step: at most 4.
const A_LOADS: u32 = 32u / TN;
const B_LOADS: u32 = 32u / TM;
// Rows of tiles per stripe. Tiles that share columns of b run close together, for cache reuse.
const STRIPE: u32 = 8u;

var<workgroup> a_tile: array<vec4<f32>, STEP * A_QUADS>;
var<workgroup> b_tile: array<vec4<f32>, STEP * B_QUADS>;

// Permuted position of a vector at k, against bank conflicts.
fn turned(quad: u32, k: u32) -> u32 {
    return quad ^ ((k >> 1u) & 6u);
}

// Stores four elements of a row of a, adjacent along k.
fn put_a(line: u32, k: u32, x: vec4<f32>) {
    let at = k * A_QUADS + turned(line / 4u, k);
    a_tile[at][line % 4u] = x.x;
    a_tile[at + A_QUADS][line % 4u] = x.y;
    a_tile[at + 2u * A_QUADS][line % 4u] = x.z;
    a_tile[at + 3u * A_QUADS][line % 4u] = x.w;
}

fn put_b(line: u32, k: u32, x: vec4<f32>) {
    if B_ALONG == 1u {
        b_tile[k * B_QUADS + turned(line, k)] = x;
        return;
    }
    let at = k * B_QUADS + turned(line / 4u, k);
    b_tile[at][line % 4u] = x.x;
    b_tile[at + B_QUADS][line % 4u] = x.y;
    b_tile[at + 2u * B_QUADS][line % 4u] = x.z;
    b_tile[at + 3u * B_QUADS][line % 4u] = x.w;
}

// Row of a and k of a thread's load i.
fn own_a(local: u32, i: u32) -> vec2<u32> {
    return vec2<u32>(local / 4u + i * (COUNT / 4u), (local % 4u) * 4u);
}

// Column of b (or vector of columns) and k of a thread's load i.
fn own_b(local: u32, i: u32) -> vec2<u32> {
    if B_ALONG == 1u {
        return vec2<u32>(local % B_QUADS, local / B_QUADS + i * (COUNT / B_QUADS));
    }
    return vec2<u32>(local / 4u + i * (COUNT / 4u), (local % 4u) * 4u);
}

// Accumulators: the left and right four columns of eight rows.
var<private> l0: vec4<f32>;
var<private> l1: vec4<f32>;
var<private> l2: vec4<f32>;
var<private> l3: vec4<f32>;
var<private> l4: vec4<f32>;
var<private> l5: vec4<f32>;
var<private> l6: vec4<f32>;
var<private> l7: vec4<f32>;
var<private> r0: vec4<f32>;
var<private> r1: vec4<f32>;
var<private> r2: vec4<f32>;
var<private> r3: vec4<f32>;
var<private> r4: vec4<f32>;
var<private> r5: vec4<f32>;
var<private> r6: vec4<f32>;
var<private> r7: vec4<f32>;

// Adds the products at four consecutive values of k, whose tile positions have the same
// permutation.
fn add_four(y_quad: u32, x_quad: u32, k: u32) {
    let at_u = k * A_QUADS + turned(y_quad, k);
    let at_s = k * A_QUADS + turned(y_quad + TM, k);
    let at_v = k * B_QUADS + turned(x_quad, k);
    let at_w = k * B_QUADS + turned(x_quad + TN, k);
    for (var i = 0u; i < 4u; i += 1u) {
        let u = a_tile[at_u + i * A_QUADS];
        let s = a_tile[at_s + i * A_QUADS];
        let v = b_tile[at_v + i * B_QUADS];
        let w = b_tile[at_w + i * B_QUADS];
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

// Marks a value that is uniform across the workgroup. Browsers require a proof of uniformity, so
// `pipeline.rs` of tercet-wgpu replaces this function for them. The replacement contains a barrier,
// so all threads of the workgroup must call this function.
fn uniform_word(x: u32) -> u32 {
    return x;
}

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
@compute @workgroup_size(COUNT)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let tiles_m = (row_count() + 8u * TM - 1u) / (8u * TM);
    let tiles_n = (column_count() + 8u * TN - 1u) / (8u * TN);
    let tile = flat_group(group, groups);
    if tile >= tiles_m * tiles_n {
        return;
    }
    let stripe = tile / (STRIPE * tiles_n);
    let within = tile % (STRIPE * tiles_n);
    let high = min(STRIPE, tiles_m - stripe * STRIPE);
    let row_first = (stripe * STRIPE + within % high) * 8u * TM;
    let col_first = (within / high) * 8u * TN;
    var x_quad = local % TN;
    var y_quad = local / TN;
    if TN == 8u {
        // Maps adjacent threads to pairs of rows: 10 % faster for 4096^3 on a GPU with 132 compute
        // units.
        x_quad = (local / 2u) % 8u;
        y_quad = local / 32u * 4u + local / 16u % 2u * 2u + local % 2u;
    }
    let products = product_count();
    for (var product = group.z; product < products; product += groups.z) {
        enter_product(product, col_first + own_b(local, 0u).x * 4u);
        let length = uniform_word(sum_length());
        l0 = vec4<f32>();
        l1 = vec4<f32>();
        l2 = vec4<f32>();
        l3 = vec4<f32>();
        l4 = vec4<f32>();
        l5 = vec4<f32>();
        l6 = vec4<f32>();
        l7 = vec4<f32>();
        r0 = vec4<f32>();
        r1 = vec4<f32>();
        r2 = vec4<f32>();
        r3 = vec4<f32>();
        r4 = vec4<f32>();
        r5 = vec4<f32>();
        r6 = vec4<f32>();
        r7 = vec4<f32>();
        // The values are in named variables instead of arrays, so that they stay in registers.
        let a0 = first_a(row_first, local, 0u);
        let a1 = first_a(row_first, local, 1u);
        let a2 = first_a(row_first, local, 2u);
        let a3 = first_a(row_first, local, 3u);
        let b0 = first_b(col_first, local, 0u);
        let b1 = first_b(col_first, local, 1u);
        let b2 = first_b(col_first, local, 2u);
        let b3 = first_b(col_first, local, 3u);
        let k_a = own_a(local, 0u).y;
        let k_b = vec4<u32>(own_b(local, 0u).y, own_b(local, 1u).y, own_b(local, 2u).y, own_b(local, 3u).y);
        // The first step handles the remainder of k. If k is 0, the first step is empty.
        let size = select((length - 1u) % STEP + 1u, 0u, length == 0u);
        var u0 = first_quad_a(a0, k_a, size);
        var u1 = first_quad_a(a1, k_a, size);
        var u2 = vec4<f32>();
        var u3 = vec4<f32>();
        if A_LOADS > 2u {
            u2 = first_quad_a(a2, k_a, size);
            u3 = first_quad_a(a3, k_a, size);
        }
        var v0 = first_quad_b(b0, k_b.x, size);
        var v1 = first_quad_b(b1, k_b.y, size);
        var v2 = vec4<f32>();
        var v3 = vec4<f32>();
        if B_LOADS > 2u {
            v2 = first_quad_b(b2, k_b.z, size);
            v3 = first_quad_b(b3, k_b.w, size);
        }
        for (var next = size; ; next += STEP) {
            workgroupBarrier();
            put_a(own_a(local, 0u).x, k_a, u0);
            put_a(own_a(local, 1u).x, k_a, u1);
            put_b(own_b(local, 0u).x, k_b.x, v0);
            put_b(own_b(local, 1u).x, k_b.y, v1);
            if A_LOADS > 2u {
                put_a(own_a(local, 2u).x, k_a, u2);
                put_a(own_a(local, 3u).x, k_a, u3);
            }
            if B_LOADS > 2u {
                put_b(own_b(local, 2u).x, k_b.z, v2);
                put_b(own_b(local, 3u).x, k_b.w, v3);
            }
            workgroupBarrier();
            let more = next < length;
            if more {
                u0 = next_a(a0, next);
                u1 = next_a(a1, next);
                v0 = next_b(b0, next, k_b.x);
                v1 = next_b(b1, next, k_b.y);
                if A_LOADS > 2u {
                    u2 = next_a(a2, next);
                    u3 = next_a(a3, next);
                }
                if B_LOADS > 2u {
                    v2 = next_b(b2, next, k_b.z);
                    v3 = next_b(b3, next, k_b.w);
                }
            } else {
                // If there is no next step, the registers for its operands are cleared: otherwise
                // compilers would copy them and wait for pending loads.
                u0 = vec4<f32>();
                u1 = vec4<f32>();
                u2 = vec4<f32>();
                u3 = vec4<f32>();
                v0 = vec4<f32>();
                v1 = vec4<f32>();
                v2 = vec4<f32>();
                v3 = vec4<f32>();
            }
            // The four calls are unrolled: at the end of a loop, compilers would move accumulators
            // between registers.
            add_four(y_quad, x_quad, 0u);
            add_four(y_quad, x_quad, 4u);
            add_four(y_quad, x_quad, 8u);
            add_four(y_quad, x_quad, 12u);
            if !more {
                break;
            }
        }
        // Only one place in the code applies the activation f, because compilers inline its long
        // code at every call.
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
            if row < row_count() && col < column_count() {
                store_sums(row, col, sums);
            }
        }
        workgroupBarrier();
    }
}
