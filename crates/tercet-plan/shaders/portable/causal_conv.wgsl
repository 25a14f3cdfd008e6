// Causal depthwise convolution with optional SiLU: y[s] = bias + sum over k of w[k] x[s + k - TAPS
// + 1] for each channel. The TAPS - 1 rows before x come from `first` (INITIAL = 1), from `last`
// itself (2), or are zeros (0). With CARRY, the last TAPS - 1 rows are written to `last` for the
// next run. If the record of a data check reports a failed run, `last` is not written, because it
// may be a state.
//
// A thread computes WIDTH channels of a step; with WIDTH = 2 they share a word. The grid covers
// `units` words of a row, `steps` rows, then the carried rows, for each batch entry. If `last` is
// read and written, one thread computes all carried rows of its word, and the steps that read them.
// `rows` is then 1 plus the other steps; otherwise `rows` is the number of steps and carried rows.
// x has strides for batch entries and steps.
// uses halves.wgsl: two_bits
// uses prelude.wgsl: F32, flat_group, float_of, lane_of, word_of

struct Params {
    steps: u32,
    before: u32,
    units: u32,
    count: u32,
    x_at: u32,
    x_row: u32,
    x_step: u32,
    rows: u32,
    checks: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read> w_data: array<u32>;
@group(0) @binding(3) var<storage, read> bias_data: array<u32>;
@group(0) @binding(4) var<storage, read> first: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<u32>;
@group(0) @binding(6) var<storage, read_write> last: array<u32>;
@group(0) @binding(7) var<storage, read> faults: array<u32>;

override DTYPE: u32 = 0u;
override OUT: u32 = 0u;
override TAPS: u32 = 4u;
override WIDTH: u32 = 1u;
override SILU: u32 = 1u;
override INITIAL: u32 = 1u;
override CARRY: u32 = 1u;

const LOG2_E: f32 = 1.442695;

// One channel of row `at`, counted from the first carried row.
fn row_of(entry: u32, at: u32, channel: u32) -> f32 {
    if at + 1u >= TAPS {
        let i = p.x_at + entry * p.x_row + (at + 1u - TAPS) * p.x_step + channel;
        return float_of(x_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
    }
    if INITIAL == 1u {
        let i = (entry * (TAPS - 1u) + at) * p.units * WIDTH + channel;
        return float_of(first[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
    }
    if INITIAL == 2u {
        let i = (entry * (TAPS - 1u) + at) * p.units * WIDTH + channel;
        return float_of(last[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
    }
    return 0.0;
}

fn convolved(entry: u32, step: u32, channel: u32) -> f32 {
    var sum = float_of(bias_data[word_of(channel, DTYPE)], lane_of(channel, DTYPE), DTYPE);
    for (var k = 0u; k < TAPS; k += 1u) {
        let i = k * p.units * WIDTH + channel;
        let factor = float_of(w_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
        sum += factor * row_of(entry, step + k, channel);
    }
    if SILU == 1u {
        // The clamp avoids exp2 overflow, so the kernel does not rely on infinities. For clamped
        // arguments, the result is near 0.
        sum = sum / (1.0 + exp2(min(-LOG2_E * sum, 126.0)));
    }
    return sum;
}

fn may_write() -> bool {
    for (var check = 0u; check < p.checks; check += 1u) {
        if faults[check * 64u] != 0u {
            return false;
        }
    }
    return true;
}

fn word_for(a: f32, b: f32) -> u32 {
    if OUT == F32 {
        return bitcast<u32>(a);
    }
    return two_bits(vec2<f32>(a, b), OUT);
}

fn store_step(entry: u32, step: u32, unit: u32) {
    let a = convolved(entry, step, unit * WIDTH);
    var b = 0.0;
    if WIDTH == 2u {
        b = convolved(entry, step, unit * WIDTH + 1u);
    }
    y[(entry * p.steps + step) * p.units + unit] = word_for(a, b);
}

// The word of a row that is carried to the next run.
fn carried(entry: u32, row: u32, unit: u32) -> u32 {
    let a = row_of(entry, row, unit * WIDTH);
    var b = 0.0;
    if WIDTH == 2u {
        b = row_of(entry, row, unit * WIDTH + 1u);
    }
    return word_for(a, b);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let item = flat_group(group, count) * 128u + local;
    if item >= p.count {
        return;
    }
    let unit = item % p.units;
    let row = item / p.units % p.rows;
    let entry = item / p.units / p.rows;
    if INITIAL != 2u {
        if row < p.steps {
            store_step(entry, row, unit);
        } else if CARRY == 1u && may_write() {
            last[(entry * p.before + row - p.steps) * p.units + unit] = carried(entry, row, unit);
        }
        return;
    }
    if row > 0u {
        store_step(entry, row + TAPS - 2u, unit);
        return;
    }
    for (var step = 0u; step < min(p.steps, TAPS - 1u); step += 1u) {
        store_step(entry, step, unit);
    }
    // The carried rows are written in ascending order, so each row is read before it is
    // overwritten.
    if may_write() {
        for (var i = 0u; i < p.before; i += 1u) {
            last[(entry * p.before + i) * p.units + unit] = carried(entry, p.steps + i, unit);
        }
    }
}
