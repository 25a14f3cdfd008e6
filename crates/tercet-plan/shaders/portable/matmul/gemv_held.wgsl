// Register-resident GEMV for quantized weights, whose columns are rows of blocks. SLICES threads
// share a column. A take is a set of TAKE weights of one column. Each thread keeps the row elements
// of a take in registers, and processes the take of one column after the other. The weights of the
// next DEPTH columns are prefetched. The TEAMS thread groups of a workgroup divide its columns.
// `gemv_held_floats.wgsl` and `gemv_held_dots.wgsl` define TAKE and how registers store the row.
//
// Partial sums are collected in shared memory, so that one reduction serves COLUMNS columns (a
// batch). A workgroup processes BATCHES batches. If SLICES * TAKE weights do not cover k, there are
// ROUNDS passes over one batch.
//
// With GATED = 1, b contains two concatenated matrices, whose columns alternate.

// Threads per column: a multiple of 4.
override SLICES: u32 = 128u;
override TEAMS: u32 = 2u;
override COLUMNS: u32 = 8u;
override ROUNDS: u32 = 1u;
override BATCHES: u32 = 1u;
override DEPTH: u32 = 2u;
override GATED: u32 = 0u;
// 8-bit limbs per row element in the integer variant: 3, or 2, which represent 15 bits and a sign.
override DIGITS: u32 = 3u;

const INVOCATIONS: u32 = SLICES * TEAMS;
// Vectors of four row elements per take of TAKE weights.
const QUADS: u32 = TAKE / 4u;
// Pitch of the row in shared memory, which stores HELD vectors per slice.
const TILE_ROW: u32 = SLICES + 1u;
const TILE: u32 = HELD * TILE_ROW;
// 16-byte dequantization pieces per take of TAKE weights: 1 or 2.
const TWINS: u32 = TAKE / (16u * GROUPS);
// Vectors of row elements per pass of the float fallback.
const FLOAT_QUADS: u32 = 8u;
// Columns of a batch per thread group.
const OWN: u32 = COLUMNS / TEAMS;
// Vectors of partial sums per column: first one sum per slice, later the reduced sums of JOINED
// vectors. Each thread group has one extra column for sums of squares.
const SQUARE_UNITS: u32 = TEAMS * NORMED;
const SHARE_QUADS: u32 = max(SLICE_QUADS, JOINED) + 1u;
const SHARES: u32 = (COLUMNS + SQUARE_UNITS) * SHARE_QUADS;
// The partial sums may overwrite the row in shared memory if the row is used only once.
const SHARES_AT: u32 = TILE * min(ROUNDS - 1u, 1u);
// Index in `memory` of the row's sum of squares, for the norm.
const TOTAL_AT: u32 = max(TILE, SHARES_AT + max(SHARES, INVOCATIONS));

var<workgroup> memory: array<vec4<f32>, TOTAL_AT + 1u>;

// The thread's row elements as floats, and their sums.
var<private> x: array<vec4<f32>, FLOAT_QUADS>;
var<private> x_sums: vec2<f32>;

struct Held {
    raw: Raw,
    // The second piece of the weights, if a take consists of two pieces.
    next: Raw,
}

// Prefetched weights of the next columns.
var<private> queue: array<Held, DEPTH>;

fn columns() -> u32 {
    return p.n / (1u + GATED);
}

fn row_blocks() -> u32 {
    return p.k / BLOCK_LEN;
}

// Index of column `turn` of the thread group within the workgroup.
fn place_of(turn: u32, unit: u32) -> u32 {
    return turn * TEAMS + unit;
}

// True if pieces with a distance of two share bytes.
fn shares_bytes() -> bool {
    return GROUPS == 2u && (SCHEME == Q2_K || SCHEME == Q3_K || SCHEME == Q6_K || SCHEME == TQ2_0);
}

// Index of a piece in the row; `which` selects one of the two pieces of a take.
fn piece_of(take: u32, which: u32) -> u32 {
    if TWINS == 2u && shares_bytes() {
        return take / 2u * 4u + take % 2u + 2u * which;
    }
    return take * TWINS + which;
}

// Inverse of `piece_of`: the take that contains a piece, and the position of the piece in the take.
fn take_of(piece: u32) -> vec2<u32> {
    if TWINS == 2u && shares_bytes() {
        return vec2<u32>(piece / 4u * 2u + piece % 2u, piece / 2u % 2u);
    }
    return vec2<u32>(piece / TWINS, piece % TWINS);
}

// Loads the second piece of a take. Bytes that the second piece shares with the first piece are not
// loaded again.
fn raw_beside(raw: Raw, block: Block, part: u32) -> Raw {
    var next = raw;
    next.part = part;
    if SCHEME != Q2_K && SCHEME != Q3_K && SCHEME != TQ2_0 {
        next.low = load_quad(field(LOW, block) + low_at(part));
    }
    if SCHEME == Q5_K {
        next.high = load_quad(field(HIGH, block) + high_at(part));
    }
    if SCHEME == Q5_0 || SCHEME == Q5_1 || SCHEME == Q2_K || SCHEME == Q3_K {
        next.head = head_of(block, part);
    }
    // The word contains both F16 numbers of the block.
    if SCHEME == Q4_1 || SCHEME == Q5_1 {
        next.halves = load_word(field(HALVES, block));
    }
    return next;
}

// Last column of the workgroup, whose first column is `first`.
fn last_of(first: u32) -> u32 {
    return min(first + BATCHES * (COLUMNS / (1u + GATED)), columns()) - 1u;
}

// Offset of a column's row of blocks, in 16-byte vectors. Rows are 16-byte aligned.
fn row_of(place: u32, first: u32) -> u32 {
    var column = min(first + place / (1u + GATED), last_of(first));
    if GATED == 1u {
        column += (place % 2u) * columns();
    }
    return b_base / 16u + column * (p.b_col / 16u);
}

// Loads the weights with index `take` of the column at offset `row`.
fn load(row: u32, take: u32) -> Held {
    row_quads = row;
    let piece = piece_of(take, 0u);
    var held: Held;
    held.raw = raw_of(Block(0u, piece / PARTS), piece % PARTS);
    if TWINS == 2u {
        let other = piece_of(take, 1u);
        held.next = raw_beside(held.raw, Block(0u, other / PARTS), other % PARTS);
    }
    return held;
}

// Sets the fields that depend only on the position of the piece. The compiler can treat them as
// constants, which fields loaded from `queue` are not.
fn placed(raw: Raw, piece: u32) -> Raw {
    var whole = raw;
    whole.part = piece % PARTS;
    whole.below = 8u * (half_place(Block(0u, piece / PARTS), whole.part) & 2u);
    return whole;
}

fn placed_pieces(held: Held, take: u32) -> Held {
    return Held(placed(held.raw, piece_of(take, 0u)), placed(held.next, piece_of(take, 1u)));
}

// Row vectors that a thread loads for the shared tile. The thread groups divide the tile.
const FETCHED: u32 = (QUADS + TEAMS - 1u) / TEAMS;
var<private> fetched: array<vec4<f32>, FETCHED>;

// Index of the first of four loaded row elements, in row order.
fn fetched_at(i: u32, local: u32) -> u32 {
    return 4u * (i * INVOCATIONS + local);
}

// Position in the tile of the vector with row element `at`: its slice (the thread of a column that
// reads it), and its index in the slice.
fn spot_of(at: u32) -> vec2<u32> {
    let spot = spot_in(at / BLOCK_LEN, at % BLOCK_LEN);
    let own = take_of(spot.x);
    return vec2<u32>(own.x, own.y * (4u * GROUPS) + spot.y);
}

// Loads the activation elements for the takes from index `first` on.
fn fetch(first: u32, local: u32) {
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        let k = min(TAKE * first + at, p.k - 4u);
        let inside = at < TAKE * SLICES && TAKE * first + at < p.k;
        fetched[i] = prepared(select(vec4<f32>(), a_four(k), inside), k);
    }
}

fn sum_up() {
    if HAS_MIN == 1u {
        x_sums = vec2<f32>(total(x[0] + x[1] + x[2] + x[3]), total(x[4] + x[5] + x[6] + x[7]));
    }
}

fn add(sum: f32, codes: vec4<f32>, x: vec4<f32>) -> f32 {
    return (((sum + codes.x * x.x) + codes.y * x.y) + codes.z * x.z) + codes.w * x.w;
}

fn half_sum(raw: Raw, group: u32, quad: u32) -> f32 {
    let a = add(0.0, codes(raw, group, 0u), x[quad]);
    let b = add(a, codes(raw, group, 1u), x[quad + 1u]);
    let c = add(b, codes(raw, group, 2u), x[quad + 2u]);
    return add(c, codes(raw, group, 3u), x[quad + 3u]);
}

fn sum_of_floats(held: Held) -> f32 {
    let scale = scales(held.raw);
    let first = half_sum(held.raw, 0u, 0u);
    if GROUPS == 1u {
        let sum = scale.x * (first + half_sum(held.next, 0u, 4u));
        if HAS_MIN == 1u {
            return sum + scale.y * (x_sums.x + x_sums.y);
        }
        return sum;
    }
    let sum = scale.x * first + scale.z * half_sum(held.raw, 1u, 4u);
    if HAS_MIN == 1u {
        return sum + scale.y * x_sums.x + scale.w * x_sums.y;
    }
    return sum;
}

// Positions of partial sums, in vectors: the first column of a thread group, and the stride to its
// next column.
const SHARE_STEP: u32 = TEAMS * SHARE_QUADS;

fn share_at(unit: u32, slice: u32) -> u32 {
    return SHARES_AT + slice / 4u + unit * SHARE_QUADS;
}

// Stores the partial sum of a slice and column, added to those of earlier rounds.
fn share(sum: f32, at: u32, round: u32, slice: u32) {
    var whole = sum;
    if round > 0u {
        whole += memory[at][slice % 4u];
    }
    memory[at][slice % 4u] = whole;
}

// Float fallback for a batch of columns, if the integer variant cannot represent the row elements.
fn stream_floats(first: u32, batch: u32, round: u32, unit: u32, slice: u32) {
    let own = round * SLICES + slice;
    let take = min(own, p.k / TAKE - 1u);
    for (var part = 0u; part < QUADS / FLOAT_QUADS; part += 1u) {
        take_anew(take, part);
        for (var turn = 0u; turn < OWN; turn += 1u) {
            let row = row_of(place_of(batch * OWN + turn, unit), first);
            var held = placed_pieces(load(row, take), take);
            if part == 1u {
                held.raw = held.next;
            }
            let sum = select(0.0, sum_of_floats(held), own < p.k / TAKE);
            share(sum, share_at(unit, slice) + turn * SHARE_STEP, round + part, slice);
        }
    }
}

// Computes the partial sums of one round for all columns of a batch. The first batch also loads the
// row.
fn stream(first: u32, batch: u32, round: u32, unit: u32, slice: u32, local: u32) {
    let takes = p.k / TAKE;
    let own = round * SLICES + slice;
    let take = min(own, takes - 1u);
    if batch == 0u {
        for (var j = 0u; j < DEPTH; j += 1u) {
            queue[j] = load(row_of(place_of(j, unit), first), take);
        }
        ask_for_queue();
        await_chain(local);
        if round == 0u {
            ask_for_added(first, local);
        }
        fetch(round * SLICES, local);
        fill(local);
        hold(slice);
        workgroupBarrier();
        if NORMED == 1u {
            memory[SHARES_AT + slice / 4u + (COLUMNS + unit) * SHARE_QUADS][slice % 4u] = row_squares;
        }
    }
    if needs_floats() {
        stream_floats(first, batch, round, unit, slice);
        return;
    }
    let at = share_at(unit, slice);
    for (var turn = 0u; turn < OWN + p.zero; turn += DEPTH) {
        for (var j = 0u; j < DEPTH; j += 1u) {
            let sum = sum_of_held(placed_pieces(queue[j], take));
            let row = row_of(place_of(batch * OWN + turn + DEPTH + j, unit), first);
            // A fake dependency on this sum: otherwise compilers would move the next loads to the
            // end of the loop.
            if DEPTH > 1u {
                hide_constants(bitcast<u32>(sum) & p.zero);
            }
            queue[j] = load(row, take);
            share(select(0.0, sum, own < takes), at + (turn + j) * SHARE_STEP, round, slice);
        }
    }
}

@compute @workgroup_size(INVOCATIONS)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    hide_constants(p.zero);
    a_base = p.a_offset;
    b_base = p.b_offset;
    let unit = local / SLICES;
    let slice = local % SLICES;
    let results = COLUMNS / (1u + GATED);
    let first = flat_group(group, groups) * (BATCHES * results);
    if first >= columns() {
        count_chain(local);
        return;
    }
    // True if the row is processed again with a rescaling factor.
    var again = false;
    // The loop starts from a 0 that is known only at run time: with a constant, compilers duplicate
    // the loop.
    for (var batch = p.zero; batch < BATCHES;) {
        if batch > 0u {
            ask_for_added(first + batch * results, local);
        }
        for (var round = 0u; round < ROUNDS; round += 1u) {
            stream(first, batch, round, unit, slice, local);
        }
        join(local);
        if batch == 0u && !settle(local, again) {
            again = true;
            continue;
        }
        store(first + batch * results, local);
        batch += 1u;
        // The next batch of columns overwrites the sums in `memory`.
        if BATCHES > 1u {
            workgroupBarrier();
        }
    }
    count_chain(local);
}
