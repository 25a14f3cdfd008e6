// S *= exp(g), d = beta (v - S^T k), S += k outer d, o = S^T q / sqrt(N), for each head and token. The
// columns of a head are channels: each needs the products of its own column only. Since S^T k and S^T q of
// the new state follow from the old one, the lanes of a column meet once a step:
// o = (exp(g) S^T q + (k q) d) / sqrt(N). o and the last state are f32.

struct Params {
    steps: u32,
    heads: u32,
    columns: u32,
    states: u32,
    head_tiles: u32,
    count: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q_data: array<u32>;
@group(0) @binding(2) var<storage, read> k_data: array<u32>;
@group(0) @binding(3) var<storage, read> v_data: array<u32>;
@group(0) @binding(4) var<storage, read> g_data: array<u32>;
@group(0) @binding(5) var<storage, read> beta_data: array<u32>;
@group(0) @binding(6) var<storage, read> initial: array<u32>;
@group(0) @binding(7) var<storage, read_write> o_data: array<f32>;
@group(0) @binding(8) var<storage, read_write> last: array<f32>;

override INITIAL: u32 = 1u;
override CARRY: u32 = 1u;

var<workgroup> v_of: array<f32, STEPS * CHANNELS>;
var<workgroup> q_of: array<vec4<f32>, STEPS * WIDTH>;
var<workgroup> k_of: array<vec4<f32>, STEPS * WIDTH>;
var<workgroup> gates: array<vec2<f32>, STEPS>;
// Two of them, in turns: one barrier a step.
var<workgroup> sums: array<vec3<f32>, 2u * THREADS>;

var<private> next_v: array<f32, OF_CHANNELS>;
var<private> next_q: array<vec4<f32>, OF_STATES>;
var<private> next_k: array<vec4<f32>, OF_STATES>;
var<private> next_gates: vec2<f32>;

var<private> token: u32;
var<private> head: u32;
var<private> first_column: u32;

fn element_q(i: u32) -> f32 {
    return float_of(q_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn element_k(i: u32) -> f32 {
    return float_of(k_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

// The block that begins at a step, zeros beyond its end.
fn load(first: u32, local: u32) {
    for (var k = 0u; k < OF_CHANNELS; k += 1u) {
        let i = k * THREADS + local;
        let step = first + i / CHANNELS;
        let column = first_column + i % CHANNELS;
        var v = 0.0;
        if i < STEPS * CHANNELS && step < p.steps && column < p.columns {
            let at = ((token + step) * p.heads + head) * p.columns + column;
            v = float_of(v_data[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
        }
        next_v[k] = v;
    }
    for (var k = 0u; k < OF_STATES; k += 1u) {
        let i = k * THREADS + local;
        let step = first + i / WIDTH;
        let state = 4u * (i % WIDTH);
        var own_q = vec4<f32>();
        var own_k = vec4<f32>();
        if i < STEPS * WIDTH && step < p.steps {
            let at = ((token + step) * p.heads + head) * p.states + state;
            for (var lane = 0u; lane < 4u; lane += 1u) {
                if state + lane < p.states {
                    own_q[lane] = element_q(at + lane);
                    own_k[lane] = element_k(at + lane);
                }
            }
        }
        next_q[k] = own_q;
        next_k[k] = own_k;
    }
    next_gates = vec2<f32>(1.0, 0.0);
    if local < STEPS && first + local < p.steps {
        let at = (token + first + local) * p.heads + head;
        let g = float_of(g_data[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
        let beta = float_of(beta_data[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
        next_gates = vec2<f32>(exp2(LOG2_E * g), beta);
    }
}

// What was loaded, to shared memory.
fn place(local: u32) {
    for (var k = 0u; k < OF_CHANNELS; k += 1u) {
        let i = k * THREADS + local;
        if i < STEPS * CHANNELS {
            v_of[i] = next_v[k];
        }
    }
    for (var k = 0u; k < OF_STATES; k += 1u) {
        let i = k * THREADS + local;
        if i < STEPS * WIDTH {
            q_of[i] = next_q[k];
            k_of[i] = next_k[k];
        }
    }
    if local < STEPS {
        gates[local] = next_gates;
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) id: vec3<u32>,
    @builtin(num_workgroups) ids: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(id, ids);
    if flat >= p.count {
        return;
    }
    let row = flat / (p.heads * p.head_tiles);
    head = flat / p.head_tiles % p.heads;
    token = row * p.steps;
    first_column = flat % p.head_tiles * CHANNELS;
    let lane = local / CHANNELS;
    let column = first_column + local % CHANNELS;
    let is_column = column < p.columns;
    let of_head = (row * p.heads + head) * p.states;

    var state: array<vec4<f32>, QUADS>;
    for (var q = 0u; q < QUADS; q += 1u) {
        var own = vec4<f32>();
        if INITIAL == 1u && is_column {
            for (var i = 0u; i < 4u; i += 1u) {
                let at = 4u * (lane * QUADS + q) + i;
                if at < p.states {
                    let source = (of_head + at) * p.columns + column;
                    own[i] = float_of(initial[word_of(source, DTYPE)], lane_of(source, DTYPE), DTYPE);
                }
            }
        }
        state[q] = own;
    }
    load(0u, local);
    for (var first = 0u; first < p.steps; first += STEPS) {
        // Nobody reads the block before any more.
        workgroupBarrier();
        place(local);
        workgroupBarrier();
        load(first + STEPS, local);
        for (var step = 0u; step < STEPS; step += 1u) {
            let gate = gates[step];
            var by_k = vec4<f32>();
            var by_q = vec4<f32>();
            var both = vec4<f32>();
            for (var q = 0u; q < QUADS; q += 1u) {
                let at = step * WIDTH + lane * QUADS + q;
                state[q] *= gate.x;
                by_k += k_of[at] * state[q];
                by_q += q_of[at] * state[q];
                both += k_of[at] * q_of[at];
            }
            let turn = step % 2u * THREADS;
            sums[turn + local] = vec3<f32>(
                (by_k.x + by_k.y) + (by_k.z + by_k.w),
                (by_q.x + by_q.y) + (by_q.z + by_q.w),
                (both.x + both.y) + (both.z + both.w),
            );
            workgroupBarrier();
            var sum = vec3<f32>();
            for (var i = 0u; i < LANES; i += 1u) {
                sum += sums[turn + i * CHANNELS + local % CHANNELS];
            }
            let d = gate.y * (v_of[step * CHANNELS + local % CHANNELS] - sum.x);
            for (var q = 0u; q < QUADS; q += 1u) {
                state[q] += d * k_of[step * WIDTH + lane * QUADS + q];
            }
            if lane == 0u && is_column && first + step < p.steps {
                let to = ((token + first + step) * p.heads + head) * p.columns + column;
                o_data[to] = p.scale * (sum.y + sum.z * d);
            }
        }
    }
    if CARRY == 1u && is_column {
        for (var q = 0u; q < QUADS; q += 1u) {
            for (var i = 0u; i < 4u; i += 1u) {
                let at = 4u * (lane * QUADS + q) + i;
                if at < p.states {
                    last[(of_head + at) * p.columns + column] = state[q][i];
                }
            }
        }
    }
}
