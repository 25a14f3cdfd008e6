// Row tiles of attention, shared by the kernels for many queries. The including kernel declares
// `pool`, `gathered`, ROWS (rows per thread), MEET (row pitch of `gathered`) and ACROSS (threads of
// a row).
// uses attention.wgsl or attention_large.wgsl: ACROSS, PITCH, ROWS, gathered, pool
// uses attention_common.wgsl: CAPPED, Four, k_start, left_of, p, q_start, score, v_start
// uses attention_store.wgsl: y_four, y_start
// uses attention_vec2.wgsl or attention_vec4.wgsl or attention_words.wgsl: k_four, q_four, v_four
// uses prelude.wgsl: as_float, order
// uses scalar/hyperbolic.wgsl: f_tanh

// Limit by which a score may exceed its row's center before the center changes. SLACK bounds the
// softmax weights by exp(8), which is below 3000.
const SLACK: f32 = 8.0;
// Score of a masked pair of query and key. This kernel stores scores as the bits of F32 numbers.
const HIDDEN: u32 = 0xffffffffu;
// Last step, counted from 1, that contains a score more than SLACK above its center.
var<workgroup> far: atomic<u32>;
// Last tile of values, counted from 1, that contains a non-finite value.
var<workgroup> special: atomic<u32>;

// Position of a workgroup: the same values in all of its threads.
struct Place {
    batch: u32,
    head: u32,
    first_row: u32,
    rows: u32,
    keys: i32,
    // Offsets of the keys and values of the batch entry and head, in elements.
    k_at: u32,
    v_at: u32,
    // Index of the slice of value columns.
    slice: u32,
    // Half-open range of the keys that at least one row attends to.
    begin: i32,
    end: i32,
    // Half-open range of the keys that all rows attend to.
    seen: vec2<i32>,
}

// Position of the workgroup with a flat index, in the order that attention.wgsl defines.
fn place_of(flat: u32) -> Place {
    let heads = p.batch * p.kv_heads;
    var place: Place;
    place.batch = flat % heads / p.kv_heads;
    place.head = flat % p.kv_heads;
    place.first_row = (p.tiles - 1u - flat / (heads * p.slices)) * 16u * ROWS;
    place.rows = p.queries * p.group;
    place.keys = common_keys_of(place.batch);
    place.k_at = k_start(place.batch, place.head);
    place.v_at = v_start(place.batch, place.head);
    place.slice = flat / heads % p.slices;
    let last_row = min(place.first_row + 16u * ROWS, place.rows) - 1u;
    let first = seen_by(place.first_row / p.group, place.keys);
    let last = seen_by(last_row / p.group, place.keys);
    place.begin = first.x;
    place.end = last.y;
    place.seen = vec2<i32>(last.x, first.y);
    return place;
}

// Returns sum + x0 y0 + x1 y1 + x2 y2 + x3 y3.
fn add_product(sum: vec4<f32>, x: vec4<f32>, y: Four) -> vec4<f32> {
    return (((sum + x.x * y.a) + x.y * y.b) + x.z * y.c) + x.w * y.d;
}

// Applies `add_product` to four rows of the shared pool, 16 rows apart.
fn add_products(sum: Four, at: u32, y: Four) -> Four {
    var out = sum;
    out.a = add_product(sum.a, pool[at], y);
    if (ROWS > 1u) {
        out.b = add_product(sum.b, pool[at + 16u * PITCH], y);
    }
    if (ROWS > 2u) {
        out.c = add_product(sum.c, pool[at + 32u * PITCH], y);
        out.d = add_product(sum.d, pool[at + 48u * PITCH], y);
    }
    return out;
}

// Like `add_product`, but skips values that the row does not attend to, because they may be NaN.
fn add_seen_product(sum: vec4<f32>, x: vec4<f32>, y: Four) -> vec4<f32> {
    let seen = bitcast<vec4<u32>>(x) != vec4<u32>(0x80000000u);
    var out = select(sum, sum + x.x * y.a, seen.x);
    out = select(out, out + x.y * y.b, seen.y);
    out = select(out, out + x.z * y.c, seen.z);
    return select(out, out + x.w * y.d, seen.w);
}

fn add_seen_products(sum: Four, at: u32, y: Four) -> Four {
    var out = sum;
    out.a = add_seen_product(sum.a, pool[at], y);
    if (ROWS > 1u) {
        out.b = add_seen_product(sum.b, pool[at + 16u * PITCH], y);
    }
    if (ROWS > 2u) {
        out.c = add_seen_product(sum.c, pool[at + 32u * PITCH], y);
        out.d = add_seen_product(sum.d, pool[at + 48u * PITCH], y);
    }
    return out;
}

fn add_values(sum: Four, at: u32, y: Four, is_special: bool) -> Four {
    if (is_special) {
        return add_seen_products(sum, at, y);
    }
    return add_products(sum, at, y);
}

// Loads four elements of a query from element d of the head dimension.
fn query_part(place: Place, row: u32, d: u32) -> vec4<f32> {
    if (row >= place.rows) {
        return vec4<f32>();
    }
    let at = q_start(place.batch, place.head, row) + d * p.q_dim;
    return q_four(at, p.q_dim, left_of(p.head_dim, d));
}

fn key_part(place: Place, key: i32, d: u32) -> vec4<f32> {
    if (key >= place.end) {
        return vec4<f32>();
    }
    return k_four(place.k_at + u32(key) * p.k_seq + d * p.k_dim, p.k_dim, left_of(p.head_dim, d));
}

// Loads four columns of a value, starting at `column`.
fn value_part(place: Place, key: i32, column: u32) -> vec4<f32> {
    if (key >= place.end) {
        return vec4<f32>();
    }
    let at = place.v_at + u32(key) * p.v_seq + column * p.v_dim;
    return v_four(at, p.v_dim, left_of(p.value_dim, column));
}

fn is_finite(x: vec4<f32>) -> bool {
    return all((bitcast<vec4<u32>>(x) & vec4<u32>(0x7f800000u)) != vec4<u32>(0x7f800000u));
}

fn bits_at(key: i32) -> u32 {
    return select(bitcast<u32>(float_at(key)), HIDDEN, key == UNSEEN);
}

// Scores of a row and four keys. If not `guarded`, all pairs are visible and the mask is skipped.
fn scores_of(products: vec4<f32>, place: Place, row: u32, key: i32, guarded: bool) -> vec4<u32> {
    if (guarded) {
        if (row >= place.rows) {
            return vec4<u32>(HIDDEN);
        }
        let seen = seen_by(row / p.group, place.keys);
        return vec4<u32>(
            bits_at(score(products.x, place.batch, place.head, row, key, seen)),
            bits_at(score(products.y, place.batch, place.head, row, key + 1, seen)),
            bits_at(score(products.z, place.batch, place.head, row, key + 2, seen)),
            bits_at(score(products.w, place.batch, place.head, row, key + 3, seen)),
        );
    }
    var s = products * p.scale;
    if (CAPPED == 1u) {
        s = p.softcap * vec4<f32>(
            f_tanh(s.x / p.softcap),
            f_tanh(s.y / p.softcap),
            f_tanh(s.z / p.softcap),
            f_tanh(s.w / p.softcap),
        );
    }
    return bitcast<vec4<u32>>(s);
}

// The scores of four rows.
struct Scores {
    a: vec4<u32>,
    b: vec4<u32>,
    c: vec4<u32>,
    d: vec4<u32>,
}

fn four_scores(products: Four, place: Place, row: u32, key: i32, guarded: bool) -> Scores {
    var out = Scores(vec4<u32>(HIDDEN), vec4<u32>(HIDDEN), vec4<u32>(HIDDEN), vec4<u32>(HIDDEN));
    out.a = scores_of(products.a, place, row, key, guarded);
    if (ROWS > 1u) {
        out.b = scores_of(products.b, place, row + 16u, key, guarded);
    }
    if (ROWS > 2u) {
        out.c = scores_of(products.c, place, row + 32u, key, guarded);
        out.d = scores_of(products.d, place, row + 48u, key, guarded);
    }
    return out;
}

// Maximum of four scores as an ordered integer, with every NaN above infinity.
fn greatest(x: vec4<u32>, guarded: bool) -> i32 {
    if (guarded) {
        let keys = select(keys_in_order(bitcast<vec4<f32>>(x)), vec4<i32>(UNSEEN), x == vec4<u32>(HIDDEN));
        return max(max(keys.x, keys.y), max(keys.z, keys.w));
    }
    let s = bitcast<vec4<f32>>(x);
    let sizes = x & vec4<u32>(0x7fffffffu);
    let size = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    return select(order(max(max(s.x, s.y), max(s.z, s.w))), 0x7fc00000, size > 0x7f800000u);
}

fn greatest_of(s: Scores, guarded: bool) -> vec4<i32> {
    var out = vec4<i32>(UNSEEN);
    out.x = greatest(s.a, guarded);
    if (ROWS > 1u) {
        out.y = greatest(s.b, guarded);
    }
    if (ROWS > 2u) {
        out.z = greatest(s.c, guarded);
        out.w = greatest(s.d, guarded);
    }
    return out;
}

// Upper limit for the scores of a row. If a score exceeds this limit, the row's center must be
// updated.
fn limit_of(top: i32) -> i32 {
    let is_finite = top > MINUS_INF && top < PLUS_INF;
    return select(top, order(float_at(top) + SLACK), is_finite);
}

fn limits_of(top: vec4<i32>) -> vec4<i32> {
    return vec4<i32>(limit_of(top.x), limit_of(top.y), limit_of(top.z), limit_of(top.w));
}

// Maximum of the integers that the threads of a row stored in `gathered`.
fn meet(first: u32) -> vec4<i32> {
    var out = gathered[first];
    for (var t = 1u; t < ACROSS; t += 1u) {
        out = max(out, gathered[first + t]);
    }
    return out;
}

// Sum of the floats that the threads of a row stored in `gathered`.
fn total(first: u32) -> vec4<f32> {
    var out = vec4<f32>();
    for (var t = 0u; t < ACROSS; t += 1u) {
        out += bitcast<vec4<f32>>(gathered[first + t]);
    }
    return out;
}

fn centers(top: vec4<i32>) -> vec4<f32> {
    return vec4<f32>(center_of(top.x), center_of(top.y), center_of(top.z), center_of(top.w));
}

fn rescales(before: vec4<i32>, center: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(
        rescale(before.x, center.x),
        rescale(before.y, center.y),
        rescale(before.z, center.z),
        rescale(before.w, center.w),
    );
}

// Softmax weights of four keys. exp(x) rounds to 0 in F32 for x < -104.
fn weights_of(s: vec4<u32>, center: f32, guarded: bool) -> vec4<f32> {
    let w = exp(max(bitcast<vec4<f32>>(s) - center, vec4<f32>(-104.0)));
    if (guarded) {
        return select(w, vec4<f32>(as_float(0x80000000u)), s == vec4<u32>(HIDDEN));
    }
    return w;
}

fn four_weights(s: Scores, center: vec4<f32>, guarded: bool) -> Four {
    var out = Four();
    out.a = weights_of(s.a, center.x, guarded);
    if (ROWS > 1u) {
        out.b = weights_of(s.b, center.y, guarded);
    }
    if (ROWS > 2u) {
        out.c = weights_of(s.c, center.z, guarded);
        out.d = weights_of(s.d, center.w, guarded);
    }
    return out;
}

fn sum_of(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}

fn sums_of(x: Four) -> vec4<f32> {
    return vec4<f32>(sum_of(x.a), sum_of(x.b), sum_of(x.c), sum_of(x.d));
}

// Stores the weights of four rows in shared memory.
fn leave(at: u32, x: Four) {
    pool[at] = x.a;
    if (ROWS > 1u) {
        pool[at + 16u * PITCH] = x.b;
    }
    if (ROWS > 2u) {
        pool[at + 32u * PITCH] = x.c;
        pool[at + 48u * PITCH] = x.d;
    }
}

fn put(place: Place, row: u32, column: u32, sum: vec4<f32>, weights: f32, top: i32) {
    if (row < place.rows) {
        let at = y_start(place.batch, place.head, row, column);
        y_four(at, left_of(p.value_dim, column), normalized(sum, weights, top));
    }
}

fn put_rows(place: Place, row: u32, column: u32, sum: Four, weights: vec4<f32>, top: vec4<i32>) {
    put(place, row, column, sum.a, weights.x, top.x);
    if (ROWS > 1u) {
        put(place, row + 16u, column, sum.b, weights.y, top.y);
    }
    if (ROWS > 2u) {
        put(place, row + 32u, column, sum.c, weights.z, top.z);
        put(place, row + 48u, column, sum.d, weights.w, top.w);
    }
}
