// Tiled GEMM with scalar loads. A workgroup of SIDE^2 threads computes tiles of TILE x TILE, TILE =
// 4 SIDE (1 + WIDE), in steps of 16 along k. Tiles map to x and y of the grid, batches to z. A
// thread owns (1 + WIDE)^2 squares of 4 x 4, SIDE squares apart. 16-bit results require an even n,
// so that each thread owns whole words.
//
// Shared tiles store 4 adjacent elements along m or n at one k. The positions of these vectors are
// permuted by k, which avoids bank conflicts of stores along k and of loads. Adjacent threads load
// along k if *_ALONG is 0, along m or n if it is 1; the axis with stride 1 is selected.
// uses matmul/activated.wgsl or matmul/plain.wgsl: begin
// uses matmul/every_tile.wgsl or matmul/left_tiles.wgsl: is_left
// uses matmul/gemm_floats.wgsl or matmul/gemm_packed.wgsl: load_b
// uses prelude.wgsl: flat_group, float_bits, lane_of, lanes, word_of

override SIDE: u32 = 16u;
override WIDE: u32 = 0u;
override A_ALONG: u32 = 0u;

const COUNT: u32 = SIDE * SIDE;
const TILE: u32 = SIDE * 4u * (1u + WIDE);
const QUADS: u32 = TILE / 4u;
const STEP: u32 = 16u;
// Rows of tiles per stripe. Tiles that share columns of b run close together, for cache reuse.
const STRIPE: u32 = 8u;

var<workgroup> a_tile: array<vec4<f32>, STEP * QUADS>;
var<workgroup> b_tile: array<vec4<f32>, STEP * QUADS>;

fn place(k: u32, quad: u32) -> u32 {
    return k * QUADS + (quad ^ (k & 7u));
}

fn load_a(first: u32, k_first: u32, local: u32) {
    for (var i = local; i < STEP * QUADS; i += COUNT) {
        var k = i % STEP;
        var quad = i / STEP;
        if A_ALONG == 1u {
            k = i / QUADS;
            quad = i % QUADS;
        }
        let row = first + quad * 4u;
        let at = k_first + k;
        a_tile[place(k, quad)] = vec4<f32>(a_at(row, at), a_at(row + 1u, at), a_at(row + 2u, at), a_at(row + 3u, at));
    }
}

fn store_quad(row: u32, col: u32, sums: vec4<f32>) {
    if row >= p.m {
        return;
    }
    var word = 0u;
    for (var i = 0u; i < 4u; i += 1u) {
        let j = col + i;
        if j >= p.n {
            break;
        }
        let at = y_base + row * p.n + j;
        let lane = lane_of(at, Y_TYPE);
        word |= float_bits(finish(sums[i], row, j), Y_TYPE) << (16u * lane);
        if lane + 1u == lanes(Y_TYPE) || j + 1u == p.n {
            y_data[word_of(at, Y_TYPE)] = word;
            word = 0u;
        }
    }
}

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
@compute @workgroup_size(COUNT)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let tiles_m = (p.m + TILE - 1u) / TILE;
    let tiles_n = (p.n + TILE - 1u) / TILE;
    let tile = flat_group(group, groups);
    if tile >= tiles_m * tiles_n {
        return;
    }
    let stripe = tile / (STRIPE * tiles_n);
    let within = tile % (STRIPE * tiles_n);
    let high = min(STRIPE, tiles_m - stripe * STRIPE);
    let row_first = (stripe * STRIPE + within % high) * TILE;
    let col_first = (within / high) * TILE;
    let x_quad = local % SIDE;
    let y_quad = local / SIDE;
    for (var batch = group.z; batch < p.batch; batch += groups.z) {
        if !is_left(batch, row_first, col_first) {
            continue;
        }
        enter_batch(batch);
        // Accumulators: the left and right four columns of eight rows. Without WIDE, only the left
        // four columns of the first four rows are used.
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
        for (var k_first = 0u; k_first < p.k; k_first += STEP) {
            load_a(row_first, k_first, local);
            load_b(col_first, k_first, local);
            workgroupBarrier();
            for (var k = 0u; k < STEP; k += 1u) {
                let u = a_tile[place(k, y_quad)];
                let v = b_tile[place(k, x_quad)];
                l0 += u.x * v;
                l1 += u.y * v;
                l2 += u.z * v;
                l3 += u.w * v;
                if WIDE == 1u {
                    let s = a_tile[place(k, y_quad + SIDE)];
                    let w = b_tile[place(k, x_quad + SIDE)];
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
            workgroupBarrier();
        }
        // Only one place in the code applies the activation f, because compilers inline its long
        // code at every call.
        for (var i = 0u; i < 4u + 12u * WIDE; i += 1u) {
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
            let row = row_first + (y_quad + SIDE * ((i / 4u) % 2u)) * 4u + i % 4u;
            let col = col_first + (x_quad + SIDE * (i / 8u)) * 4u;
            store_quad(row, col, sums);
        }
    }
}
