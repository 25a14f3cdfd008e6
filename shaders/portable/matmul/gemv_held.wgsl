// One row times columns that are rows of packed blocks. Each of SLICES invocations holds the elements of the
// row that belong to 32 weights of a column in registers, and takes these weights of one column after the other;
// those of the next DEPTH are under way. TEAMS of such invocations take the COLUMNS of a workgroup in turn.
// `gemv_held_floats.wgsl` and `gemv_held_dots.wgsl` have the ways to hold the row.
// Sums wait in shared memory, so that nobody waits for others before all are there. Where SLICES * 32 weights
// are less than a column, there are ROUNDS of all that.
//
// Where GATED is 1, b holds two matrices side by side; columns of both take turns.

// A multiple of 4.
override SLICES: u32 = 128u;
override TEAMS: u32 = 2u;
override COLUMNS: u32 = 8u;
override ROUNDS: u32 = 1u;
override DEPTH: u32 = 2u;
override GATED: u32 = 0u;

const INVOCATIONS: u32 = SLICES * TEAMS;
// Vectors of the row for 32 weights.
const QUADS: u32 = 8u;
const TILE_ROW: u32 = SLICES + 1u;
const TILE: u32 = QUADS * TILE_ROW;
// Pieces of 16 bytes that an invocation takes together, and such takes of a block.
const TWINS: u32 = 2u / GROUPS;
const TAKES: u32 = PARTS / TWINS;
// Columns that a team takes.
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
var<private> x: array<vec4<f32>, QUADS>;
var<private> x_sums: vec2<f32>;

struct Held {
    raw: Raw,
    // The second of two pieces.
    more: vec4<u32>,
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
    return min(turn, OWN - 1u) * TEAMS + unit;
}

// Take `take` of the column at a place.
fn load(place: u32, first: u32, take: u32) -> Held {
    var column = min(first + place / (1u + GATED), columns() - 1u);
    if GATED == 1u {
        column += (place % 2u) * columns();
    }
    let block = Block(b_base + column * p.b_col, take / TAKES);
    let part = take % TAKES * TWINS;
    var held: Held;
    held.raw = raw_of(block, part);
    // Rows begin at multiples of 16 bytes.
    held.raw.below = 8u * (half_place(Block(0u, block.index), part) & 2u);
    if TWINS == 2u {
        held.more = load_quad(field(LOW, block) + low_at(part + 1u));
    }
    return held;
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
    return vec2<u32>(spot.x / TWINS, spot.x % TWINS * 4u + spot.y);
}

// Fetches the part of the row that belongs to takes from `first` on.
fn fetch(first: u32, local: u32) {
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        let k = min(32u * first + at, p.k - 4u);
        let inside = at < 32u * SLICES && 32u * first + at < p.k;
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
    if TWINS == 2u {
        var twin = held.raw;
        twin.low = held.more;
        let sum = scale.x * (first + half_sum(twin, 0u, 4u));
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

// Puts the sum of a slice of the column at a place to those of the rounds before.
fn share(sum: f32, place: u32, round: u32, slice: u32) {
    let at = SHARES_AT + slice / 4u + place * SHARE_QUADS;
    var whole = sum;
    if round > 0u {
        whole += memory[at][slice % 4u];
    }
    memory[at][slice % 4u] = whole;
}

// The sums of a round: of the slices of every column.
fn stream(first: u32, round: u32, unit: u32, slice: u32, local: u32) {
    let takes = p.k / 32u;
    let own = round * SLICES + slice;
    let take = min(own, takes - 1u);
    for (var j = 0u; j < DEPTH; j += 1u) {
        queue[j] = load(place_of(j, unit), first, take);
    }
    fetch(round * SLICES, local);
    fill(local);
    hold(slice);
    workgroupBarrier();
    if takes_floats(take) {
        for (var turn = 0u; turn < OWN; turn += 1u) {
            let place = place_of(turn, unit);
            share(select(0.0, sum_of_floats(load(place, first, take)), own < takes), place, round, slice);
        }
    } else {
        for (var turn = 0u; turn < OWN + p.zero; turn += DEPTH) {
            for (var j = 0u; j < DEPTH; j += 1u) {
                let sum = sum_of_held(queue[j]);
                // Makes what follows wait for this sum: compilers would mix both and load the next weights at the
                // end.
                if DEPTH > 1u {
                    hide_constants(bitcast<u32>(sum) & p.zero);
                }
                queue[j] = load(place_of(turn + DEPTH + j, unit), first, take);
                share(select(0.0, sum, own < takes), place_of(turn + j, unit), round, slice);
            }
        }
    }
    if NORMED == 1u {
        memory[SHARES_AT + slice / 4u + (COLUMNS + unit) * SHARE_QUADS][slice % 4u] = row_squares;
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
    let first = flat_group(group, groups) * (COLUMNS / (1u + GATED));
    if first >= columns() {
        return;
    }
    ask_for_added(first, local);
    // 1 where the row is taken again. Compilers do not see that it begins at 0: they would copy the loop.
    for (var turn = p.zero; turn < 2u; turn += 1u) {
        for (var round = 0u; round < ROUNDS; round += 1u) {
            stream(first, round, unit, slice, local);
        }
        join(local);
        if settle(local, turn == 1u) {
            break;
        }
    }
    store(first, local);
}
