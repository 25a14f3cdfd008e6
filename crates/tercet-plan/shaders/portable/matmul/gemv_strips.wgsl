// N-major GEMV with 16-byte loads: one row times float weights that are contiguous along n.
// Offsets, rows of b and n are multiples of a piece: one 16-byte load of b, 4 or 8 elements. LANES
// adjacent threads load one piece each of a row of b. SLICES groups of LANES threads divide the
// rows of b, DEPTH rows per iteration. Partial sums are reduced by shuffles, then in shared memory.
// A workgroup computes LANES pieces of columns. Groups map to x and y, batches to z.
// uses matmul/activated.wgsl or matmul/plain.wgsl: activate, begin
// uses prelude.wgsl: F32, flat_group, float_bits, lanes, word_of

override B_TYPE: u32 = 0u;
// Threads per row of b: a power of two from 1 to 16.
override LANES: u32 = 2u;
override DEPTH: u32 = 4u;

@group(0) @binding(2) var<storage, read> b_data: array<vec4<u32>>;

const SLICES: u32 = 256u / LANES;
// Vectors of four elements per piece, and per row of a workgroup.
const QUADS: u32 = 1u + (B_TYPE + 1u) / 2u;
const PIECE: u32 = 4u * QUADS;
const LINE: u32 = LANES * QUADS;
const COLUMNS: u32 = LANES * PIECE;
// Slices in one cluster.
const MATES: u32 = max(min(CLUSTER / LANES, SLICES), 1u);
const GROUPS: u32 = SLICES / MATES;

var<workgroup> memory: array<vec4<f32>, GROUPS * LINE>;

var<private> held: array<vec4<u32>, DEPTH>;
var<private> row: array<f32, DEPTH>;
var<private> sums: array<vec4<f32>, QUADS>;

fn b_four(words: vec4<u32>, quad: u32) -> vec4<f32> {
    if B_TYPE == F32 {
        return bitcast<vec4<f32>>(words);
    }
    let two = select(words.xy, words.zw, quad == 1u);
    return vec4<f32>(pair_of(two.x, B_TYPE), pair_of(two.y, B_TYPE));
}

// Loads DEPTH rows of b from `first` on, SLICES apart.
fn ask(first: u32, col: u32) {
    for (var i = 0u; i < DEPTH; i += 1u) {
        let k = first + i * SLICES;
        let at = (b_base + min(k, p.k - 1u) * p.b_row + col) / PIECE;
        held[i] = b_data[at];
    }
}

// Adds the products of the DEPTH rows of b loaded from `first` on.
fn take(first: u32) {
    for (var i = 0u; i < DEPTH; i += 1u) {
        row[i] = row_at(first + i * SLICES);
    }
    for (var i = 0u; i < DEPTH; i += 1u) {
        // Rows beyond k may contain NaN, so they are replaced by 0.
        let words = select(vec4<u32>(), held[i], first + i * SLICES < p.k);
        for (var quad = 0u; quad < QUADS; quad += 1u) {
            sums[quad] += row[i] * b_four(words, quad);
        }
    }
}

// Reduces the sums of all slices into the first vectors of the memory.
fn meet(lane: u32, slice: u32, local: u32) {
    for (var quad = 0u; quad < QUADS; quad += 1u) {
        var sum = sums[quad];
        for (var mask = LANES; mask < LANES * MATES; mask *= 2u) {
            sum += shuffle_xor4(sum, mask);
        }
        if slice % MATES == 0u {
            memory[slice / MATES * LINE + lane * QUADS + quad] = sum;
        }
    }
    workgroupBarrier();
    for (var left = GROUPS; left > 1u;) {
        let part = max(left / 4u, 1u);
        if local < part * LINE {
            var sum = memory[local];
            for (var other = part; other < left; other += part) {
                sum += memory[local + other * LINE];
            }
            memory[local] = sum;
        }
        left = part;
        workgroupBarrier();
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let lane = local % LANES;
    let slice = local / LANES;
    let first = flat_group(group, groups) * COLUMNS;
    if first >= p.n {
        return;
    }
    let col = min(first + lane * PIECE, p.n - PIECE);
    let within = local * lanes(Y_TYPE);
    let is_mine = within < COLUMNS && first + within < p.n;
    for (var batch = group.z; batch < p.batch; batch += groups.z) {
        enter_batch(batch);
        // Bias prefetch, so that the final store does not wait for it.
        var added = vec2<f32>();
        if BIAS == 1u && is_mine {
            for (var i = 0u; i < lanes(Y_TYPE); i += 1u) {
                added[i] = bias_at(0u, first + within + i);
            }
        }
        for (var quad = 0u; quad < QUADS; quad += 1u) {
            sums[quad] = vec4<f32>();
        }
        // Weight loads overlap with the computation of the row.
        if p.k > 0u {
            ask(slice, col);
        }
        prepare(first == 0u, local);
        for (var k = slice; k < p.k;) {
            take(k);
            k += SLICES * DEPTH;
            if k < p.k {
                ask(k, col);
            }
        }
        meet(lane, slice, local);
        if is_mine {
            var word = 0u;
            for (var i = 0u; i < lanes(Y_TYPE); i += 1u) {
                let at = within + i;
                let sum = activate(memory[at / 4u][at % 4u] + added[i]);
                word |= float_bits(sum, Y_TYPE) << (16u * i);
            }
            y_data[word_of(y_base + first + within, Y_TYPE)] = word;
        }
        workgroupBarrier();
    }
}
