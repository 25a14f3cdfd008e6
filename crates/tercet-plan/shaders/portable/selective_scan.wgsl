// Mamba selective scan: h = exp(dt a) h + dt x b, y = sum over states of c h, for each channel. The
// initial state is zero or an operand. Each channel has a separate dt, and each of its states a
// separate `a`. states.wgsl calls b the enter row and c the leave row. States are F32.
// uses prelude.wgsl: flat_group, float_of, lane_of, word_of
// uses states.wgsl: ACROSS, AT_ONCE, CHANNELS, COLUMNS, DTYPE, FOURS, LOG2_E, QUADS, STEPS, THREADS, UNITS, across, add_dot, enter, first_row, first_value, fours_from, gather, lane, leave, load_block, loaded_values, place_rows, row_stride, store_unit, value_element, value_floats, value_stride, values_of

struct Params {
    steps: u32,
    states: u32,
    channels: u32,
    tiles: u32,
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

var<workgroup> dt_of: array<vec4<f32>, FOURS * CHANNELS>;
var<private> next_dt: array<vec4<u32>, UNITS>;

// `a` as a base-2 exponent.
var<private> a: array<vec4<f32>, COLUMNS * QUADS>;
var<private> h: array<vec4<f32>, COLUMNS * QUADS>;
// dt of the steps in flight, for each channel of the thread.
var<private> dt: array<vec4<f32>, AT_ONCE * COLUMNS>;
var<private> inner: array<vec4<f32>, AT_ONCE * COLUMNS>;
var<private> sum: array<vec4<f32>, AT_ONCE * COLUMNS>;

fn dt_word(step: u32, channel: u32) -> u32 {
    return dt_data[word_of(value_element(step, channel), DTYPE)];
}

fn load(first: u32, local: u32) {
    load_block(first, local);
    for (var k = 0u; k < UNITS; k += 1u) {
        let unit = k * THREADS + local;
        let step = first + 4u * (unit / CHANNELS);
        let channel = unit % CHANNELS;
        next_dt[k] = vec4<u32>(
            dt_word(step, channel),
            dt_word(step + 1u, channel),
            dt_word(step + 2u, channel),
            dt_word(step + 3u, channel),
        );
    }
}

fn place(first: u32, local: u32) {
    place_rows(first, local);
    for (var k = 0u; k < UNITS; k += 1u) {
        let unit = k * THREADS + local;
        if unit < FOURS * CHANNELS {
            let step = first + 4u * (unit / CHANNELS);
            // Steps beyond the last leave the state unchanged.
            let is_step = vec4<u32>(step) + vec4<u32>(0u, 1u, 2u, 3u) < vec4<u32>(p.steps);
            let own = select(vec4<f32>(), value_floats(next_dt[k], step, unit % CHANNELS), is_step);
            dt_of[unit] = own;
            values_of[unit] = own * loaded_values(first, k, local);
        }
    }
}

fn store(first: u32, local: u32) {
    for (var k = 0u; k < UNITS; k += 1u) {
        store_unit(first, k, local, vec4<f32>(1.0));
    }
}

// Loads `a` and the states of the workgroup's channels. `of_states` is the offset of the first
// state.
fn begin(of_states: u32) {
    for (var j = 0u; j < COLUMNS; j += 1u) {
        let channel = j * ACROSS + across;
        for (var q = 0u; q < QUADS; q += 1u) {
            var own = vec4<f32>();
            var held = vec4<f32>();
            for (var i = 0u; i < 4u; i += 1u) {
                let state = 4u * (lane * QUADS + q) + i;
                if channel < channels && state < p.states {
                    let at = (first_value % p.channels + channel) * p.states + state;
                    own[i] = LOG2_E * float_of(a_data[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
                    if INITIAL == 1u {
                        held[i] = bitcast<f32>(initial[of_states + channel * p.states + state]);
                    }
                }
            }
            a[j * QUADS + q] = own;
            h[j * QUADS + q] = held;
        }
    }
}

fn end(of_states: u32) {
    for (var j = 0u; j < COLUMNS; j += 1u) {
        let channel = j * ACROSS + across;
        for (var q = 0u; q < QUADS; q += 1u) {
            for (var i = 0u; i < 4u; i += 1u) {
                let state = 4u * (lane * QUADS + q) + i;
                if channel < channels && state < p.states {
                    last[of_states + channel * p.states + state] = bitcast<u32>(h[j * QUADS + q][i]);
                }
            }
        }
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
            h[at] = exp2(dt[own][part] * a[at]) * h[at] + inner[own][part] * b;
            sum[own][part] = add_dot(sum[own][part], c, h[at]);
        }
    }
}

fn scan(first: u32) {
    let fours = fours_from(first);
    for (var four = 0u; four < fours; four += AT_ONCE) {
        for (var i = 0u; i < AT_ONCE * COLUMNS; i += 1u) {
            let at = (four + i / COLUMNS) * CHANNELS + i % COLUMNS * ACROSS + across;
            dt[i] = dt_of[at];
            inner[i] = values_of[at];
            sum[i] = vec4<f32>();
        }
        for (var next = 0u; next < AT_ONCE; next += 1u) {
            advance(first, four, next, 0u);
            advance(first, four, next, 1u);
            advance(first, four, next, 2u);
            advance(first, four, next, 3u);
        }
        for (var i = 0u; i < AT_ONCE * COLUMNS; i += 1u) {
            gather(four + i / COLUMNS, i % COLUMNS, sum[i]);
        }
    }
}

// Processes all steps of the sequence, which must have at least one.
fn walk(local: u32) {
    load(0u, local);
    for (var first = 0u; first < p.steps; first += STEPS) {
        // After the barrier no thread reads the block, and the partial outputs are complete.
        workgroupBarrier();
        if first > 0u {
            store(first - STEPS, local);
        }
        place(first, local);
        workgroupBarrier();
        load(first + STEPS, local);
        scan(first);
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
    let token = flat / p.tiles * p.steps;
    let first_channel = flat % p.tiles * CHANNELS;
    first_row = token * p.states;
    row_stride = p.states;
    first_value = token * p.channels + first_channel;
    value_stride = p.channels;
    channels = p.channels - first_channel;
    lane = local / ACROSS;
    across = local % ACROSS;
    let of_states = (flat / p.tiles * p.channels + first_channel) * p.states;
    begin(of_states);
    if p.steps > 0u {
        walk(local);
    }
    if CARRY == 1u {
        end(of_states);
    }
}
