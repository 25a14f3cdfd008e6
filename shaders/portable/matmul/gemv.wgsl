// Product for up to ROWS rows (1 or 8). A workgroup of 256 computes UNITS units of PER columns, SLICES
// invocations each; groups in x and y of the grid, batches in z. An invocation sums its share of k, then
// the shares meet in shared memory. Where ACROSS is 1, neighbouring invocations walk along n (b is [K, N]),
// else along k (b is [N, K]). 16-bit results have an even n, or there is one row.

override ROWS: u32 = 1u;

const UNITS: u32 = 8u + 8u * ACROSS;
const SLICES: u32 = 256u / UNITS;

var<workgroup> shares: array<f32, 256u * ROWS * PER>;

// Sums of rows 0 to 3 and 4 to 7 for the first and the second column of the unit.
var<private> first_low: vec4<f32>;
var<private> first_high: vec4<f32>;
var<private> second_low: vec4<f32>;
var<private> second_high: vec4<f32>;

// Column k of a: rows 0 to 3, and 4 to 7. Rows from m on are 0.
fn low_rows(k: u32) -> vec4<f32> {
    if ROWS == 1u {
        return vec4<f32>(a_at(0u, k), 0.0, 0.0, 0.0);
    }
    return vec4<f32>(a_at(0u, k), a_at(1u, k), a_at(2u, k), a_at(3u, k));
}

fn high_rows(k: u32) -> vec4<f32> {
    return vec4<f32>(a_at(4u, k), a_at(5u, k), a_at(6u, k), a_at(7u, k));
}

fn share_of(column: u32, row: u32) -> f32 {
    var sums = select(first_low, first_high, row >= 4u);
    if column == 1u {
        sums = select(second_low, second_high, row >= 4u);
    }
    return sums[row % 4u];
}

// The words of the results from the sums.
fn store(first: u32, local: u32) {
    let per_row = UNITS * PER / lanes(Y_TYPE);
    let row = local / per_row;
    if local >= ROWS * per_row || row >= p.m {
        return;
    }
    let within = (local % per_row) * lanes(Y_TYPE);
    var word = 0u;
    var some = false;
    for (var lane = 0u; lane < lanes(Y_TYPE); lane += 1u) {
        let j = first + within + lane;
        if j < p.n {
            let unit = (within + lane) / PER;
            let column = (within + lane) % PER;
            let sum = shares[(column * ROWS + row) * 256u + unit * SLICES];
            word |= float_bits(finish(sum, j), Y_TYPE) << (16u * lane);
            some = true;
        }
    }
    if some {
        y_data[word_of(y_base + row * p.n + first + within, Y_TYPE)] = word;
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    let first = flat_group(group, groups) * UNITS * PER;
    if first >= p.n {
        return;
    }
    var unit = local / SLICES;
    var slice = local % SLICES;
    if ACROSS == 1u {
        unit = local % UNITS;
        slice = local / UNITS;
    }
    let own = unit * SLICES + slice;
    for (var batch = group.z; batch < p.batch; batch += groups.z) {
        enter_batch(batch);
        first_low = vec4<f32>();
        first_high = vec4<f32>();
        second_low = vec4<f32>();
        second_high = vec4<f32>();
        accumulate(min(first + unit * PER, (p.n - 1u) / PER * PER), slice);
        for (var column = 0u; column < PER; column += 1u) {
            for (var row = 0u; row < ROWS; row += 1u) {
                shares[(column * ROWS + row) * 256u + own] = share_of(column, row);
            }
        }
        for (var half = SLICES / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if slice < half {
                for (var i = 0u; i < ROWS * PER; i += 1u) {
                    shares[i * 256u + own] += shares[i * 256u + own + half];
                }
            }
        }
        workgroupBarrier();
        store(first, local);
        workgroupBarrier();
    }
}
