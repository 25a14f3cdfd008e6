// Register-resident GEMV for float weights that are contiguous along k, with 16-byte loads.
// Offsets, columns and k are multiples of a piece: one 16-byte load of b, 4 or 8 elements. Each of
// SLICES threads keeps PIECES pieces of the activation row in registers. The thread multiplies
// these pieces with the same pieces of TOGETHER columns per iteration. The TEAMS thread groups of a
// workgroup divide its COLUMNS. Partial sums are collected in shared memory, so that one reduction
// at the end suffices. If SLICES * PIECES pieces do not cover k, there are ROUNDS passes. Batches
// map to z.
//
// With GATED = 1, b contains two concatenated matrices, whose columns alternate.

override B_TYPE: u32 = 0u;
// Threads per column: a power of two from 32 to 256.
override SLICES: u32 = 256u;
override PIECES: u32 = 1u;
override TOGETHER: u32 = 4u;
override COLUMNS: u32 = 4u;
override ROUNDS: u32 = 1u;
override GATED: u32 = 0u;

@group(0) @binding(2) var<storage, read> b_data: array<vec4<u32>>;

const INVOCATIONS: u32 = 256u;
const TEAMS: u32 = INVOCATIONS / SLICES;
// Vectors of four elements per piece.
const QUADS: u32 = 1u + (B_TYPE + 1u) / 2u;
const PIECE: u32 = 4u * QUADS;
// Iterations per thread group.
const TURNS: u32 = COLUMNS / (TEAMS * TOGETHER);
// Vectors of partial sums per column: first one sum per slice, later the reduced sums of JOINED
// vectors. One extra column stores sums of squares.
const SHARE_QUADS: u32 = SLICE_QUADS + 1u;
const SQUARE_UNITS: u32 = NORMED;
const SHARES: u32 = (COLUMNS + SQUARE_UNITS) * SHARE_QUADS;
const SHARES_AT: u32 = 0u;
// Index in `memory` of the row's sum of squares, for the norm.
const TOTAL_AT: u32 = max(SHARES, INVOCATIONS);

var<workgroup> memory: array<vec4<f32>, TOTAL_AT + 1u>;

// The thread's pieces of the activation row, and of the weight columns.
var<private> x: array<vec4<f32>, PIECES * QUADS>;
var<private> held: array<vec4<u32>, TOGETHER * PIECES>;

fn columns() -> u32 {
    return p.n / (1u + GATED);
}

fn b_four(words: vec4<u32>, quad: u32) -> vec4<f32> {
    if B_TYPE == F32 {
        return bitcast<vec4<f32>>(words);
    }
    return four_floats(select(words.xy, words.zw, quad == 1u), B_TYPE);
}

// Index of piece `i` of a thread.
fn piece_of(i: u32, round: u32, slice: u32) -> u32 {
    return (round * PIECES + i) * SLICES + slice;
}

// Loads the weights of one iteration.
fn load(first: u32, turn: u32, round: u32, unit: u32, slice: u32) {
    let last = p.k / PIECE - 1u;
    for (var j = 0u; j < TOGETHER; j += 1u) {
        let place = (turn * TEAMS + unit) * TOGETHER + j;
        var column = min(first + place / (1u + GATED), columns() - 1u);
        if GATED == 1u {
            column += (place % 2u) * columns();
        }
        let at = (b_base + column * p.b_col) / PIECE;
        for (var i = 0u; i < PIECES; i += 1u) {
            held[j * PIECES + i] = b_data[at + min(piece_of(i, round, slice), last)];
        }
    }
}

// Loads the pieces of the activation row.
fn hold(round: u32, slice: u32) {
    let last = p.k / PIECE - 1u;
    for (var i = 0u; i < PIECES; i += 1u) {
        let piece = piece_of(i, round, slice);
        for (var quad = 0u; quad < QUADS; quad += 1u) {
            let k = min(piece, last) * PIECE + quad * 4u;
            x[i * QUADS + quad] = prepared(select(vec4<f32>(), a_four(k), piece <= last), k);
        }
    }
}

// Computes the partial sums of one round: per slice and column.
fn stream(first: u32, round: u32, unit: u32, slice: u32) {
    load(first, 0u, round, unit, slice);
    hold(round, slice);
    for (var turn = 0u; turn < TURNS; turn += 1u) {
        for (var j = 0u; j < TOGETHER; j += 1u) {
            var sum = 0.0;
            for (var i = 0u; i < PIECES; i += 1u) {
                for (var quad = 0u; quad < QUADS; quad += 1u) {
                    sum += dot(b_four(held[j * PIECES + i], quad), x[i * QUADS + quad]);
                }
            }
            let place = (turn * TEAMS + unit) * TOGETHER + j;
            let at = place * SHARE_QUADS + slice / 4u;
            if round > 0u {
                sum += memory[at][slice % 4u];
            }
            memory[at][slice % 4u] = sum;
        }
        if turn + 1u < TURNS {
            load(first, turn + 1u, round, unit, slice);
        }
    }
    if NORMED == 1u && unit == 0u {
        memory[COLUMNS * SHARE_QUADS + slice / 4u][slice % 4u] = row_squares;
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let unit = local / SLICES;
    let slice = local % SLICES;
    let first = flat_group(group, groups) * (COLUMNS / (1u + GATED));
    if first >= columns() {
        return;
    }
    for (var batch = group.z; batch < p.batch; batch += groups.z) {
        enter_batch(batch);
        row_scale = 1.0;
        row_squares = 0.0;
        ask_for_added(first, local);
        // A second iteration, with `turn` 1, repeats the matmul with a rescaled row. The loop
        // starts from a 0 that is known only at run time: with a constant, compilers duplicate the
        // loop.
        for (var turn = p.zero; turn < 2u; turn += 1u) {
            for (var round = 0u; round < ROUNDS; round += 1u) {
                stream(first, round, unit, slice);
            }
            join(local);
            if settle(local, turn == 1u) {
                break;
            }
        }
        store(first, local);
        workgroupBarrier();
    }
}
