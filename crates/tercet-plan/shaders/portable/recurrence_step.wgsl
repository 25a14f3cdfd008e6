// RNN, GRU or LSTM layer, one direction, one step per dispatch. The gate inputs are the input
// projection x plus h w + bias; recurrence_cell.wgsl defines the cell. A workgroup computes UNITS
// state elements of ROWS rows of the batch. A thread sums every PARTS-th term of all gates of an
// element, for all rows; shared memory reduces the partial sums. The h states are stored as [size,
// rows], with rows a multiple of ROWS, so that a term loads two vectors for all rows. `states` (h,
// then c) and y are F32.
// uses prelude.wgsl: flat_group, float_of, lane_of, word_of
// uses recurrence_cell.wgsl: CELL, GATES, LSTM, next_state

struct Params {
    batch: u32,
    steps: u32,
    size: u32,
    wide: u32,
    reverse: u32,
    rows: u32,
    tiles: u32,
    count: u32,
    step: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read> w_data: array<u32>;
@group(0) @binding(3) var<storage, read> bias_data: array<u32>;
@group(0) @binding(4) var<storage, read> before: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> after: array<f32>;
@group(0) @binding(6) var<storage, read_write> y_data: array<f32>;
@group(0) @binding(7) var<storage, read_write> states: array<f32>;

override DTYPE: u32 = 0u;

const THREADS: u32 = 128u;
const UNITS: u32 = 8u;
const PARTS: u32 = 16u;
const ROWS: u32 = 8u;
// Terms in flight per thread.
const AHEAD: u32 = 4u;

var<workgroup> pool: array<vec4<f32>, PARTS * GATES * 2u * UNITS>;

fn element_x(i: u32) -> f32 {
    return float_of(x_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn weight(i: u32) -> f32 {
    return float_of(w_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn bias(i: u32) -> f32 {
    return float_of(bias_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

// Partial sums of an element for ROWS rows, stored in shared memory.
fn multiply(first_row: u32, element: u32, part: u32, unit: u32) {
    var sums: array<vec4<f32>, 2u * GATES>;
    for (var first = part; first < p.size; first += AHEAD * PARTS) {
        var low: array<vec4<f32>, AHEAD>;
        var high: array<vec4<f32>, AHEAD>;
        var w: array<f32, AHEAD * GATES>;
        for (var i = 0u; i < AHEAD; i += 1u) {
            let k = min(first + i * PARTS, p.size - 1u);
            low[i] = before[(k * p.rows + first_row) / 4u];
            high[i] = before[(k * p.rows + first_row) / 4u + 1u];
            for (var gate = 0u; gate < GATES; gate += 1u) {
                let own = weight(k * p.wide + gate * p.size + element);
                w[i * GATES + gate] = select(0.0, own, first + i * PARTS < p.size);
            }
        }
        for (var i = 0u; i < AHEAD; i += 1u) {
            for (var gate = 0u; gate < GATES; gate += 1u) {
                sums[2u * gate] += w[i * GATES + gate] * low[i];
                sums[2u * gate + 1u] += w[i * GATES + gate] * high[i];
            }
        }
    }
    for (var i = 0u; i < 2u * GATES; i += 1u) {
        pool[(part * 2u * GATES + i) * UNITS + unit] = sums[i];
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, groups);
    // All sequences of the dispatch share the grid of the longest one.
    if flat >= p.count || p.step >= p.steps {
        return;
    }
    let first_row = flat / p.tiles * ROWS;
    let unit = local % UNITS;
    let element = flat % p.tiles * UNITS + unit;
    let row = first_row + local / UNITS;
    let is_state = local < UNITS * ROWS && element < p.size && row < p.batch;
    var step = p.step;
    if p.reverse == 1u {
        step = p.steps - 1u - p.step;
    }
    // The loads of the input gates and the bias overlap with the matmul.
    var x = vec4<f32>();
    var of_state = vec4<f32>();
    let token = row * p.steps + step;
    let place = row * p.size + element;
    var hidden = 0.0;
    var cell = 0.0;
    if is_state {
        for (var gate = 0u; gate < GATES; gate += 1u) {
            x[gate] = element_x(token * p.wide + gate * p.size + element);
            of_state[gate] = bias(gate * p.size + element);
        }
        hidden = before[(element * p.rows + row) / 4u][row % 4u];
        if CELL == LSTM {
            cell = states[p.batch * p.size + place];
        }
    }
    multiply(first_row, min(element, p.size - 1u), local / UNITS, unit);
    workgroupBarrier();
    if local >= UNITS * ROWS || element >= p.size {
        return;
    }
    for (var part = 0u; part < PARTS; part += 1u) {
        for (var gate = 0u; gate < GATES; gate += 1u) {
            let sums = pool[((part * GATES + gate) * 2u + local / UNITS / 4u) * UNITS + unit];
            of_state[gate] += sums[row % 4u];
        }
    }
    let next = next_state(x, of_state, hidden, cell);
    after[element * p.rows + row] = select(0.0, next.x, is_state);
    if is_state {
        y_data[token * p.size + element] = next.x;
        states[place] = next.x;
        if CELL == LSTM {
            states[p.batch * p.size + place] = next.y;
        }
    }
}
