// Convolution as implicit GEMM: y[n, o, p] = f(sum_k w[o, k] x[n, window p, tap k] + bias[o]). The
// right operand of quad_tiles.wgsl is gathered from x while tiles are loaded. Rows of the matmul
// are the m result channels of a group, and columns are the windows of all batch entries. k runs
// over the group's input channels times taps. Each group is one matmul. With PARTS > 1 (split-K),
// each part of k is one matmul; y is then [part, channel, column] in F32 without f.
//
// A thread gathers the same four columns in all steps. 16-bit results require an even number of
// windows.

override PARTS: u32 = 1u;

const B_ALONG: u32 = 1u;

// First taps of four windows: offsets in x, and indices along the spatial axes.
struct Columns {
    place: vec4<u32>,
    d: vec4<u32>,
    h: vec4<u32>,
    w: vec4<u32>,
}

// Column indices are clamped to the last column; sums of clamped columns are not stored.
fn column_at(column: u32, group_place: u32) -> vec4<u32> {
    let j = min(column, p.batch * p.windows - 1u);
    let at = window_at(j % p.windows);
    return vec4<u32>(group_place + (j / p.windows) * p.x_batch + place_of(at), at);
}

fn columns_at(first: u32, group_place: u32) -> Columns {
    let a = column_at(first, group_place);
    let b = column_at(first + 1u, group_place);
    let c = column_at(first + 2u, group_place);
    let d = column_at(first + 3u, group_place);
    return Columns(
        vec4<u32>(a.x, b.x, c.x, d.x),
        vec4<u32>(a.y, b.y, c.y, d.y),
        vec4<u32>(a.z, b.z, c.z, d.z),
        vec4<u32>(a.w, b.w, c.w, d.w),
    );
}

// Loads the elements of four windows at one k.
fn gathered(c: Columns, k: u32) -> vec4<f32> {
    let tap = tap_at(k % TAPS);
    let step = (k / TAPS) * p.x_channel + place_of(tap);
    return vec4<f32>(
        x_at(c.place.x + step, is_inside(vec3<u32>(c.d.x, c.h.x, c.w.x) + tap)),
        x_at(c.place.y + step, is_inside(vec3<u32>(c.d.y, c.h.y, c.w.y) + tap)),
        x_at(c.place.z + step, is_inside(vec3<u32>(c.d.z, c.h.z, c.w.z) + tap)),
        x_at(c.place.w + step, is_inside(vec3<u32>(c.d.w, c.h.w, c.w.w) + tap)),
    );
}

// State of the thread: its columns, the group, and the range of k to sum.
var<private> own_columns: Columns;
var<private> own_group: u32;
var<private> own_part: u32;
var<private> sum_first: u32;
var<private> sum_end: u32;

fn row_count() -> u32 {
    return p.m;
}

fn column_count() -> u32 {
    return p.batch * p.windows;
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
    let steps = (p.k + STEP - 1u) / STEP;
    let part = (steps + PARTS - 1u) / PARTS * STEP;
    sum_first = min(own_part * part, p.k);
    sum_end = min(sum_first + part, p.k);
    own_columns = columns_at(column, p.x_offset + own_group * p.channels * p.x_channel);
}

fn first_a(row_first: u32, local: u32, i: u32) -> u32 {
    let own = own_a(local, i);
    return (own_group * p.m + min(row_first + own.x, p.m - 1u)) * p.k + sum_first + own.y;
}

fn first_b(col_first: u32, local: u32, i: u32) -> u32 {
    return sum_first;
}

fn next_a(first: u32, k_first: u32) -> vec4<f32> {
    return w_quad(first + k_first, 4u);
}

fn next_b(first: u32, k_first: u32, k: u32) -> vec4<f32> {
    return gathered(own_columns, first + k_first + k);
}

// Weights of the first step, which has `size` elements.
fn first_quad_a(first: u32, k: u32, size: u32) -> vec4<f32> {
    return w_quad(first, max(size, k) - k);
}

fn first_quad_b(first: u32, k: u32, size: u32) -> vec4<f32> {
    if k >= size {
        return vec4<f32>();
    }
    return next_b(first, 0u, k);
}

// Stores four windows of a channel.
fn store_sums(row: u32, col: u32, sums: vec4<f32>) {
    let channel = own_group * p.m + row;
    let columns = column_count();
    // Results per batch entry, and the stride between batch entries.
    var line = p.windows;
    var apart = p.groups * p.m * p.windows;
    var first = channel * p.windows;
    if PARTS > 1u {
        line = columns;
        first = (own_part * p.groups * p.m + channel) * columns;
    }
    var window = col % line;
    first += col / line * apart;
    var word = 0u;
    for (var i = 0u; i < 4u; i += 1u) {
        if col + i >= columns {
            break;
        }
        let at = first + window;
        let lane = lane_of(at, Y_TYPE);
        word |= float_bits(finish(sums[i], 0u, channel), Y_TYPE) << (16u * lane);
        if lane + 1u == lanes(Y_TYPE) {
            y_data[word_of(at, Y_TYPE)] = word;
            word = 0u;
        }
        window += 1u;
        if window == line {
            window = 0u;
            first += apart;
        }
    }
}
