// Gated delta rule, for each head and token:
//
//     S *= exp(g);
//     d = beta (v - S^T k);
//     S += k outer d;
//     o = S^T q / sqrt(N).
//
// The columns of S are independent channels. states.wgsl calls k the enter row and q the leave row.
//
// Four steps are computed together. Let S be the state before the four steps, and D_t the product
// of their decays up to step t:
//
//     d_t = beta_t (v_t - D_t S^T k_t - sum over j < t of D_t / D_j (k_t k_j) d_j);
//     o_t = (D_t S^T q_t + sum over j <= t of D_t / D_j (q_t k_j) d_j) / sqrt(N);
//     S   = D_3 S + sum over j of D_3 / D_j k_j outer d_j.
//
// The threads of a column then reduce once per four steps instead of once per step. If the threads
// of a column belong to one cluster (MEETS), they reduce by shuffles without waiting for other
// columns; otherwise they use shared memory. The terms in k, q, g and beta are the same for all
// columns and are computed once per block. The last state is F32.
// uses cluster.wgsl: CLUSTER, shuffle_xor4
// uses prelude.wgsl: flat_group, float_of, lane_of, word_of
// uses states.wgsl: ACROSS, CHANNELS, COLUMNS, DTYPE, FOURS, LANES, LOG2_E, QUADS, STEPS, THREADS, UNITS, WIDTH, across, add_dot, channels, enter, first_row, first_value, fours_from, gather, lane, leave, load_block, loaded_values, place_rows, row_stride, store_unit, value_stride, values_of

struct Params {
    steps: u32,
    states: u32,
    heads: u32,
    columns: u32,
    head_tiles: u32,
    count: u32,
    scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(5) var<storage, read> g_data: array<u32>;
@group(0) @binding(6) var<storage, read> beta_data: array<u32>;
@group(0) @binding(7) var<storage, read> initial: array<u32>;
@group(0) @binding(8) var<storage, read_write> last: array<f32>;

override INITIAL: u32 = 1u;
override CARRY: u32 = 1u;

// 1 if the threads of a column are adjacent within a cluster. Thread across * LANES + lane then
// owns the vectors q LANES + lane of its columns.
const MEETS: u32 = min(CLUSTER / LANES, 1u) * min(CLUSTER - 1u, 1u);
// Distance of the shared-memory slots of adjacent threads: eight of them use different banks.
const SPREAD: u32 = max(8u / LANES, 1u) * MEETS;
// Number of partial sums of each dot product of two rows.
const PIECES: u32 = THREADS / (4u * FOURS);
// S^T k values that each thread reduces.
const ANSWERS: u32 = (4u * CHANNELS + THREADS - 1u) / THREADS;
// 1 if partial results of S^T k are reduced in shared memory.
const SHARED_ANSWERS: u32 = 1u - MEETS;

// g of each step as a base-2 exponent, one vector per four steps. `betas_of` stores beta alike.
var<workgroup> gates_of: array<vec4<f32>, FOURS>;
var<workgroup> betas_of: array<vec4<f32>, FOURS>;
// Coefficients of four steps, one row per step t. For j <= t: D_t / D_j (q_t k_j), the effect of
// step j on o_t. For j > t: beta_j D_j / D_t (k_j k_t), the effect of step t on d_j. `parts_of`
// stores partial sums of their dot products.
var<workgroup> parts_of: array<vec4<f32>, FOURS * 4u * PIECES>;
var<workgroup> mixes_of: array<vec4<f32>, FOURS * 4u>;
// S^T k of four steps, by steps and columns: the partial sums of each thread, then the totals.
var<workgroup> answers: array<f32, 4u * COLUMNS * THREADS * SHARED_ANSWERS + MEETS>;
var<workgroup> answer_of: array<f32, 4u * CHANNELS * SHARED_ANSWERS + MEETS>;

var<private> next_gates: vec4<u32>;
var<private> next_betas: vec4<u32>;
var<private> state: array<vec4<f32>, COLUMNS * QUADS>;
// The k rows of four steps.
var<private> keys: array<vec4<f32>, 4u * QUADS>;
// S^T k, S^T q and d of four steps, for each column of the thread.
var<private> by_k: array<vec4<f32>, COLUMNS>;
var<private> by_q: array<vec4<f32>, COLUMNS>;
var<private> change: array<vec4<f32>, COLUMNS>;
var<private> answered: array<f32, ANSWERS>;
var<private> first_gate: u32;

// Index of state vector q of this thread.
fn own_vector(q: u32) -> u32 {
    if MEETS == 1u {
        return q * LANES + lane;
    }
    return lane * QUADS + q;
}

fn gate_element(step: u32) -> u32 {
    return select(0u, first_gate + step * p.heads, step < p.steps);
}

fn g_word(step: u32) -> u32 {
    return g_data[word_of(gate_element(step), DTYPE)];
}

fn beta_word(step: u32) -> u32 {
    return beta_data[word_of(gate_element(step), DTYPE)];
}

fn gate_float(word: u32, step: u32) -> f32 {
    return select(0.0, float_of(word, lane_of(gate_element(step), DTYPE), DTYPE), step < p.steps);
}

fn gate_floats(words: vec4<u32>, step: u32) -> vec4<f32> {
    return vec4<f32>(
        gate_float(words.x, step),
        gate_float(words.y, step + 1u),
        gate_float(words.z, step + 2u),
        gate_float(words.w, step + 3u),
    );
}

fn load(first: u32, local: u32) {
    load_block(first, local);
    let step = first + 4u * (local % FOURS);
    next_gates = vec4<u32>(g_word(step), g_word(step + 1u), g_word(step + 2u), g_word(step + 3u));
    next_betas = vec4<u32>(
        beta_word(step),
        beta_word(step + 1u),
        beta_word(step + 2u),
        beta_word(step + 3u),
    );
}

fn place(first: u32, local: u32) {
    place_rows(first, local);
    for (var k = 0u; k < UNITS; k += 1u) {
        let unit = k * THREADS + local;
        if unit < FOURS * CHANNELS {
            values_of[unit] = loaded_values(first, k, local);
        }
    }
    if local < FOURS {
        gates_of[local] = LOG2_E * gate_floats(next_gates, first + 4u * local);
        betas_of[local] = gate_floats(next_betas, first + 4u * local);
    }
}

fn store(first: u32, local: u32) {
    for (var k = 0u; k < UNITS; k += 1u) {
        store_unit(first, k, local, vec4<f32>(p.scale));
    }
}

// Partial dot products of rows: row t of four steps, over every PIECES-th vector.
fn multiply_rows(first: u32, local: u32) {
    for (var i = local; i < FOURS * 4u * PIECES; i += THREADS) {
        let t = i / PIECES % 4u;
        let step = i / PIECES - t;
        var sum = vec4<f32>();
        for (var at = i % PIECES; at < WIDTH; at += PIECES) {
            let q = leave(first, step + t, at);
            let k = enter(first, step + t, at);
            sum.x = add_dot(sum.x, q, enter(first, step, at));
            sum.y = add_dot(sum.y, select(k, q, vec4<bool>(t >= 1u)), enter(first, step + 1u, at));
            sum.z = add_dot(sum.z, select(k, q, vec4<bool>(t >= 2u)), enter(first, step + 2u, at));
            sum.w = add_dot(sum.w, select(k, q, vec4<bool>(t == 3u)), enter(first, step + 3u, at));
        }
        parts_of[i] = sum;
    }
}

fn mix_rows(local: u32) {
    if local < FOURS * 4u {
        let four = local / 4u;
        let t = local % 4u;
        var sum = vec4<f32>();
        for (var i = 0u; i < PIECES; i += 1u) {
            sum += parts_of[local * PIECES + i];
        }
        let betas = betas_of[four];
        // Adds the exponents between two steps directly. A difference of prefix sums would be NaN
        // for infinite gates.
        let g = gates_of[four];
        let two = g.yz + g.zw;
        var between = vec4<f32>(0.0, g.y, two.x, two.x + g.w);
        if t == 1u {
            between = vec4<f32>(g.y, 0.0, g.z, two.y);
        } else if t == 2u {
            between = vec4<f32>(two.x, g.z, 0.0, g.w);
        } else if t == 3u {
            between = vec4<f32>(two.x + g.w, two.y, g.w, 0.0);
        }
        let is_past = vec4<u32>(0u, 1u, 2u, 3u) <= vec4<u32>(t);
        sum *= exp2(between) * select(betas, vec4<f32>(1.0), is_past);
        mixes_of[local] = sum;
    }
}

// Sum over the threads of a column; every thread receives it. All threads of the workgroup must
// call this function.
fn over_lanes(mine: vec4<f32>) -> vec4<f32> {
    var sum = mine;
    for (var mask = 1u; mask < LANES; mask *= 2u) {
        sum += shuffle_xor4(sum, mask);
    }
    return sum;
}

// S^T k of four steps. With MEETS the result is the sum over the column's threads; otherwise the
// partial sums go to `answers`.
fn ask(first: u32, four: u32) {
    for (var j = 0u; j < COLUMNS; j += 1u) {
        by_k[j] = vec4<f32>();
    }
    for (var q = 0u; q < QUADS; q += 1u) {
        for (var t = 0u; t < 4u; t += 1u) {
            let k = enter(first, 4u * four + t, own_vector(q));
            keys[4u * q + t] = k;
            for (var j = 0u; j < COLUMNS; j += 1u) {
                by_k[j][t] = add_dot(by_k[j][t], k, state[j * QUADS + q]);
            }
        }
    }
    if MEETS == 1u {
        for (var j = 0u; j < COLUMNS; j += 1u) {
            by_k[j] = over_lanes(by_k[j]);
        }
        return;
    }
    for (var j = 0u; j < COLUMNS; j += 1u) {
        for (var t = 0u; t < 4u; t += 1u) {
            answers[(t * LANES + lane) * CHANNELS + j * ACROSS + across] = by_k[j][t];
        }
    }
}

// Adds the partial sums in `answers`.
fn add_answers(local: u32) {
    for (var k = 0u; k < ANSWERS; k += 1u) {
        let i = k * THREADS + local;
        let at = i / CHANNELS % 4u * LANES * CHANNELS + i % CHANNELS;
        var sum = 0.0;
        for (var l = 0u; l < LANES; l += 1u) {
            sum += answers[at + l * CHANNELS];
        }
        answered[k] = sum;
    }
}

fn place_answers(local: u32) {
    for (var k = 0u; k < ANSWERS; k += 1u) {
        let i = k * THREADS + local;
        if i < 4u * CHANNELS {
            answer_of[i] = answered[k];
        }
    }
}

// S^T q of four steps, partial sums of this thread.
fn look(first: u32, four: u32) {
    for (var j = 0u; j < COLUMNS; j += 1u) {
        by_q[j] = vec4<f32>();
    }
    for (var q = 0u; q < QUADS; q += 1u) {
        for (var t = 0u; t < 4u; t += 1u) {
            let x = leave(first, 4u * four + t, own_vector(q));
            for (var j = 0u; j < COLUMNS; j += 1u) {
                by_q[j][t] = add_dot(by_q[j][t], x, state[j * QUADS + q]);
            }
        }
    }
}

// S^T k of four steps for column j of this thread.
fn answer_to(j: u32) -> vec4<f32> {
    if MEETS == 1u {
        return by_k[j];
    }
    let column = j * ACROSS + across;
    return vec4<f32>(
        answer_of[column],
        answer_of[CHANNELS + column],
        answer_of[2u * CHANNELS + column],
        answer_of[3u * CHANNELS + column],
    );
}

// Computes the updates d and the partial outputs o of four steps.
fn solve(four: u32) {
    let g = gates_of[four];
    let decays = exp2(vec4<f32>(g.x, g.x + g.y, g.x + g.y + g.z, g.x + g.y + g.z + g.w));
    let betas = betas_of[four];
    let m0 = mixes_of[4u * four];
    let m1 = mixes_of[4u * four + 1u];
    let m2 = mixes_of[4u * four + 2u];
    let m3 = mixes_of[4u * four + 3u];
    for (var j = 0u; j < COLUMNS; j += 1u) {
        let column = j * ACROSS + across;
        let answer = answer_to(j);
        var d = betas * (values_of[four * CHANNELS + column] - decays * answer);
        d.y -= m0.y * d.x;
        d.z -= m0.z * d.x + m1.z * d.y;
        d.w -= m0.w * d.x + m1.w * d.y + m2.w * d.z;
        change[j] = d;
        var own = decays * by_q[j];
        if lane == 0u {
            own += vec4<f32>(
                m0.x * d.x,
                m1.x * d.x + m1.y * d.y,
                m2.x * d.x + m2.y * d.y + m2.z * d.z,
                m3.x * d.x + m3.y * d.y + m3.z * d.z + m3.w * d.w,
            );
        }
        gather(four, j, own);
    }
}

fn update(four: u32) {
    let g = gates_of[four];
    let left = exp2(vec4<f32>(g.y + g.z + g.w, g.z + g.w, g.w, 0.0));
    let whole = left.x * exp2(g.x);
    for (var j = 0u; j < COLUMNS; j += 1u) {
        let d = left * change[j];
        for (var q = 0u; q < QUADS; q += 1u) {
            let at = j * QUADS + q;
            state[at] = d.w * keys[4u * q + 3u] + (d.z * keys[4u * q + 2u]
                + (d.y * keys[4u * q + 1u] + (d.x * keys[4u * q] + whole * state[at])));
        }
    }
}

fn begin(of_head: u32, first_column: u32) {
    for (var j = 0u; j < COLUMNS; j += 1u) {
        let column = j * ACROSS + across;
        for (var q = 0u; q < QUADS; q += 1u) {
            var own = vec4<f32>();
            if INITIAL == 1u && column < channels {
                for (var i = 0u; i < 4u; i += 1u) {
                    let at = 4u * own_vector(q) + i;
                    if at < p.states {
                        let source = (of_head + at) * p.columns + first_column + column;
                        own[i] = float_of(initial[word_of(source, DTYPE)], lane_of(source, DTYPE), DTYPE);
                    }
                }
            }
            state[j * QUADS + q] = own;
        }
    }
}

fn end(of_head: u32, first_column: u32) {
    for (var j = 0u; j < COLUMNS; j += 1u) {
        let column = j * ACROSS + across;
        for (var q = 0u; q < QUADS; q += 1u) {
            for (var i = 0u; i < 4u; i += 1u) {
                let at = 4u * own_vector(q) + i;
                if at < p.states && column < channels {
                    last[(of_head + at) * p.columns + first_column + column] = state[j * QUADS + q][i];
                }
            }
        }
    }
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
    let row = flat / (p.heads * p.head_tiles);
    let head = flat / p.head_tiles % p.heads;
    let token = row * p.steps;
    let first_column = flat % p.head_tiles * CHANNELS;
    first_row = (token * p.heads + head) * p.states;
    row_stride = p.heads * p.states;
    first_value = (token * p.heads + head) * p.columns + first_column;
    value_stride = p.heads * p.columns;
    channels = p.columns - first_column;
    first_gate = token * p.heads + head;
    if MEETS == 1u {
        lane = local % LANES;
        across = local / LANES;
    } else {
        lane = local / ACROSS;
        across = local % ACROSS;
    }
    let of_head = (row * p.heads + head) * p.states;
    begin(of_head, first_column);
    if p.steps > 0u {
        load(0u, local);
    }
    for (var first = 0u; first < p.steps; first += STEPS) {
        // After the barrier no thread reads the block, and the partial outputs are complete.
        workgroupBarrier();
        if first > 0u {
            store(first - STEPS, local);
        }
        place(first, local);
        workgroupBarrier();
        load(first + STEPS, local);
        multiply_rows(first, local);
        workgroupBarrier();
        mix_rows(local);
        if MEETS == 1u {
            workgroupBarrier();
        }
        let fours = fours_from(first);
        for (var four = 0u; four < fours; four += 1u) {
            ask(first, four);
            if MEETS == 1u {
                look(first, four);
            } else {
                workgroupBarrier();
                add_answers(local);
                look(first, four);
                place_answers(local);
                workgroupBarrier();
            }
            solve(four);
            update(four);
        }
    }
    workgroupBarrier();
    if p.steps > 0u {
        store((p.steps - 1u) / STEPS * STEPS, local);
    }
    if CARRY == 1u {
        end(of_head, first_column);
    }
}
