// RNN, GRU or LSTM layer, one direction, all steps in one dispatch. The gate inputs of a step are
// the input projection x plus h w + bias; recurrence_cell.wgsl defines the cell. A workgroup
// processes ROWS rows of the batch through all steps, so workgroups need no synchronization. A step
// has two phases: the matmul, one column of weights per thread; then the new states, one element
// per thread. States are F32: first h, then c. With HELD, the phases exchange data in shared
// memory, otherwise in `states` and `scratch`. y is F32.
// uses prelude.wgsl: flat_group, float_of, lane_of, word_of
// uses recurrence_cell.wgsl: CELL, GATES, LSTM, next_state

struct Params {
    batch: u32,
    steps: u32,
    size: u32,
    wide: u32,
    reverse: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(2) var<storage, read> w_data: array<u32>;
@group(0) @binding(3) var<storage, read> bias_data: array<u32>;
@group(0) @binding(4) var<storage, read> h_data: array<u32>;
@group(0) @binding(5) var<storage, read> c_data: array<u32>;
@group(0) @binding(6) var<storage, read_write> y_data: array<f32>;
@group(0) @binding(7) var<storage, read_write> states: array<f32>;
@group(0) @binding(8) var<storage, read_write> scratch: array<f32>;

override DTYPE: u32 = 0u;
override ROWS: u32 = 1u;
override HELD: u32 = 1u;

const THREADS: u32 = 256u;
// Floats of shared memory: the h states, then the gate inputs computed from them.
const POOL: u32 = 4096u;

var<workgroup> pool: array<f32, POOL>;
var<private> first_row: u32;

fn element_x(i: u32) -> f32 {
    return float_of(x_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn weight(i: u32) -> f32 {
    return float_of(w_data[word_of(i, DTYPE)], lane_of(i, DTYPE), DTYPE);
}

fn hidden(row: u32, i: u32) -> f32 {
    if HELD == 1u {
        return pool[row * p.size + i];
    }
    return states[(first_row + row) * p.size + i];
}

fn product(row: u32, i: u32) -> f32 {
    if HELD == 1u {
        return pool[ROWS * p.size + row * p.wide + i];
    }
    return scratch[(first_row + row) * p.wide + i];
}

fn put_product(row: u32, i: u32, value: f32) {
    if HELD == 1u {
        pool[ROWS * p.size + row * p.wide + i] = value;
    } else {
        scratch[(first_row + row) * p.wide + i] = value;
    }
}

fn put_hidden(row: u32, i: u32, value: f32) {
    states[(first_row + row) * p.size + i] = value;
    if HELD == 1u {
        pool[row * p.size + i] = value;
    }
}

fn multiply(rows: u32, local: u32) {
    for (var column = local; column < p.wide; column += THREADS) {
        var sums: array<f32, ROWS>;
        var k = 0u;
        // Four loads of weights in flight.
        for (; k + 4u <= p.size; k += 4u) {
            let w0 = weight(k * p.wide + column);
            let w1 = weight((k + 1u) * p.wide + column);
            let w2 = weight((k + 2u) * p.wide + column);
            let w3 = weight((k + 3u) * p.wide + column);
            for (var row = 0u; row < ROWS; row += 1u) {
                if row < rows {
                    let low = w0 * hidden(row, k) + w1 * hidden(row, k + 1u);
                    let high = w2 * hidden(row, k + 2u) + w3 * hidden(row, k + 3u);
                    sums[row] += low + high;
                }
            }
        }
        for (; k < p.size; k += 1u) {
            let w = weight(k * p.wide + column);
            for (var row = 0u; row < ROWS; row += 1u) {
                if row < rows {
                    sums[row] += w * hidden(row, k);
                }
            }
        }
        let bias = float_of(bias_data[word_of(column, DTYPE)], lane_of(column, DTYPE), DTYPE);
        for (var row = 0u; row < ROWS; row += 1u) {
            if row < rows {
                put_product(row, column, sums[row] + bias);
            }
        }
    }
}

fn advance(rows: u32, step: u32, local: u32) {
    for (var place = local; place < rows * p.size; place += THREADS) {
        let row = place / p.size;
        let i = place % p.size;
        let at = (first_row + row) * p.steps + step;
        var x = vec4<f32>();
        var of_state = vec4<f32>();
        for (var gate = 0u; gate < GATES; gate += 1u) {
            x[gate] = element_x(at * p.wide + gate * p.size + i);
            of_state[gate] = product(row, gate * p.size + i);
        }
        let place_of_cell = (p.batch + first_row + row) * p.size + i;
        var cell = 0.0;
        if CELL == LSTM {
            cell = states[place_of_cell];
        }
        let next = next_state(x, of_state, hidden(row, i), cell);
        if CELL == LSTM {
            states[place_of_cell] = next.y;
        }
        put_hidden(row, i, next.x);
        y_data[at * p.size + i] = next.x;
    }
}

fn meet() {
    storageBarrier();
    workgroupBarrier();
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    first_row = flat_group(group, groups) * ROWS;
    if first_row >= p.batch {
        return;
    }
    let rows = min(ROWS, p.batch - first_row);
    for (var place = local; place < rows * p.size; place += THREADS) {
        let source = first_row * p.size + place;
        let h = float_of(h_data[word_of(source, DTYPE)], lane_of(source, DTYPE), DTYPE);
        put_hidden(place / p.size, place % p.size, h);
        if CELL == LSTM {
            let c = float_of(c_data[word_of(source, DTYPE)], lane_of(source, DTYPE), DTYPE);
            states[p.batch * p.size + source] = c;
        }
    }
    meet();
    for (var i = 0u; i < p.steps; i += 1u) {
        var step = i;
        if p.reverse == 1u {
            step = p.steps - 1u - i;
        }
        multiply(rows, local);
        meet();
        advance(rows, step, local);
        meet();
    }
}
