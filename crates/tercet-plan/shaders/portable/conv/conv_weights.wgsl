// Weight gradient of a convolution as implicit GEMM: dw[o, (c, tap)] = sum over entries and windows
// of dy[entry, o, window] x[entry, c, window at tap]. The matmul is that of quad_tiles.wgsl. Rows
// of the matmul are the m channels of dy in a group; columns are the channels of x in a group and
// their taps. k runs over batch entries of p.k windows, zero-padded to multiples of
// 4. Each group is one matmul, split into PARTS parts of k. dy is dense and read by w_quad. y is
//    [part, group, row, column] in F32.
//
// A thread gathers the same four columns in all steps.

override PARTS: u32 = 1u;

const B_ALONG: u32 = 1u;

var<private> own_group: u32;
var<private> own_part: u32;
// Offset of x, offsets of the four columns relative to the first element of a window, and their
// taps.
var<private> own_place: u32;
var<private> own_steps: vec4<u32>;
var<private> own_d: vec4<u32>;
var<private> own_h: vec4<u32>;
var<private> own_w: vec4<u32>;
// k of the four elements of dy that this thread loads.
var<private> own_k: u32;
var<private> sum_first: u32;
var<private> sum_end: u32;

fn row_count() -> u32 {
    return p.m;
}

fn column_count() -> u32 {
    return p.channels * TAPS;
}

fn product_count() -> u32 {
    return p.groups * PARTS;
}

fn sum_length() -> u32 {
    return sum_end - sum_first;
}

fn enter_product(product: u32, column: u32) {
    own_group = product / PARTS;
    own_part = product % PARTS;
    let all = p.batch * p.k;
    let steps = (all + STEP - 1u) / STEP;
    let part = (steps + PARTS - 1u) / PARTS * STEP;
    sum_first = min(own_part * part, all);
    sum_end = min(sum_first + part, all);
    own_place = p.x_offset + own_group * p.channels * p.x_channel;
    for (var i = 0u; i < 4u; i += 1u) {
        // Column indices are clamped to the last column; sums of clamped columns are not stored.
        let at = min(column + i, column_count() - 1u);
        let tap = tap_at(at % TAPS);
        own_steps[i] = at / TAPS * p.x_channel + place_of(tap);
        own_d[i] = tap.x;
        own_h[i] = tap.y;
        own_w[i] = tap.z;
    }
}

fn first_a(row_first: u32, local: u32, i: u32) -> u32 {
    let own = own_a(local, i);
    own_k = own.y;
    return (own_group * p.m + min(row_first + own.x, p.m - 1u)) * p.windows;
}

fn first_b(col_first: u32, local: u32, i: u32) -> u32 {
    return sum_first;
}

fn next_a(first: u32, k_first: u32) -> vec4<f32> {
    let k = sum_first + k_first + own_k;
    let entry = k / p.k;
    let window = k % p.k;
    let left = max(p.windows, window) - window;
    return w_quad(entry * p.groups * p.m * p.windows + first + window, left);
}

fn next_b(first: u32, k_first: u32, k: u32) -> vec4<f32> {
    let line = first + k_first + k;
    let entry = line / p.k;
    let window = line % p.k;
    let at = window_at(window);
    let place = own_place + entry * p.x_batch + place_of(at);
    let is_window = window < p.windows;
    return vec4<f32>(
        x_at(place + own_steps.x, is_window && is_inside(at + vec3<u32>(own_d.x, own_h.x, own_w.x))),
        x_at(place + own_steps.y, is_window && is_inside(at + vec3<u32>(own_d.y, own_h.y, own_w.y))),
        x_at(place + own_steps.z, is_window && is_inside(at + vec3<u32>(own_d.z, own_h.z, own_w.z))),
        x_at(place + own_steps.w, is_window && is_inside(at + vec3<u32>(own_d.w, own_h.w, own_w.w))),
    );
}

// dy of the first step, which has `size` elements, a multiple of 4.
fn first_quad_a(first: u32, k: u32, size: u32) -> vec4<f32> {
    if k >= size {
        return vec4<f32>();
    }
    return next_a(first, 0u);
}

fn first_quad_b(first: u32, k: u32, size: u32) -> vec4<f32> {
    if k >= size {
        return vec4<f32>();
    }
    return next_b(first, 0u, k);
}

// Stores four columns of a row.
fn store_sums(row: u32, col: u32, sums: vec4<f32>) {
    let columns = column_count();
    let first = ((own_part * p.groups + own_group) * p.m + row) * columns;
    for (var i = 0u; i < 4u; i += 1u) {
        if col + i < columns {
            y_data[first + col + i] = bitcast<u32>(sums[i]);
        }
    }
}
