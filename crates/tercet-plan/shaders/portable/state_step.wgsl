// One step of a state-space scan: h = exp(dt a) h + dt x b, y = sum over states of c h, for each
// channel. The previous states come from an operand (INITIAL = 1), are updated in place (2), or are
// zeros (0). The channels of a head share dt, and also `a` unless it is per state (BY_STATE).
// Groups of `each` heads share b and c. With zero steps, the states are unchanged.
//
// A workgroup processes CHANNELS channels. LANES adjacent threads share a channel. Each of these
// threads owns every LANES-th state, PER of them, so that loads are coalesced. A thread processes
// COLUMNS channels and issues all their loads together. The tensors of the step have separate
// offsets and batch strides. The states are F32.
// uses halves.wgsl: two_bits
// uses prelude.wgsl: F32, flat_group, float_of, lane_of, word_of
// uses state_step_free.wgsl or state_step_guarded.wgsl: may_write

struct Params {
    steps: u32,
    states: u32,
    channels: u32,
    per_head: u32,
    each: u32,
    tiles: u32,
    count: u32,
    x_at: u32,
    x_row: u32,
    b_at: u32,
    b_row: u32,
    c_at: u32,
    c_row: u32,
    dt_at: u32,
    dt_row: u32,
    checks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> b_data: array<u32>;
@group(0) @binding(2) var<storage, read> c_data: array<u32>;
@group(0) @binding(3) var<storage, read> x_data: array<u32>;
@group(0) @binding(4) var<storage, read_write> results: array<u32>;
@group(0) @binding(5) var<storage, read> dt_data: array<u32>;
@group(0) @binding(6) var<storage, read> a_data: array<u32>;
@group(0) @binding(7) var<storage, read> initial: array<u32>;
@group(0) @binding(8) var<storage, read_write> last: array<u32>;

override DTYPE: u32 = 0u;
override OUT: u32 = 0u;
override LANES: u32 = 32u;
override PER: u32 = 1u;
override COLUMNS: u32 = 1u;
override THREADS: u32 = 128u;
override BY_STATE: u32 = 0u;
override INITIAL: u32 = 1u;
override CARRY: u32 = 1u;

const CHANNELS: u32 = THREADS / LANES * COLUMNS;
const LOG2_E: f32 = 1.442695;

var<workgroup> sums: array<f32, COLUMNS * THREADS>;
var<private> h: array<f32, COLUMNS * PER>;

fn a_of(i: u32) -> f32 {
    return LOG2_E * float_of(a_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn b_of(i: u32) -> f32 {
    return float_of(b_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn c_of(i: u32) -> f32 {
    return float_of(c_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn dt_of(i: u32) -> f32 {
    return float_of(dt_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn x_of(i: u32) -> f32 {
    return float_of(x_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

// Updates the states of a channel that this thread owns, from offset `at`, and returns its partial
// sum of c h.
fn advance(row: u32, channel: u32, lane: u32, at: u32) -> f32 {
    let head = channel / p.per_head;
    let group = head / p.each * p.states;
    let dt = dt_of(p.dt_at + row * p.dt_row + head);
    let inner = dt * x_of(p.x_at + row * p.x_row + channel);
    var decay = 1.0;
    if BY_STATE == 0u {
        decay = exp2(dt * a_of(head));
    }
    var sum = 0.0;
    for (var k = 0u; k < PER; k += 1u) {
        let n = k * LANES + lane;
        if n < p.states {
            if BY_STATE == 1u {
                decay = exp2(dt * a_of(head * p.states + n));
            }
            h[at + k] = decay * h[at + k] + inner * b_of(p.b_at + row * p.b_row + group + n);
            sum += c_of(p.c_at + row * p.c_row + group + n) * h[at + k];
        }
    }
    return sum;
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
    let row = flat / p.tiles;
    let first = flat % p.tiles * CHANNELS;
    let lane = local % LANES;
    let own = first + local / LANES * COLUMNS;
    for (var i = 0u; i < COLUMNS * PER; i += 1u) {
        let channel = own + i / PER;
        let n = i % PER * LANES + lane;
        h[i] = 0.0;
        if INITIAL > 0u && channel < p.channels && n < p.states {
            let at = (row * p.channels + channel) * p.states + n;
            if INITIAL == 1u {
                h[i] = bitcast<f32>(initial[at]);
            } else {
                h[i] = bitcast<f32>(last[at]);
            }
        }
    }
    for (var j = 0u; j < COLUMNS; j += 1u) {
        var sum = 0.0;
        if p.steps > 0u && own + j < p.channels {
            sum = advance(row, own + j, lane, j * PER);
        }
        sums[j * THREADS + local] = sum;
    }
    if CARRY == 1u && may_write() {
        for (var i = 0u; i < COLUMNS * PER; i += 1u) {
            let channel = own + i / PER;
            let n = i % PER * LANES + lane;
            if channel < p.channels && n < p.states {
                last[(row * p.channels + channel) * p.states + n] = bitcast<u32>(h[i]);
            }
        }
    }
    workgroupBarrier();
    for (var apart = LANES / 2u; apart > 0u; apart /= 2u) {
        if lane < apart {
            for (var j = 0u; j < COLUMNS; j += 1u) {
                sums[j * THREADS + local] += sums[j * THREADS + local + apart];
            }
        }
        workgroupBarrier();
    }
    if p.steps == 0u {
        return;
    }
    for (var i = local; i < CHANNELS; i += THREADS) {
        let at = row * p.channels + first + i;
        let sum = sums[i % COLUMNS * THREADS + i / COLUMNS * LANES];
        if first + i < p.channels {
            if OUT == F32 {
                results[at] = bitcast<u32>(sum);
            } else if i % 2u == 0u {
                // The next channel exists: OUT is 16-bit only if the number of channels is even.
                let next = sums[(i + 1u) % COLUMNS * THREADS + (i + 1u) / COLUMNS * LANES];
                results[at / 2u] = two_bits(vec2<f32>(sum, next), OUT);
            }
        }
    }
}
