// Activation rows in shared memory, in the order of use. Slices process pieces of PIECE elements
// (QUADS vectors) in turn, SLICES pieces per step, so that adjacent threads read adjacent vectors.
// The tile contains STEPS steps of all rows. If there is space, a padding vector between rows of
// vectors avoids bank conflicts of stores.
//
// The including shader maps element i of the tile to vec2(piece, quad). The tile has EXTRA more
// vectors per piece, which the including shader computes from the other vectors.
// uses matmul/gemv_packed.wgsl or matmul/gemv_wide.wgsl: EXTRA, QUADS, add_extra, spot_of
// uses matmul/operands.wgsl: p

override UNITS: u32 = 8u;
override PER: u32 = 1u;
override STEPS: u32 = 1u;
override GATED: u32 = 0u;

const ACROSS: u32 = 0u;
const PIECE: u32 = 4u * QUADS;
const STEP_ROW: u32 = 256u / UNITS + 1u - SEVERAL_ROWS;
const STEP_QUADS: u32 = QUADS + EXTRA;
const X_QUADS: u32 = STEPS * ROWS * STEP_QUADS * STEP_ROW;

fn place(step: u32, row: u32, quad: u32, slice: u32) -> u32 {
    return ((step * ROWS + row) * STEP_QUADS + quad) * STEP_ROW + slice;
}

fn x_at(step: u32, row: u32, quad: u32, slice: u32) -> vec4<f32> {
    return memory[place(step, row, quad, slice)];
}

fn four_of(row: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(a_at(row, k), a_at(row, k + 1u), a_at(row, k + 2u), a_at(row, k + 3u));
}

// Fills the tile from piece `first` on.
fn fill(first: u32, local: u32) {
    for (var i = local * 4u; i < STEPS * SLICES * PIECE; i += 1024u) {
        let k = first * PIECE + i;
        if k >= p.k {
            break;
        }
        let spot = spot_of(i);
        for (var row = 0u; row < ROWS; row += 1u) {
            memory[place(spot.x / SLICES, row, spot.y, spot.x % SLICES)] = prepared(four_of(first_row + row, k), k);
        }
    }
}

// Makes the tile contain the pieces from `first` on. If the tile holds all k elements of the
// activation row, it is filled once and reused for all columns.
fn turn_to(first: u32, local: u32, fresh: bool) {
    if first == 0u && !fresh && ROWS == 1u && p.k <= STEPS * SLICES * PIECE {
        return;
    }
    if first > 0u {
        workgroupBarrier();
    }
    fill(first, local);
    workgroupBarrier();
    if EXTRA > 0u {
        add_extra(local);
        workgroupBarrier();
    }
}

// Dot products of 4 weights with rows 0 to 3, and 4 to 7.
fn with_low_rows(w: vec4<f32>, step: u32, quad: u32, slice: u32) -> vec4<f32> {
    return vec4<f32>(
        dot(w, x_at(step, 0u, quad, slice)),
        dot(w, x_at(step, 1u, quad, slice)),
        dot(w, x_at(step, 2u, quad, slice)),
        dot(w, x_at(step, 3u, quad, slice)),
    );
}

fn with_high_rows(w: vec4<f32>, step: u32, quad: u32, slice: u32) -> vec4<f32> {
    return vec4<f32>(
        dot(w, x_at(step, 4u, quad, slice)),
        dot(w, x_at(step, 5u, quad, slice)),
        dot(w, x_at(step, 6u, quad, slice)),
        dot(w, x_at(step, 7u, quad, slice)),
    );
}

// Adds the products of 4 weights of each column with all rows.
fn add_quad(u: vec4<f32>, v: vec4<f32>, step: u32, quad: u32, slice: u32) {
    if ROWS == 1u {
        let x = x_at(step, 0u, quad, slice);
        first_low.x += dot(u, x);
        if PER == 2u {
            second_low.x += dot(v, x);
        }
        return;
    }
    first_low += with_low_rows(u, step, quad, slice);
    if PER == 2u {
        second_low += with_low_rows(v, step, quad, slice);
    }
    if ROWS == 8u {
        first_high += with_high_rows(u, step, quad, slice);
        if PER == 2u {
            second_high += with_high_rows(v, step, quad, slice);
        }
    }
}
