// Grouped matmul (mixture of experts): y[m, n] = sum over k of x[m, k] w[e, k, n], where e is the
// key of row m, and x has row m / repeats. Rows are processed in sorted order of their keys;
// places[r] is the row with rank r.
// x has arbitrary strides, y is dense. A thread writes 4 adjacent elements along n. 16-bit results
// require an even n. Another fragment defines the weights: fill_w stages the weights of 16 k and 32
// columns in shared memory, and w_quad reads 4 of them.
//
// A workgroup of 64 threads computes 32 columns of 32 consecutive ranks. The workgroup processes
// each run of equal keys separately, in steps of 16 along k. A thread owns 4 x 4 elements.
// uses grouped_floats.wgsl or grouped_packed.wgsl: fill_w, w_quad
// uses prelude.wgsl: flat_group, float_bits, float_of, lane_of, lanes, word_of

struct Params {
    rows: u32,
    n: u32,
    k: u32,
    x_offset: u32,
    x_row: u32,
    x_col: u32,
    w_offset: u32,
    w_matrix: u32,
    w_row: u32,
    w_col: u32,
    repeats: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(3) var<storage, read> keys: array<u32>;
@group(0) @binding(4) var<storage, read> places: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;
override OUT: u32 = 0u;

const COUNT: u32 = 64u;
const TILE: u32 = 32u;
const QUADS: u32 = TILE / 4u;
const STEP: u32 = 16u;

var<workgroup> x_tile: array<vec4<f32>, STEP * QUADS>;

// Element k of the row with this rank; 0 if out of range.
fn x_at(rank: u32, stop: u32, k: u32) -> f32 {
    if rank >= stop || k >= p.k {
        return 0.0;
    }
    let at = p.x_offset + places[rank] / p.repeats * p.x_row + k * p.x_col;
    return float_of(x[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
}

fn store_quad(row: u32, col: u32, sums: vec4<f32>) {
    var word = 0u;
    for (var i = 0u; i < 4u; i += 1u) {
        if col + i >= p.n {
            break;
        }
        let at = row * p.n + col + i;
        let lane = lane_of(at, OUT);
        word |= float_bits(sums[i], OUT) << (16u * lane);
        if lane + 1u == lanes(OUT) || col + i + 1u == p.n {
            y[word_of(at, OUT)] = word;
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
    let tiles_n = (p.n + TILE - 1u) / TILE;
    let tiles_m = (p.rows + TILE - 1u) / TILE;
    let tile = flat_group(group, groups);
    if tile >= tiles_m * tiles_n {
        return;
    }
    let first = tile / tiles_n * TILE;
    let end = min(first + TILE, p.rows);
    let col_first = tile % tiles_n * TILE;
    let x_quad = local / QUADS;
    let col_quad = local % QUADS;
    var begin = first;
    while begin < end {
        let key = keys[begin];
        var stop = begin + 1u;
        while stop < end {
            if keys[stop] != key {
                break;
            }
            stop += 1u;
        }
        let row = begin + x_quad * 4u;
        var a = vec4<f32>();
        var b = vec4<f32>();
        var c = vec4<f32>();
        var d = vec4<f32>();
        for (var k_first = 0u; k_first < p.k; k_first += STEP) {
            for (var i = local; i < STEP * QUADS; i += COUNT) {
                let k = k_first + i % STEP;
                let rank = begin + i / STEP * 4u;
                x_tile[i % STEP * QUADS + i / STEP] = vec4<f32>(
                    x_at(rank, stop, k),
                    x_at(rank + 1u, stop, k),
                    x_at(rank + 2u, stop, k),
                    x_at(rank + 3u, stop, k),
                );
            }
            fill_w(key, k_first, col_first, local);
            workgroupBarrier();
            if row < stop {
                for (var k = 0u; k < STEP; k += 1u) {
                    let u = x_tile[k * QUADS + x_quad];
                    let v = w_quad(k, col_quad);
                    a += u.x * v;
                    b += u.y * v;
                    c += u.z * v;
                    d += u.w * v;
                }
            }
            workgroupBarrier();
        }
        let col = col_first + col_quad * 4u;
        for (var i = 0u; i < 4u; i += 1u) {
            if row + i < stop {
                var sums = a;
                switch i {
                    case 1u: { sums = b; }
                    case 2u: { sums = c; }
                    case 3u: { sums = d; }
                    default: {}
                }
                store_quad(places[row + i], col, sums);
            }
        }
        begin = stop;
    }
}
