// One row times columns that are rows of packed blocks. Each of SLICES invocations holds the elements of the
// row that belong to TAKE weights of a column in registers, and takes these weights of one column after the other;
// those of the next DEPTH are under way. TEAMS of such invocations take the columns of a workgroup in turn.
// `gemv_held_floats.wgsl` and `gemv_held_dots.wgsl` have the ways to hold the row, and say what a TAKE is.
// Sums wait in shared memory, so that nobody waits for others before all of COLUMNS are there; a workgroup has BATCHES
// of these. Where SLICES * TAKE weights are less than a column, there are ROUNDS of all that, and one batch.
//
// Where GATED is 1, b holds two matrices side by side; columns of both take turns.

// A multiple of 4.
override SLICES: u32 = 128u;
override TEAMS: u32 = 2u;
override COLUMNS: u32 = 8u;
override ROUNDS: u32 = 1u;
override BATCHES: u32 = 1u;
override DEPTH: u32 = 2u;
override GATED: u32 = 0u;
// Digits of the row as integers: 3, or 2, which hold 15 bits and a sign.
override DIGITS: u32 = 3u;

const INVOCATIONS: u32 = SLICES * TEAMS;
// Vectors of the row for a take.
const QUADS: u32 = TAKE / 4u;
// Where the row lies in the tile: HELD vectors for each slice.
const TILE_ROW: u32 = SLICES + 1u;
const TILE: u32 = HELD * TILE_ROW;
// Pieces of 16 bytes that an invocation takes together: 1 or 2.
const TWINS: u32 = TAKE / (16u * GROUPS);
// Vectors of the row for the pieces that are taken as floats together.
const FLOAT_QUADS: u32 = 8u;
// Columns of a batch that a team takes.
const OWN: u32 = COLUMNS / TEAMS;
// Sums of a column, one for each slice; in the end those of JOINED vectors. One column of squares for each team.
const SQUARE_UNITS: u32 = TEAMS * NORMED;
const SHARE_QUADS: u32 = max(SLICE_QUADS, JOINED) + 1u;
const SHARES: u32 = (COLUMNS + SQUARE_UNITS) * SHARE_QUADS;
// One after the other where the tile is needed once.
const SHARES_AT: u32 = TILE * min(ROUNDS - 1u, 1u);
// A place for the sum of squares.
const TOTAL_AT: u32 = max(TILE, SHARES_AT + max(SHARES, INVOCATIONS));

var<workgroup> memory: array<vec4<f32>, TOTAL_AT + 1u>;

// What the invocation holds of the row, and its sums.
var<private> x: array<vec4<f32>, FLOAT_QUADS>;
var<private> x_sums: vec2<f32>;

struct Held {
    raw: Raw,
    // The second of two pieces.
    next: Raw,
}

// What is under way.
var<private> queue: array<Held, DEPTH>;

fn columns() -> u32 {
    return p.n / (1u + GATED);
}

fn row_blocks() -> u32 {
    return p.k / BLOCK_LEN;
}

// Place `turn` of the team among the columns of the workgroup.
fn place_of(turn: u32, unit: u32) -> u32 {
    return turn * TEAMS + unit;
}

// True if pieces two apart have bytes in common.
fn shares_bytes() -> bool {
    return GROUPS == 2u && (SCHEME == Q2_K || SCHEME == Q3_K || SCHEME == Q6_K || SCHEME == TQ2_0);
}

// One of the pieces of a take, counted along the row.
fn piece_of(take: u32, which: u32) -> u32 {
    if TWINS == 2u && shares_bytes() {
        return take / 2u * 4u + take % 2u + 2u * which;
    }
    return take * TWINS + which;
}

// The take of a piece, and which of its pieces that is.
fn take_of(piece: u32) -> vec2<u32> {
    if TWINS == 2u && shares_bytes() {
        return vec2<u32>(piece / 4u * 2u + piece % 2u, piece / 2u % 2u);
    }
    return vec2<u32>(piece / TWINS, piece % TWINS);
}

// The second piece of a take, of which the first is at hand: what they have in common is not loaded again.
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
    // Two halves by themselves are those of one word.
    if SCHEME == Q4_1 || SCHEME == Q5_1 {
        next.halves = load_word(field(HALVES, block));
    }
    return next;
}

// The last of the columns that begin with `first`.
fn last_of(first: u32) -> u32 {
    return min(first + BATCHES * (COLUMNS / (1u + GATED)), columns()) - 1u;
}

// Where the column at a place begins, in quads of words; rows begin at multiples of 16 bytes.
fn row_of(place: u32, first: u32) -> u32 {
    var column = min(first + place / (1u + GATED), last_of(first));
    if GATED == 1u {
        column += (place % 2u) * columns();
    }
    return b_base / 16u + column * (p.b_col / 16u);
}

// A take of the column that begins at `row`.
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

// What was loaded with what does not depend on the column, which a queue would hide from compilers.
fn placed(raw: Raw, piece: u32) -> Raw {
    var whole = raw;
    whole.part = piece % PARTS;
    whole.below = 8u * (half_place(Block(0u, piece / PARTS), whole.part) & 2u);
    return whole;
}

fn placed_pieces(held: Held, take: u32) -> Held {
    return Held(placed(held.raw, piece_of(take, 0u)), placed(held.next, piece_of(take, 1u)));
}

// What an invocation fetches of the row for the tile, on its own or with other teams.
const FETCHED: u32 = (QUADS + TEAMS - 1u) / TEAMS;
var<private> fetched: array<vec4<f32>, FETCHED>;

// The first of four elements among those of the tile, which are fetched in the order of the row.
fn fetched_at(i: u32, local: u32) -> u32 {
    return 4u * (i * INVOCATIONS + local);
}

// Where they go: vec2(slice, quad).
fn spot_of(at: u32) -> vec2<u32> {
    let spot = spot_in(at / BLOCK_LEN, at % BLOCK_LEN);
    let own = take_of(spot.x);
    return vec2<u32>(own.x, own.y * (4u * GROUPS) + spot.y);
}

// Fetches the part of the row that belongs to takes from `first` on.
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

// Where the sums of a slice are, in vectors: that of the first column of a team, and the distance to the next.
const SHARE_STEP: u32 = TEAMS * SHARE_QUADS;

fn share_at(unit: u32, slice: u32) -> u32 {
    return SHARES_AT + slice / 4u + unit * SHARE_QUADS;
}

// Puts the sum of a slice of a column to those of the rounds before.
fn share(sum: f32, at: u32, round: u32, slice: u32) {
    var whole = sum;
    if round > 0u {
        whole += memory[at][slice % 4u];
    }
    memory[at][slice % 4u] = whole;
}

// Takes the columns of a batch as floats, for what the way cannot hold.
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

// The sums of a round: of the slices of every column of a batch. Where the row is not held yet it is now.
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
            // Makes what follows wait for this sum: compilers would mix both and load the next weights at the
            // end.
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
    // True where the row is taken again.
    var again = false;
    // Compilers do not see that it begins at 0: they would copy the loop.
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
        // Sums of the next batch take the place of these.
        if BATCHES > 1u {
            workgroupBarrier();
        }
    }
    count_chain(local);
}
