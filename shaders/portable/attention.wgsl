// y = softmax(mask(cap(scale q k^T))) v for many queries, without ever holding the scores (Dao et al.,
// "FlashAttention", 2022).
//
// A workgroup takes 16 ROWS rows of one batch entry and key head (rows: see attention_common.wgsl) and
// up to 64 COLS columns of the values, and walks the keys that any of its rows sees, 64 at a time.
// Invocation (ty, tx) of 16 x 16 holds, of the rows ty + 16 i with i < ROWS, the scores of the keys
// 4 tx + (0 .. 4) and the columns 4 tx + (0 .. 4) + 64 j, j < COLS, of the result.
//
// Products take 16 elements of the head dim at a time through shared memory, weighted values 16 keys of
// the weights and as many of the values as the invocations bring at once. What comes next is loaded
// while one computes. In between, the greatest scores of a row meet, and what was summed is rescaled
// where they grew.
//
// The flat group is (tile * slices + slice) * heads + head, the last tiles first: under a causal mask
// they take longest.

// Rows of an invocation: 1, 2, 4, or 8 with at most 2 COLS.
override ROWS: u32 = 4u;
// Vectors of columns of an invocation: 1, 2 or 4.
override COLS: u32 = 4u;

// Keys of a step.
const KEYS: u32 = 64u;
// Row pitch of shared tiles: 4 vectors and one that keeps invocations off each other's banks.
const PITCH: u32 = 5u;
// Queries or weights, then keys or values.
const LINES: u32 = 16u * ROWS * PITCH;
const POOL: u32 = LINES + KEYS * PITCH;
// Keys of the values that the invocations bring at once.
const PART: u32 = 16u / COLS;
// The pitch of the numbers of rows by (ty, tx), and those of four rows.
const MEET: u32 = 17u;
const FOURS: u32 = 16u * MEET;

var<workgroup> pool: array<vec4<f32>, POOL>;
var<workgroup> gathered: array<vec4<i32>, FOURS * ((ROWS + 3u) / 4u)>;
// The last part of values, from 1 on, with one that is not finite.
var<workgroup> special: atomic<u32>;

// Where the workgroup is: all numbers are the same for its invocations.
struct Place {
    batch: u32,
    head: u32,
    first_row: u32,
    rows: u32,
    keys: i32,
    // The first elements.
    k_at: u32,
    v_at: u32,
    // The key after the last that is seen.
    end: i32,
}

// x0 y0 + x1 y1 + x2 y2 + x3 y3 more.
fn add_product(sum: vec4<f32>, x: vec4<f32>, y: Four) -> vec4<f32> {
    return (((sum + x.x * y.a) + x.y * y.b) + x.z * y.c) + x.w * y.d;
}

// For four rows of the pool, 16 apart.
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

// Takes nothing of a value that the row does not see, which may be NaN.
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

// Four elements of the head dim of a query, from element d on.
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

// Four columns of a value, from `column` on.
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

// The scores of a row and four keys; every pair is seen unless `guarded`.
fn scores_of(products: vec4<f32>, place: Place, row: u32, key: i32, guarded: bool) -> vec4<i32> {
    if (guarded) {
        if (row >= place.rows) {
            return vec4<i32>(UNSEEN);
        }
        let seen = seen_by(row / p.group, place.keys);
        return vec4<i32>(
            score(products.x, place.batch, place.head, row, key, seen),
            score(products.y, place.batch, place.head, row, key + 1, seen),
            score(products.z, place.batch, place.head, row, key + 2, seen),
            score(products.w, place.batch, place.head, row, key + 3, seen),
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
    return keys_in_order(s);
}

// Scores of four rows.
struct Scores {
    a: vec4<i32>,
    b: vec4<i32>,
    c: vec4<i32>,
    d: vec4<i32>,
}

fn four_scores(products: Four, place: Place, row: u32, key: i32, guarded: bool) -> Scores {
    var out = Scores(vec4<i32>(UNSEEN), vec4<i32>(UNSEEN), vec4<i32>(UNSEEN), vec4<i32>(UNSEEN));
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

fn greatest(x: vec4<i32>) -> i32 {
    return max(max(x.x, x.y), max(x.z, x.w));
}

fn greatest_of(s: Scores) -> vec4<i32> {
    return vec4<i32>(greatest(s.a), greatest(s.b), greatest(s.c), greatest(s.d));
}

// The greatest numbers that the invocations of a row left.
fn meet(first: u32) -> vec4<i32> {
    var out = gathered[first];
    for (var t = 1u; t < 16u; t += 1u) {
        out = max(out, gathered[first + t]);
    }
    return out;
}

// The sums of the floats that the invocations of a row left.
fn total(first: u32) -> vec4<f32> {
    var out = vec4<f32>();
    for (var t = 0u; t < 16u; t += 1u) {
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

// The weights of four keys.
fn weights_of(s: vec4<i32>, center: f32) -> vec4<f32> {
    return vec4<f32>(
        weight(s.x, center),
        weight(s.y, center),
        weight(s.z, center),
        weight(s.w, center),
    );
}

fn four_weights(s: Scores, center: vec4<f32>) -> Four {
    var out = Four();
    out.a = weights_of(s.a, center.x);
    if (ROWS > 1u) {
        out.b = weights_of(s.b, center.y);
    }
    if (ROWS > 2u) {
        out.c = weights_of(s.c, center.z);
        out.d = weights_of(s.d, center.w);
    }
    return out;
}

fn sum_of(x: vec4<f32>) -> f32 {
    return (x.x + x.y) + (x.z + x.w);
}

fn sums_of(x: Four) -> vec4<f32> {
    return vec4<f32>(sum_of(x.a), sum_of(x.b), sum_of(x.c), sum_of(x.d));
}

// Writes four rows of weights.
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

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let flat = flat_group(group, count);
    if (flat >= p.groups) {
        return;
    }
    let heads = p.batch * p.kv_heads;
    let slice = flat / heads % p.slices;
    let tx = local % 16u;
    let ty = local / 16u;
    var place: Place;
    place.batch = flat % heads / p.kv_heads;
    place.head = flat % p.kv_heads;
    place.first_row = (p.tiles - 1u - flat / (heads * p.slices)) * 16u * ROWS;
    place.rows = p.queries * p.group;
    place.keys = keys_of(place.batch);
    place.k_at = k_start(place.batch, place.head);
    place.v_at = v_start(place.batch, place.head);

    // The keys that some row of the tile sees, and those that all see.
    let last_row = min(place.first_row + 16u * ROWS, place.rows) - 1u;
    let first_seen = seen_by(place.first_row / p.group, place.keys);
    let last_seen = seen_by(last_row / p.group, place.keys);
    place.end = last_seen.y;

    // The pieces of queries and keys that this invocation brings; keys lie where those that one
    // invocation multiplies are 16 apart.
    let piece = local % 4u;
    let line = local / 4u;
    let q_row = place.first_row + line;
    let q_slot = line * PITCH + piece;
    let k_slot = LINES + (line % 4u * 16u + line / 4u) * PITCH + piece;
    let v_line = local / (16u * COLS);
    let v_column = slice * 64u * COLS + local % (16u * COLS) * 4u;
    let own = ty * PITCH;
    let row = place.first_row + ty;
    let meeting = ty * MEET;

    var low_top = vec4<i32>(UNSEEN);
    var high_top = vec4<i32>(UNSEEN);
    var low_weights = vec4<f32>();
    var high_weights = vec4<f32>();
    var low0 = Four();
    var low1 = Four();
    var low2 = Four();
    var low3 = Four();
    var high0 = Four();
    var high1 = Four();
    // The part of the values.
    var part = 0u;
    if (local == 0u) {
        atomicStore(&special, 0u);
    }

    for (var key0 = first_seen.x; key0 < place.end; key0 += i32(KEYS)) {
        // The products, 16 elements of the head dim at a time.
        var low = Four();
        var high = Four();
        var next_k = key_part(place, key0 + i32(line), piece * 4u);
        var next_q = vec4<f32>();
        var next_q2 = vec4<f32>();
        if (line < 16u * ROWS) {
            next_q = query_part(place, q_row, piece * 4u);
        }
        if (ROWS > 4u) {
            next_q2 = query_part(place, q_row + 64u, piece * 4u);
        }
        for (var d = 0u; d < p.head_dim; d += 16u) {
            workgroupBarrier();
            pool[k_slot] = next_k;
            if (line < 16u * ROWS) {
                pool[q_slot] = next_q;
            }
            if (ROWS > 4u) {
                pool[q_slot + 64u * PITCH] = next_q2;
            }
            workgroupBarrier();
            let next = d + 16u + piece * 4u;
            if (d + 16u < p.head_dim) {
                next_k = key_part(place, key0 + i32(line), next);
                if (line < 16u * ROWS) {
                    next_q = query_part(place, q_row, next);
                }
                if (ROWS > 4u) {
                    next_q2 = query_part(place, q_row + 64u, next);
                }
            }
            for (var at = 0u; at < 4u; at += 1u) {
                let first = LINES + tx * PITCH + at;
                let a = pool[first];
                let b = pool[first + 16u * PITCH];
                let c = pool[first + 32u * PITCH];
                let e = pool[first + 48u * PITCH];
                // By element of the head dim.
                let keys = Four(
                    vec4<f32>(a.x, b.x, c.x, e.x),
                    vec4<f32>(a.y, b.y, c.y, e.y),
                    vec4<f32>(a.z, b.z, c.z, e.z),
                    vec4<f32>(a.w, b.w, c.w, e.w),
                );
                low = add_products(low, own + at, keys);
                if (ROWS > 4u) {
                    high = add_products(high, own + 64u * PITCH + at, keys);
                }
            }
        }

        // The scores and the new maxima. The values come meanwhile.
        var next_v = value_part(place, key0 + i32(v_line), v_column);
        let on_edge = key0 < last_seen.x || key0 + i32(KEYS) > first_seen.y;
        let guarded = MASK != 0u || on_edge;
        let key = key0 + i32(tx) * 4;
        let low_scores = four_scores(low, place, row, key, guarded);
        gathered[meeting + tx] = greatest_of(low_scores);
        var high_scores: Scores;
        if (ROWS > 4u) {
            high_scores = four_scores(high, place, row + 64u, key, guarded);
            gathered[FOURS + meeting + tx] = greatest_of(high_scores);
        }
        workgroupBarrier();

        // The weights; what was summed under another maximum is rescaled.
        let low_now = max(low_top, meet(meeting));
        let low_centers = centers(low_now);
        let low_part = four_weights(low_scores, low_centers);
        if (any(low_now != low_top)) {
            let by = rescales(low_top, low_centers);
            low_weights *= by;
            low0 = scale_rows(low0, by);
            if (COLS > 1u) {
                low1 = scale_rows(low1, by);
            }
            if (COLS > 2u) {
                low2 = scale_rows(low2, by);
                low3 = scale_rows(low3, by);
            }
        }
        low_top = low_now;
        low_weights += sums_of(low_part);
        var high_part: Four;
        if (ROWS > 4u) {
            let high_now = max(high_top, meet(FOURS + meeting));
            let high_centers = centers(high_now);
            high_part = four_weights(high_scores, high_centers);
            if (any(high_now != high_top)) {
                let by = rescales(high_top, high_centers);
                high_weights *= by;
                high0 = scale_rows(high0, by);
                if (COLS > 1u) {
                    high1 = scale_rows(high1, by);
                }
            }
            high_top = high_now;
            high_weights += sums_of(high_part);
        }

        // The weighted values: weights of 16 keys at a time, values of PART.
        for (var done = 0u; done < KEYS; done += PART) {
            part += 1u;
            workgroupBarrier();
            if (done % 16u == 0u && tx / 4u == done / 16u) {
                leave(own + tx % 4u, low_part);
                if (ROWS > 4u) {
                    leave(own + 64u * PITCH + tx % 4u, high_part);
                }
            }
            pool[LINES + local] = next_v;
            if (guarded && !is_finite(next_v)) {
                atomicMax(&special, part);
            }
            workgroupBarrier();
            if (done + PART < KEYS) {
                next_v = value_part(place, key0 + i32(done + PART + v_line), v_column);
            }
            let is_special = guarded && atomicLoad(&special) == part;
            for (var at = 0u; at < PART; at += 4u) {
                let first = own + (done % 16u + at) / 4u;
                let line0 = LINES + at * 16u * COLS + tx;
                for (var j = 0u; j < COLS; j += 1u) {
                    let at_value = line0 + j * 16u;
                    let values = Four(
                        pool[at_value],
                        pool[at_value + 16u * COLS],
                        pool[at_value + 32u * COLS],
                        pool[at_value + 48u * COLS],
                    );
                    if (j == 0u) {
                        low0 = add_values(low0, first, values, is_special);
                        if (ROWS > 4u) {
                            high0 = add_values(high0, first + 64u * PITCH, values, is_special);
                        }
                    }
                    if (j == 1u) {
                        low1 = add_values(low1, first, values, is_special);
                        if (ROWS > 4u) {
                            high1 = add_values(high1, first + 64u * PITCH, values, is_special);
                        }
                    }
                    if (j == 2u) {
                        low2 = add_values(low2, first, values, is_special);
                    }
                    if (j == 3u) {
                        low3 = add_values(low3, first, values, is_special);
                    }
                }
            }
        }
    }

    // The weights that the invocations of a row counted, together.
    workgroupBarrier();
    gathered[meeting + tx] = bitcast<vec4<i32>>(low_weights);
    if (ROWS > 4u) {
        gathered[FOURS + meeting + tx] = bitcast<vec4<i32>>(high_weights);
    }
    workgroupBarrier();
    low_weights = total(meeting);
    let column = slice * 64u * COLS + tx * 4u;
    put_rows(place, row, column, low0, low_weights, low_top);
    if (COLS > 1u) {
        put_rows(place, row, column + 64u, low1, low_weights, low_top);
    }
    if (COLS > 2u) {
        put_rows(place, row, column + 128u, low2, low_weights, low_top);
        put_rows(place, row, column + 192u, low3, low_weights, low_top);
    }
    if (ROWS > 4u) {
        high_weights = total(FOURS + meeting);
        put_rows(place, row + 64u, column, high0, high_weights, high_top);
        if (COLS > 1u) {
            put_rows(place, row + 64u, column + 64u, high1, high_weights, high_top);
        }
    }
}
