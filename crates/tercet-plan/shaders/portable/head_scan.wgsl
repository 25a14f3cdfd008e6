// Mamba-2 scan (SSD): S = exp(dt a) S + dt x b, y = sum over states of c S, for each channel of a
// head. The initial state is zero or an operand. A head has one dt and one `a`; a group of heads
// shares b and c. states.wgsl calls b the enter row and c the leave row. A workgroup's channels
// belong to one head. States are F32.
//
// Let D be the product of a block's decays up to a step. The kernel accumulates S / D, which grows
// by x dt b / D, and y is D times c (S / D). This method takes two multiplications per state and
// step, and one per state and block for the decay. If the decays of a block exceed RANGE, scaling
// by 1 / D would lose precision, so each step of the block applies its decay.
// uses prelude.wgsl: flat_group, float_of, lane_of, word_of
// uses states.wgsl: ACROSS, AT_ONCE, CHANNELS, COLUMNS, DTYPE, FOURS, LOG2_E, QUADS, STEPS, THREADS, UNITS, across, channels, enter, first_row, first_value, fours_from, gather, lane, leave, load_block, loaded_values, place_rows, row_stride, store_unit, value_stride, values_of

struct Params {
    steps: u32,
    states: u32,
    heads: u32,
    per_head: u32,
    groups: u32,
    head_tiles: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(5) var<storage, read> dt_data: array<u32>;
@group(0) @binding(6) var<storage, read> a_data: array<u32>;
@group(0) @binding(7) var<storage, read> initial: array<u32>;
@group(0) @binding(8) var<storage, read_write> last: array<u32>;

override INITIAL: u32 = 1u;
override CARRY: u32 = 1u;

const SPREAD: u32 = 0u;

// Maximum base-2 exponent of D or 1 / D.
const RANGE: f32 = 40.0;

// The staged steps are double-buffered by block: steps are staged while some threads still process
// the previous block.
var<workgroup> dt_of: array<vec4<f32>, 2u * FOURS>;
var<private> next_dt: vec4<u32>;

var<private> state: array<vec4<f32>, COLUMNS * QUADS>;
// x dt / D of the steps in flight, for each channel of the thread.
var<private> inner: array<vec4<f32>, AT_ONCE * COLUMNS>;
var<private> sum: array<vec4<f32>, AT_ONCE * COLUMNS>;
// Second accumulator: two independent chains of additions hide the latency.
var<private> rest: array<vec4<f32>, AT_ONCE * COLUMNS>;
// D of the thread's units, which scales their results.
var<private> given: array<vec4<f32>, UNITS>;
var<private> head: u32;
var<private> first_dt: u32;
// `a` of the head, as a base-2 exponent.
var<private> a: f32;
// The base-2 logarithm of D at the end of the block, and whether D is in range at every step.
var<private> whole: f32;
var<private> is_plain_block: bool;

fn dt_element(step: u32) -> u32 {
    return select(0u, first_dt + step * p.heads, step < p.steps);
}

fn dt_word(step: u32) -> u32 {
    return dt_data[word_of(dt_element(step), DTYPE)];
}

fn dt_float(word: u32, step: u32) -> f32 {
    return select(0.0, float_of(word, lane_of(dt_element(step), DTYPE), DTYPE), step < p.steps);
}

fn load(first: u32, local: u32) {
    load_block(first, local);
    let step = first + 4u * (local % FOURS);
    next_dt = vec4<u32>(dt_word(step), dt_word(step + 1u), dt_word(step + 2u), dt_word(step + 3u));
}

fn place_steps(first: u32, turn: u32, local: u32) {
    if local < FOURS {
        let step = first + 4u * local;
        dt_of[turn + local] = vec4<f32>(
            dt_float(next_dt.x, step),
            dt_float(next_dt.y, step + 1u),
            dt_float(next_dt.z, step + 2u),
            dt_float(next_dt.w, step + 3u),
        );
    }
}

fn place(first: u32, turn: u32, local: u32) {
    place_rows(first, local);
    var logs: array<vec4<f32>, UNITS>;
    var dts: array<vec4<f32>, UNITS>;
    whole = 0.0;
    is_plain_block = true;
    for (var four = 0u; four < FOURS; four += 1u) {
        let dt = dt_of[turn + four];
        var l = a * dt;
        l.x += whole;
        l.y += l.x;
        l.z += l.y;
        l.w += l.z;
        whole = l.w;
        is_plain_block = is_plain_block && all(abs(l) <= vec4<f32>(RANGE));
        for (var k = 0u; k < UNITS; k += 1u) {
            let own = (k * THREADS + local) / CHANNELS == four;
            logs[k] = select(logs[k], l, own);
            dts[k] = select(dts[k], dt, own);
        }
    }
    for (var k = 0u; k < UNITS; k += 1u) {
        let unit = k * THREADS + local;
        var value = dts[k] * loaded_values(first, k, local);
        given[k] = vec4<f32>(1.0);
        if is_plain_block {
            value *= exp2(-logs[k]);
            given[k] = exp2(logs[k]);
        }
        if unit < FOURS * CHANNELS {
            values_of[unit] = value;
        }
    }
}

fn store(first: u32, local: u32) {
    for (var k = 0u; k < UNITS; k += 1u) {
        store_unit(first, k, local, given[k]);
    }
}

fn decay(by: f32) {
    for (var k = 0u; k < COLUMNS * QUADS; k += 1u) {
        state[k] *= by;
    }
}

// Processes step `part` of the group of four steps `four + next`.
fn advance(first: u32, four: u32, next: u32, part: u32) {
    for (var q = 0u; q < QUADS; q += 1u) {
        let b = enter(first, 4u * (four + next) + part, lane * QUADS + q);
        let c = leave(first, 4u * (four + next) + part, lane * QUADS + q);
        for (var j = 0u; j < COLUMNS; j += 1u) {
            let at = j * QUADS + q;
            let own = next * COLUMNS + j;
            state[at] += inner[own][part] * b;
            sum[own][part] = c.y * state[at].y + (c.x * state[at].x + sum[own][part]);
            rest[own][part] = c.w * state[at].w + (c.z * state[at].z + rest[own][part]);
        }
    }
}

fn begin_fours(four: u32) {
    for (var i = 0u; i < AT_ONCE * COLUMNS; i += 1u) {
        let at = (four + i / COLUMNS) * CHANNELS + i % COLUMNS * ACROSS + across;
        inner[i] = values_of[at];
        sum[i] = vec4<f32>();
        rest[i] = vec4<f32>();
    }
}

fn end_fours(four: u32) {
    for (var i = 0u; i < AT_ONCE * COLUMNS; i += 1u) {
        gather(four + i / COLUMNS, i % COLUMNS, sum[i] + rest[i]);
    }
}

fn scan(first: u32) {
    let fours = fours_from(first);
    for (var four = 0u; four < fours; four += AT_ONCE) {
        begin_fours(four);
        for (var next = 0u; next < AT_ONCE; next += 1u) {
            advance(first, four, next, 0u);
            advance(first, four, next, 1u);
            advance(first, four, next, 2u);
            advance(first, four, next, 3u);
        }
        end_fours(four);
    }
    decay(exp2(whole));
}

// Variant of `scan` that applies the decay at each step.
fn scan_by_steps(first: u32, turn: u32) {
    let fours = fours_from(first);
    for (var four = 0u; four < fours; four += AT_ONCE) {
        begin_fours(four);
        for (var next = 0u; next < AT_ONCE; next += 1u) {
            for (var part = 0u; part < 4u; part += 1u) {
                decay(exp2(a * dt_of[turn + four + next][part]));
                advance(first, four, next, part);
            }
        }
        end_fours(four);
    }
}

// Loads the states of the workgroup's channels. `of_states` is the offset of the first state.
fn begin(of_states: u32) {
    for (var j = 0u; j < COLUMNS; j += 1u) {
        let channel = j * ACROSS + across;
        for (var q = 0u; q < QUADS; q += 1u) {
            var own = vec4<f32>();
            for (var i = 0u; i < 4u; i += 1u) {
                let at = 4u * (lane * QUADS + q) + i;
                if INITIAL == 1u && channel < channels && at < p.states {
                    own[i] = bitcast<f32>(initial[of_states + channel * p.states + at]);
                }
            }
            state[j * QUADS + q] = own;
        }
    }
}

fn end(of_states: u32) {
    for (var j = 0u; j < COLUMNS; j += 1u) {
        let channel = j * ACROSS + across;
        for (var q = 0u; q < QUADS; q += 1u) {
            for (var i = 0u; i < 4u; i += 1u) {
                let at = 4u * (lane * QUADS + q) + i;
                if channel < channels && at < p.states {
                    last[of_states + channel * p.states + at] = bitcast<u32>(state[j * QUADS + q][i]);
                }
            }
        }
    }
}

// Processes all steps of the sequence, which must have at least one.
fn walk(local: u32) {
    load(0u, local);
    var turn = 0u;
    for (var first = 0u; first < p.steps; first += STEPS) {
        place_steps(first, turn, local);
        // After the barrier no thread reads the block, and the partial outputs are complete.
        workgroupBarrier();
        if first > 0u {
            store(first - STEPS, local);
        }
        place(first, turn, local);
        workgroupBarrier();
        load(first + STEPS, local);
        if is_plain_block {
            scan(first);
        } else {
            scan_by_steps(first, turn);
        }
        turn = FOURS - turn;
    }
    workgroupBarrier();
    store((p.steps - 1u) / STEPS * STEPS, local);
}

@compute @workgroup_size(THREADS)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) ids: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(id, ids);
    if flat >= p.count {
        return;
    }
    head = flat / p.head_tiles % p.heads;
    let token = flat / p.head_tiles / p.heads * p.steps;
    let first_channel = flat % p.head_tiles * CHANNELS;
    let group = head / (p.heads / p.groups);
    first_row = (token * p.groups + group) * p.states;
    row_stride = p.groups * p.states;
    first_value = (token * p.heads + head) * p.per_head + first_channel;
    value_stride = p.heads * p.per_head;
    channels = p.per_head - first_channel;
    first_dt = token * p.heads + head;
    a = LOG2_E * float_of(a_data[word_of(head, DTYPE)], lane_of(head, DTYPE), DTYPE);
    lane = local / ACROSS;
    across = local % ACROSS;
    let of_states = ((flat / p.head_tiles / p.heads * p.heads + head) * p.per_head + first_channel) * p.states;
    begin(of_states);
    if p.steps > 0u {
        walk(local);
    }
    if CARRY == 1u {
        end(of_states);
    }
}
