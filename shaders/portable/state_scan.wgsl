// h = exp(dt a) h + dt x b, y = sum over states of c h, for each channel, from zeros. With PER_STATE each
// state has an `a` of its own, else each head of `per_head` channels one. Heads of a group have the same b
// and c; a workgroup's channels are of one group. y is f32.

struct Params {
    steps: u32,
    channels: u32,
    per_head: u32,
    states: u32,
    groups: u32,
    group_channels: u32,
    group_tiles: u32,
    count: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read> dt_data: array<u32>;
@group(0) @binding(3) var<storage, read> a_data: array<u32>;
@group(0) @binding(4) var<storage, read> b_data: array<u32>;
@group(0) @binding(5) var<storage, read> c_data: array<u32>;
@group(0) @binding(6) var<storage, read_write> y_data: array<f32>;

override PER_STATE: u32 = 1u;

var<workgroup> dt_of: array<f32, STEPS * CHANNELS>;
var<workgroup> inner_of: array<f32, STEPS * CHANNELS>;
var<workgroup> b_of: array<vec4<f32>, STEPS * WIDTH>;
var<workgroup> c_of: array<vec4<f32>, STEPS * WIDTH>;
var<workgroup> sums: array<f32, STEPS * THREADS>;

var<private> next_dt: array<f32, OF_CHANNELS>;
var<private> next_x: array<f32, OF_CHANNELS>;
var<private> next_b: array<vec4<f32>, OF_STATES>;
var<private> next_c: array<vec4<f32>, OF_STATES>;

// Where the workgroup's rows begin: the first token, and the first and past the last channel.
var<private> token: u32;
var<private> group: u32;
var<private> first_channel: u32;
var<private> end_channel: u32;

fn element_b(i: u32) -> f32 {
    return float_of(b_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn element_c(i: u32) -> f32 {
    return float_of(c_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

// The block that begins at a step, zeros beyond its end.
fn load(first: u32, local: u32) {
    for (var k = 0u; k < OF_CHANNELS; k += 1u) {
        let i = k * THREADS + local;
        let step = first + i / CHANNELS;
        let channel = first_channel + i % CHANNELS;
        var dt = 0.0;
        var x = 0.0;
        if i < STEPS * CHANNELS && step < p.steps && channel < end_channel {
            let at = token + step;
            let of_x = at * p.channels + channel;
            let of_dt = at * (p.channels / p.per_head) + channel / p.per_head;
            x = float_of(x_data[word_of(of_x, DTYPE)], lane_of(of_x, DTYPE), DTYPE);
            dt = float_of(dt_data[word_of(of_dt, DTYPE)], lane_of(of_dt, DTYPE), DTYPE);
        }
        next_dt[k] = dt;
        next_x[k] = x;
    }
    for (var k = 0u; k < OF_STATES; k += 1u) {
        let i = k * THREADS + local;
        let step = first + i / WIDTH;
        let state = 4u * (i % WIDTH);
        var b = vec4<f32>();
        var c = vec4<f32>();
        if i < STEPS * WIDTH && step < p.steps {
            let at = ((token + step) * p.groups + group) * p.states + state;
            for (var lane = 0u; lane < 4u; lane += 1u) {
                if state + lane < p.states {
                    b[lane] = element_b(at + lane);
                    c[lane] = element_c(at + lane);
                }
            }
        }
        next_b[k] = b;
        next_c[k] = c;
    }
}

// What was loaded, to shared memory.
fn place(local: u32) {
    for (var k = 0u; k < OF_CHANNELS; k += 1u) {
        let i = k * THREADS + local;
        if i < STEPS * CHANNELS {
            dt_of[i] = next_dt[k];
            inner_of[i] = next_dt[k] * next_x[k];
        }
    }
    for (var k = 0u; k < OF_STATES; k += 1u) {
        let i = k * THREADS + local;
        if i < STEPS * WIDTH {
            b_of[i] = next_b[k];
            c_of[i] = next_c[k];
        }
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
    let tiles = p.groups * p.group_tiles;
    let tile = flat % tiles;
    token = flat / tiles * p.steps;
    group = tile / p.group_tiles;
    first_channel = group * p.group_channels + tile % p.group_tiles * CHANNELS;
    end_channel = (group + 1u) * p.group_channels;
    let column = local % CHANNELS;
    let lane = local / CHANNELS;
    let channel = first_channel + column;

    // In units of powers of two.
    var a: array<vec4<f32>, QUADS>;
    var h: array<vec4<f32>, QUADS>;
    for (var q = 0u; q < QUADS; q += 1u) {
        h[q] = vec4<f32>();
        var own = vec4<f32>();
        if channel < end_channel {
            for (var i = 0u; i < 4u; i += 1u) {
                let state = 4u * (lane * QUADS + q) + i;
                var at = channel / p.per_head;
                if PER_STATE == 1u {
                    at = channel * p.states + state;
                }
                if PER_STATE == 0u || state < p.states {
                    own[i] = LOG2_E * float_of(a_data[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
                }
            }
        }
        a[q] = own;
    }
    load(0u, local);
    for (var first = 0u; first < p.steps; first += STEPS) {
        place(local);
        workgroupBarrier();
        load(first + STEPS, local);
        for (var step = 0u; step < STEPS; step += 1u) {
            let dt = dt_of[step * CHANNELS + column];
            let inner = inner_of[step * CHANNELS + column];
            let whole = exp2(dt * a[0].x);
            var sum = vec4<f32>();
            for (var q = 0u; q < QUADS; q += 1u) {
                let at = step * WIDTH + lane * QUADS + q;
                var decay = vec4<f32>(whole);
                if PER_STATE == 1u {
                    decay = exp2(dt * a[q]);
                }
                h[q] = decay * h[q] + inner * b_of[at];
                sum += c_of[at] * h[q];
            }
            sums[step * THREADS + local] = (sum.x + sum.y) + (sum.z + sum.w);
        }
        workgroupBarrier();
        for (var i = local; i < STEPS * CHANNELS; i += THREADS) {
            let step = first + i / CHANNELS;
            let own = first_channel + i % CHANNELS;
            if step < p.steps && own < end_channel {
                var sum = 0.0;
                for (var k = 0u; k < LANES; k += 1u) {
                    sum += sums[i / CHANNELS * THREADS + k * CHANNELS + i % CHANNELS];
                }
                y_data[(token + step) * p.channels + own] = sum;
            }
        }
    }
}
