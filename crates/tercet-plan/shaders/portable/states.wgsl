// Shared code of the state-space scans. A workgroup of THREADS threads processes CHANNELS channels
// through all steps. The states of a channel are in registers of LANES threads, four times QUADS
// states each; a thread has COLUMNS channels. Thread lane * ACROSS + across owns state 4 (lane
// QUADS + q) + i of channel j ACROSS + across. Adjacent threads own adjacent channels.
//
// The sequence is processed in blocks of FOURS times four steps. The words of the next block are
// prefetched without branches and are not used until the current block ends, so that no thread
// waits for them. A step has two rows of states: the enter row (b or k) spreads the input over the
// states, and the leave row (c or q) reads the output from them. With STAGED, the rows of a block
// are in shared memory, otherwise they are loaded when used. Each thread stores its partial outputs
// of four steps as a vector in `sums`. At the end of a block, each thread adds and stores the
// outputs of its units: a unit is one channel and four steps.
//
// The including kernel declares `p` with `steps` and `states`, and stages the values (x or v) in
// `values_of`. SPREAD is the distance of the `sums` slots of a channel's threads, or 0 if those
// threads are not adjacent.
// uses delta_scan.wgsl or head_scan.wgsl or selective_scan.wgsl: SPREAD, p
// uses halves.wgsl: two_bits, two_of
// uses prelude.wgsl: F32, float_of, lane_of, word_of
// uses state_row_vectors.wgsl or state_rows.wgsl: ALIGNED, enter_words, leave_words

override DTYPE: u32 = 0u;
override OUT: u32 = 0u;
override LANES: u32 = 4u;
override QUADS: u32 = 1u;
override COLUMNS: u32 = 1u;
override FOURS: u32 = 4u;
override STAGED: u32 = 1u;
override THREADS: u32 = 128u;

const ACROSS: u32 = THREADS / LANES;
const CHANNELS: u32 = ACROSS * COLUMNS;
const STEPS: u32 = 4u * FOURS;
// Vectors of four states per channel, and the row pitch in shared memory. The pitch is odd, so that
// steps begin in different banks.
const WIDTH: u32 = LANES * QUADS;
const ROW: u32 = WIDTH | 1u;
const HELD_ROWS: u32 = STEPS * ROW * STAGED + 1u - STAGED;
// Vectors of a block that each thread loads.
const OF_ROWS: u32 = (STEPS * WIDTH + THREADS - 1u) / THREADS * STAGED + 1u - STAGED;
// Number of groups of four steps that are computed together: all of them load before one stores its
// partial outputs.
const AT_ONCE: u32 = min(FOURS, 2u);
const UNITS: u32 = (FOURS * CHANNELS + THREADS - 1u) / THREADS;
const LOG2_E: f32 = 1.442695;

@group(0) @binding(3) var<storage, read> value_data: array<u32>;
@group(0) @binding(4) var<storage, read_write> results: array<u32>;

var<workgroup> enter_of: array<vec4<f32>, HELD_ROWS>;
var<workgroup> leave_of: array<vec4<f32>, HELD_ROWS>;
var<workgroup> values_of: array<vec4<f32>, FOURS * CHANNELS>;
var<workgroup> sums: array<vec4<f32>, FOURS * COLUMNS * THREADS>;

// Prefetched words of the next block.
var<private> next_enter: array<vec4<u32>, OF_ROWS>;
var<private> next_leave: array<vec4<u32>, OF_ROWS>;
var<private> next_values: array<vec4<u32>, UNITS>;

// Offset of the state row of the first step, and the stride from step to step, in elements.
var<private> first_row: u32;
var<private> row_stride: u32;
// Offset and stride of values and results, from the workgroup's first channel on, and the number of
// its channels.
var<private> first_value: u32;
var<private> value_stride: u32;
var<private> channels: u32;
var<private> lane: u32;
var<private> across: u32;

// Loads beyond the last step, state or channel are clamped, and their results are discarded. States
// beyond the last one are zero.
fn row_element(step: u32, vector: u32) -> u32 {
    let last = (max(p.states, 1u) - 1u) / 4u;
    return first_row + min(step, p.steps - 1u) * row_stride + 4u * min(vector, last);
}

// Unpacks the floats of a row vector from its loaded words.
fn row_floats(words: vec4<u32>, step: u32, vector: u32) -> vec4<f32> {
    var row = bitcast<vec4<f32>>(words);
    if DTYPE != F32 && ALIGNED {
        // The half is selected when the words are used: a select at the load would wait for the
        // data.
        let own = select(words.xy, words.zw, (row_element(step, vector) & 4u) != 0u);
        row = vec4<f32>(two_of(own.x, DTYPE), two_of(own.y, DTYPE));
    } else if DTYPE != F32 {
        let shift = 16u * (row_element(step, vector) & 1u);
        let low = words.xy >> vec2<u32>(shift);
        // The shift is done in two steps, because WGSL has no shift by 32.
        let high = (words.yz << vec2<u32>(16u - shift / 2u)) << vec2<u32>(16u - shift / 2u);
        let two = low | high;
        row = vec4<f32>(two_of(two.x, DTYPE), two_of(two.y, DTYPE));
    }
    let state = vec4<u32>(4u * vector) + vec4<u32>(0u, 1u, 2u, 3u);
    return select(vec4<f32>(), row, state < vec4<u32>(p.states));
}

// Enter row of a step: one vector. The block begins at step `first`.
fn enter(first: u32, step: u32, vector: u32) -> vec4<f32> {
    if STAGED == 1u {
        return enter_of[step * ROW + vector];
    }
    let words = enter_words(row_element(first + step, vector), p.states - min(4u * vector, p.states));
    return row_floats(words, first + step, vector);
}

fn leave(first: u32, step: u32, vector: u32) -> vec4<f32> {
    if STAGED == 1u {
        return leave_of[step * ROW + vector];
    }
    let words = leave_words(row_element(first + step, vector), p.states - min(4u * vector, p.states));
    return row_floats(words, first + step, vector);
}

// Element index of a tensor with the layout of the values.
fn value_element(step: u32, channel: u32) -> u32 {
    return first_value + min(step, p.steps - 1u) * value_stride + min(channel, channels - 1u);
}

fn value_float(word: u32, step: u32, channel: u32) -> f32 {
    return float_of(word, lane_of(value_element(step, channel), DTYPE), DTYPE);
}

// Unpacks the values of four steps from their loaded words.
fn value_floats(words: vec4<u32>, step: u32, channel: u32) -> vec4<f32> {
    return vec4<f32>(
        value_float(words.x, step, channel),
        value_float(words.y, step + 1u, channel),
        value_float(words.z, step + 2u, channel),
        value_float(words.w, step + 3u, channel),
    );
}

fn value_word(step: u32, channel: u32) -> u32 {
    return value_data[word_of(value_element(step, channel), DTYPE)];
}

// Loads the rows and values of the block at step `first`.
fn load_block(first: u32, local: u32) {
    if STAGED == 1u {
        for (var k = 0u; k < OF_ROWS; k += 1u) {
            let i = k * THREADS + local;
            let step = first + i / WIDTH;
            let vector = i % WIDTH;
            let count = p.states - min(4u * vector, p.states);
            next_enter[k] = enter_words(row_element(step, vector), count);
            next_leave[k] = leave_words(row_element(step, vector), count);
        }
    }
    for (var k = 0u; k < UNITS; k += 1u) {
        let unit = k * THREADS + local;
        let step = first + 4u * (unit / CHANNELS);
        let channel = unit % CHANNELS;
        next_values[k] = vec4<u32>(
            value_word(step, channel),
            value_word(step + 1u, channel),
            value_word(step + 2u, channel),
            value_word(step + 3u, channel),
        );
    }
}

// Stores the prefetched rows in shared memory.
fn place_rows(first: u32, local: u32) {
    if STAGED == 1u {
        for (var k = 0u; k < OF_ROWS; k += 1u) {
            let i = k * THREADS + local;
            if i < STEPS * WIDTH {
                let to = i / WIDTH * ROW + i % WIDTH;
                enter_of[to] = row_floats(next_enter[k], first + i / WIDTH, i % WIDTH);
                leave_of[to] = row_floats(next_leave[k], first + i / WIDTH, i % WIDTH);
            }
        }
    }
}

// The prefetched values of unit k of this thread.
fn loaded_values(first: u32, k: u32, local: u32) -> vec4<f32> {
    let unit = k * THREADS + local;
    return value_floats(next_values[k], first + 4u * (unit / CHANNELS), unit % CHANNELS);
}

// Number of groups of four steps in the block at step `first` that contain steps of the sequence.
fn fours_from(first: u32) -> u32 {
    return min(FOURS, (p.steps - first + 3u) / 4u);
}

// Index in `sums` of a thread's partial output of four steps.
fn sum_at(four: u32, of_lane: u32, channel: u32) -> u32 {
    return (four * LANES + of_lane) * CHANNELS + (channel ^ (of_lane * SPREAD % min(8u, CHANNELS)));
}

// Stores this thread's partial outputs of four steps of its channel j.
fn gather(four: u32, j: u32, sum: vec4<f32>) {
    sums[sum_at(four, lane, j * ACROSS + across)] = sum;
}

// Sum of the partial outputs of four steps of a channel.
fn gathered(four: u32, channel: u32) -> vec4<f32> {
    var sum = vec4<f32>();
    for (var k = 0u; k < LANES; k += 1u) {
        sum += sums[sum_at(four, k, channel)];
    }
    return sum;
}

// Stores the results of unit k of this thread for the block at step `first`, multiplied by `scale`.
// A word of 16-bit results contains two channels. The thread of the even channel stores two steps,
// that of the odd channel the other two. OUT is 16-bit only if the number of channels is even.
fn store_unit(first: u32, k: u32, local: u32, scale: vec4<f32>) {
    let unit = k * THREADS + local;
    let four = unit / CHANNELS;
    let channel = unit % CHANNELS;
    if four >= FOURS || channel >= channels {
        return;
    }
    let step = first + 4u * four;
    let at = first_value + step * value_stride + channel;
    if OUT == F32 {
        let result = bitcast<vec4<u32>>(scale * gathered(four, channel));
        for (var i = 0u; i < 4u; i += 1u) {
            if step + i < p.steps {
                results[at + i * value_stride] = result[i];
            }
        }
    } else {
        let odd = channel & 1u;
        let a = scale * gathered(four, channel - odd);
        let b = scale * gathered(four, channel - odd + 1u);
        let own_a = select(a.xy, a.zw, odd == 1u);
        let own_b = select(b.xy, b.zw, odd == 1u);
        for (var i = 0u; i < 2u; i += 1u) {
            if step + 2u * odd + i < p.steps {
                let to = at - odd + (2u * odd + i) * value_stride;
                results[to / 2u] = two_bits(vec2<f32>(own_a[i], own_b[i]), OUT);
            }
        }
    }
}

// sum + dot(a, b), accumulated sequentially.
fn add_dot(sum: f32, a: vec4<f32>, b: vec4<f32>) -> f32 {
    return a.w * b.w + (a.z * b.z + (a.y * b.y + (a.x * b.x + sum)));
}
