// Multi-row GEMV: matmul with ROWS rows (1, 4 or 8), or with blocks of ROWS rows. A workgroup of
// 256 threads computes UNITS units of PER columns (1 or 2) per iteration, SLICES threads each, with
// a grid stride. Groups map to x and y, batches to z. A thread sums its share of k; shared memory
// reduces the shares. With ACROSS = 1, adjacent threads read along n (b is [K, N]), otherwise along
// k (b is [N, K]). 16-bit results require an even n, or one row. Blocks of rows are adjacent in the
// grid, so that they share cached weights.
//
// With GATED = 1, b contains two concatenated matrices. A unit computes a column of each, and the
// result is f(first) * second. A prologue transforms the rows of a at load.

override ROWS: u32 = 1u;

const INVOCATIONS: u32 = 256u;
const SLICES: u32 = INVOCATIONS / UNITS;
// Number of results per row: of a unit, and of a workgroup.
const OWN: u32 = PER / (1u + GATED);
const RESULTS: u32 = UNITS * OWN;
// Slices of a unit that form one cluster. With one row, their sums are reduced by shuffles.
const ALIKE: u32 = select(1u, min(CLUSTER, SLICES), ROWS == 1u && ACROSS == 0u);
// Vectors of 4 rows.
const ROW_QUADS: u32 = ROWS / 4u;
const SEVERAL_ROWS: u32 = min(ROW_QUADS, 1u);
// Accumulator vectors of a thread: one for the columns of one row, or one per 4 rows and column.
const VECS: u32 = max(ROW_QUADS * PER, 1u);
// Offset of the partial sums. With one row, the activation row stays in shared memory across
// iterations. With several rows, the partial sums overwrite the activations.
const SHARES_AT: u32 = X_QUADS * (1u - SEVERAL_ROWS);
// The fourth float of the first partial sum stores the sum of squares.
const TOTAL_AT: u32 = SHARES_AT;

// First row of the block.
var<private> first_row: u32;

var<workgroup> memory: array<vec4<f32>, max(X_QUADS, SHARES_AT + 256u * VECS)>;

// Accumulators of rows 0 to 3 and 4 to 7, for the first and the second column of the unit.
var<private> first_low: vec4<f32>;
var<private> first_high: vec4<f32>;
var<private> second_low: vec4<f32>;
var<private> second_high: vec4<f32>;

// Number of results per row.
fn columns() -> u32 {
    return p.n / (1u + GATED);
}

// Second column of the unit whose first column is `col`.
fn beside(col: u32) -> u32 {
    if GATED == 1u {
        return col + p.n / 2u;
    }
    return min(col + 1u, p.n - 1u);
}

// Sum of the squares of the row elements that a unit loaded.
fn squares_of(unit: u32) -> f32 {
    return memory[SHARES_AT + unit * SLICES].z;
}

fn share(own: u32) {
    let at = SHARES_AT + own;
    if ROWS == 1u {
        var sums = vec4<f32>(first_low.x, second_low.x, own_squares(), 0.0);
        for (var mask = 1u; mask < ALIKE; mask *= 2u) {
            sums += shuffle_xor4(sums, mask);
        }
        memory[at] = sums;
        return;
    }
    memory[at] = first_low;
    if ROWS == 8u {
        memory[at + 256u] = first_high;
    }
    if PER == 2u {
        memory[at + ROW_QUADS * 256u] = second_low;
        if ROWS == 8u {
            memory[at + 768u] = second_high;
        }
    }
}

// Adds the partial sums of each unit, one per cluster of slices, into that of its first slice.
fn meet(own: u32, slice: u32) {
    for (var left = SLICES / ALIKE; left > 1u;) {
        workgroupBarrier();
        let part = max(left / 4u, 1u);
        if slice < part {
            for (var i = 0u; i < VECS; i += 1u) {
                let at = SHARES_AT + i * 256u + own + slice * (ALIKE - 1u);
                var sum = memory[at];
                for (var other = part; other < left; other += part) {
                    sum += memory[at + other * ALIKE];
                }
                memory[at] = sum;
            }
        }
        left = part;
    }
    workgroupBarrier();
}

fn sum_of(unit: u32, column: u32, row: u32) -> f32 {
    let at = SHARES_AT + unit * SLICES;
    if ROWS == 1u {
        return memory[at][column];
    }
    return memory[at + (column * ROW_QUADS + row / 4u) * 256u][row % 4u];
}

// Result number `within` of the workgroup, whose first result is column `first`.
fn result_of(within: u32, first: u32, row: u32) -> f32 {
    if GATED == 1u {
        return activate(settled(sum_of(within, 0u, row))) * settled(sum_of(within, 1u, row));
    }
    return finish(settled(sum_of(within / PER, within % PER, row)), first_row + row, first + within);
}

// Stores the words of the results.
fn store(first: u32, local: u32) {
    let per_row = RESULTS / lanes(Y_TYPE);
    let row = local / per_row;
    if local >= ROWS * per_row || first_row + row >= p.m {
        return;
    }
    let within = (local % per_row) * lanes(Y_TYPE);
    var word = 0u;
    var some = false;
    for (var lane = 0u; lane < lanes(Y_TYPE); lane += 1u) {
        if first + within + lane < columns() {
            word |= float_bits(result_of(within + lane, first, row), Y_TYPE) << (16u * lane);
            some = true;
        }
    }
    if some {
        y_data[word_of(y_base + (first_row + row) * columns() + first + within, Y_TYPE)] = word;
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    begin();
    var unit = local / SLICES;
    var slice = local % SLICES;
    if ACROSS == 1u {
        unit = local % UNITS;
        slice = local / UNITS;
    }
    let own = unit * SLICES + slice;
    var flat = flat_group(group, groups);
    var alike = groups.x * groups.y;
    if ROWS > 1u {
        let blocks = max((p.m + ROWS - 1u) / ROWS, 1u);
        first_row = flat % blocks * ROWS;
        flat /= blocks;
        alike /= blocks;
        if flat >= alike {
            return;
        }
    }
    let start = flat * RESULTS;
    let stride = alike * RESULTS;
    for (var batch = group.z; batch < p.batch; batch += groups.z) {
        enter_batch(batch);
        // Values of `turn`: 0 for the first columns, 1 for the first columns again after rescaling,
        // 2 for later columns. The loop starts from a 0 that is known only at run time: with a
        // constant, compilers duplicate the loop body.
        var turn = p.zero;
        for (var first = start; first < columns();) {
            first_low = vec4<f32>();
            first_high = vec4<f32>();
            second_low = vec4<f32>();
            second_high = vec4<f32>();
            accumulate(min(first + unit * OWN, (columns() - 1u) / OWN * OWN), slice, local, turn < 2u);
            // The partial sums of several rows overwrite rows of a that other threads may still
            // read.
            if ROWS > 1u {
                workgroupBarrier();
            }
            share(own);
            meet(own, slice);
            if turn < 2u && !settle(local, turn == 1u) {
                turn = 1u;
                continue;
            }
            store(first, local);
            workgroupBarrier();
            turn = 2u;
            first += stride;
        }
    }
}
