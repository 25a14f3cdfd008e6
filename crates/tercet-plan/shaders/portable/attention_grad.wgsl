// Gradients of attention without a score matrix, in F32 (Dao et al., "FlashAttention", 2022).
//
// The softmax weights p = exp(s - lse) and the cotangents ds = p (dy . v - delta) ds/d(q . k) of the
// products are computed again in each pass. A pass computes one result. OF selects it: dq = ds k,
// dk = ds^T q, or dv = p^T dy. attention_common.wgsl defines query rows; the sums of dk and dv run
// over all rows of a KV head, and so over its group of query heads.
//
// A workgroup computes 64 lines and up to 64 COLS columns of the result for one batch entry and KV
// head. These lines are query rows for dq, else keys. The workgroup iterates over the lines of the
// other kind that attend to them, or that they attend to, 64 per step. Thread (ty, tx) of 16 x 16
// owns the lines ty + 16 i with i < 4. For these lines, the thread computes the scores with the
// other lines 4 tx + (0 .. 4), and the result columns 4 tx + (0 .. 4) + 64 j with j < COLS.
//
// Shared memory stages 16 elements of both kinds of lines for the products, and 16 other lines for
// the sums. Masked operands must be finite, because their weight 0 is multiplied.
//
// The flat group is (tile * slices + slice) * heads + head. Under a causal mask the last tiles of
// query rows and the first tiles of keys take longest, so they start first.
// uses attention_common.wgsl: CAPPED, Four, k_start, left_of, p, q_start, score, v_start
// uses attention_grad_vec2.wgsl or attention_grad_vec4.wgsl or attention_grad_words.wgsl: dy_four
// uses attention_store.wgsl: y_four, y_start
// uses attention_vec2.wgsl or attention_vec4.wgsl or attention_words.wgsl: k_four, q_four, v_four
// uses prelude.wgsl: flat_group
// uses scalar/hyperbolic.wgsl: f_tanh

// Log-sum-exp and delta of each query, as attention_grad_known.wgsl pairs them.
@group(0) @binding(8) var<storage, read> pairs: array<vec2<f32>>;

// The result: OF_QUERIES, OF_KEYS or OF_VALUES.
override OF: u32 = 0u;
// Vectors of four result columns per thread: 1 or 2.
override COLS: u32 = 1u;

const OF_QUERIES: u32 = 0u;
const OF_VALUES: u32 = 2u;
// Lines per workgroup and per step.
const LINES: u32 = 64u;
// Row pitch of shared tiles: 4 vectors and one of padding against bank conflicts.
const PITCH: u32 = 5u;
// Length of a shared tile of the workgroup's lines or of weights; other lines follow it.
const OTHERS: u32 = LINES * PITCH;
// Other lines per staged tile of columns.
const PART: u32 = 16u / COLS;

var<workgroup> pool: array<vec4<f32>, 2u * OTHERS>;

// Position of a workgroup: the same values in all of its threads.
struct TilePlace {
    batch: u32,
    head: u32,
    rows: u32,
    keys: i32,
    // Offsets of the keys and values of the batch entry and head, in elements.
    k_at: u32,
    v_at: u32,
    // Index of the slice of result columns, and the first line of the result.
    slice: u32,
    first: u32,
    // Half-open range of the other lines.
    begin: u32,
    end: u32,
}

// Half-open range of the query rows that attend to any of the keys from `first` to `last`, before
// `keep` or `bias`; `n` is the number of keys.
fn rows_that_see(first: i32, last: i32, n: i32) -> vec2<u32> {
    if (first >= n) {
        return vec2<u32>();
    }
    let queries = i32(p.queries);
    var seen = vec2<i32>(0, queries);
    if (p.causal != 0u) {
        let shift = queries - n;
        seen = clamp(vec2<i32>(first + shift, last + i32(p.window) + shift), vec2<i32>(0), vec2<i32>(queries));
    }
    return vec2<u32>(seen) * p.group;
}

fn place_of(flat: u32) -> TilePlace {
    let heads = p.batch * p.kv_heads;
    var place: TilePlace;
    place.batch = flat % heads / p.kv_heads;
    place.head = flat % p.kv_heads;
    place.rows = p.queries * p.group;
    place.keys = common_keys_of(place.batch);
    place.k_at = k_start(place.batch, place.head);
    place.v_at = v_start(place.batch, place.head);
    place.slice = flat / heads % p.slices;
    let tile = flat / (heads * p.slices);
    if (OF == OF_QUERIES) {
        place.first = (p.tiles - 1u - tile) * LINES;
        let last = min(place.first + LINES, place.rows) - 1u;
        place.begin = u32(seen_by(place.first / p.group, place.keys).x);
        place.end = u32(seen_by(last / p.group, place.keys).y);
    } else {
        place.first = tile * LINES;
        let first = i32(place.first);
        let seen = rows_that_see(first, min(first + i32(LINES), place.keys) - 1, place.keys);
        place.begin = seen.x;
        place.end = seen.y;
    }
    return place;
}

// Loads four elements of a query row or of its dy, from element d of the row.
fn row_part(place: TilePlace, row: u32, d: u32, of_values: bool) -> vec4<f32> {
    if (row >= place.rows) {
        return vec4<f32>();
    }
    if (of_values) {
        let query_head = place.head * p.group + row % p.group;
        let at = p.dy_offset + place.batch * p.dy_batch + query_head * p.dy_head
            + row / p.group * p.dy_seq;
        return dy_four(at + d * p.dy_dim, p.dy_dim, left_of(p.value_dim, d));
    }
    let at = q_start(place.batch, place.head, row);
    return q_four(at + d * p.q_dim, p.q_dim, left_of(p.head_dim, d));
}

// Loads four elements of a key or of its value.
fn key_part(place: TilePlace, key: u32, d: u32, of_values: bool) -> vec4<f32> {
    if (key >= u32(place.keys)) {
        return vec4<f32>();
    }
    if (of_values) {
        return v_four(place.v_at + key * p.v_seq + d * p.v_dim, p.v_dim, left_of(p.value_dim, d));
    }
    return k_four(place.k_at + key * p.k_seq + d * p.k_dim, p.k_dim, left_of(p.head_dim, d));
}

fn own_part(place: TilePlace, line: u32, d: u32, of_values: bool) -> vec4<f32> {
    if (OF == OF_QUERIES) {
        return row_part(place, line, d, of_values);
    }
    return key_part(place, line, d, of_values);
}

fn other_part(place: TilePlace, line: u32, d: u32, of_values: bool) -> vec4<f32> {
    if (OF == OF_QUERIES) {
        return key_part(place, line, d, of_values);
    }
    return row_part(place, line, d, of_values);
}

// Returns sum + x0 y0 + x1 y1 + x2 y2 + x3 y3.
fn add_product(sum: vec4<f32>, x: vec4<f32>, y: Four) -> vec4<f32> {
    return (((sum + x.x * y.a) + x.y * y.b) + x.z * y.c) + x.w * y.d;
}

// Applies `add_product` to four rows of the shared pool, 16 rows apart.
fn add_products(sum: Four, at: u32, y: Four) -> Four {
    return Four(
        add_product(sum.a, pool[at], y),
        add_product(sum.b, pool[at + 16u * PITCH], y),
        add_product(sum.c, pool[at + 32u * PITCH], y),
        add_product(sum.d, pool[at + 48u * PITCH], y),
    );
}

// Products q . k, or dy . v, of the thread's four lines with the four lines from `other + 4 tx`.
fn products_of(place: TilePlace, other: u32, dim: u32, of_values: bool, local: u32) -> Four {
    let piece = local % 4u;
    let line = local / 4u;
    let own_slot = line * PITCH + piece;
    // The shared tile is permuted so that the other lines of one thread are 16 apart.
    let other_slot = OTHERS + (line % 4u * 16u + line / 4u) * PITCH + piece;
    var products = Four();
    var next_own = own_part(place, place.first + line, piece * 4u, of_values);
    var next_other = other_part(place, other + line, piece * 4u, of_values);
    for (var d = 0u; d < dim; d += 16u) {
        workgroupBarrier();
        pool[own_slot] = next_own;
        pool[other_slot] = next_other;
        workgroupBarrier();
        if (d + 16u < dim) {
            let next = d + 16u + piece * 4u;
            next_own = own_part(place, place.first + line, next, of_values);
            next_other = other_part(place, other + line, next, of_values);
        }
        for (var at = 0u; at < 4u; at += 1u) {
            let first = OTHERS + local % 16u * PITCH + at;
            let a = pool[first];
            let b = pool[first + 16u * PITCH];
            let c = pool[first + 32u * PITCH];
            let e = pool[first + 48u * PITCH];
            // Transposes four lines: one vector per element of a line.
            let lines = Four(
                vec4<f32>(a.x, b.x, c.x, e.x),
                vec4<f32>(a.y, b.y, c.y, e.y),
                vec4<f32>(a.z, b.z, c.z, e.z),
                vec4<f32>(a.w, b.w, c.w, e.w),
            );
            products = add_products(products, local / 16u * PITCH + at, lines);
        }
    }
    return products;
}

// Log-sum-exp of a query row and its delta; zeros beyond the last row.
fn statistics(place: TilePlace, row: u32) -> vec2<f32> {
    if (row >= place.rows) {
        return vec2<f32>();
    }
    let query_head = (place.batch * p.kv_heads + place.head) * p.group + row % p.group;
    return pairs[query_head * p.queries + row / p.group];
}

// The factor of a line and another one in the sum: ds, or p for values. `product` is q . k, and
// `change` is dy . v.
fn factor(place: TilePlace, product: f32, change: f32, line: u32, other: u32, known: vec2<f32>) -> f32 {
    var row = line;
    var key = other;
    if (OF != OF_QUERIES) {
        row = other;
        key = line;
    }
    if (row >= place.rows) {
        return 0.0;
    }
    let seen = seen_by(row / p.group, place.keys);
    let s = score(product, place.batch, place.head, row, i32(key), seen);
    if (s == UNSEEN || s == MINUS_INF) {
        return 0.0;
    }
    // exp(x) rounds to 0 in F32 for x < -104.
    let weight = exp(max(float_at(s) - known.x, -104.0));
    if (OF == OF_VALUES) {
        return weight;
    }
    var slope = p.scale;
    if (CAPPED == 1u) {
        let bent = f_tanh(product * p.scale / p.softcap);
        slope *= 1.0 - bent * bent;
    }
    return weight * (change - known.y) * slope;
}

// The factors of a line and the other lines `other + (0 .. 4)`.
struct Known {
    a: vec2<f32>,
    b: vec2<f32>,
    c: vec2<f32>,
    d: vec2<f32>,
}

fn factors(place: TilePlace, products: vec4<f32>, changes: vec4<f32>, line: u32, other: u32, known: Known) -> vec4<f32> {
    return vec4<f32>(
        factor(place, products.x, changes.x, line, other, known.a),
        factor(place, products.y, changes.y, line, other + 1u, known.b),
        factor(place, products.z, changes.z, line, other + 2u, known.c),
        factor(place, products.w, changes.w, line, other + 3u, known.d),
    );
}

fn four_factors(place: TilePlace, products: Four, changes: Four, line: u32, other: u32, known: Known) -> Four {
    if (OF == OF_QUERIES) {
        return Four(
            factors(place, products.a, changes.a, line, other, Known(known.a, known.a, known.a, known.a)),
            factors(place, products.b, changes.b, line + 16u, other, Known(known.b, known.b, known.b, known.b)),
            factors(place, products.c, changes.c, line + 32u, other, Known(known.c, known.c, known.c, known.c)),
            factors(place, products.d, changes.d, line + 48u, other, Known(known.d, known.d, known.d, known.d)),
        );
    }
    return Four(
        factors(place, products.a, changes.a, line, other, known),
        factors(place, products.b, changes.b, line + 16u, other, known),
        factors(place, products.c, changes.c, line + 32u, other, known),
        factors(place, products.d, changes.d, line + 48u, other, known),
    );
}

// Statistics of the query rows `row + step * (0 .. 4)`.
fn known_of(place: TilePlace, row: u32, step: u32) -> Known {
    return Known(
        statistics(place, row),
        statistics(place, row + step),
        statistics(place, row + 2u * step),
        statistics(place, row + 3u * step),
    );
}

// Loads a vector of four staged columns of each of four lines.
fn columns_at(at: u32) -> Four {
    return Four(pool[at], pool[at + 16u * COLS], pool[at + 32u * COLS], pool[at + 48u * COLS]);
}

fn put(place: TilePlace, line: u32, column: u32, x: vec4<f32>) {
    var lines = p.keys;
    var at = place.batch * p.y_batch + place.head * p.y_head + line * p.y_seq + column;
    if (OF == OF_QUERIES) {
        lines = place.rows;
        at = y_start(place.batch, place.head, line, column);
    }
    if (line < lines) {
        y_four(at, left_of(select(p.head_dim, p.value_dim, OF == OF_VALUES), column), x);
    }
}

fn put_lines(place: TilePlace, line: u32, column: u32, x: Four) {
    put(place, line, column, x.a);
    put(place, line + 16u, column, x.b);
    put(place, line + 32u, column, x.c);
    put(place, line + 48u, column, x.d);
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
    let tx = local % 16u;
    let ty = local / 16u;
    let place = place_of(flat);
    let line = place.first + ty;
    let own = ty * PITCH;
    let part_line = local / (16u * COLS);
    let part_column = place.slice * 64u * COLS + local % (16u * COLS) * 4u;
    var known = known_of(place, line, 16u);
    var sums0 = Four();
    var sums1 = Four();

    for (var other = place.begin; other < place.end; other += LINES) {
        let products = products_of(place, other, p.head_dim, false, local);
        var changes = Four();
        if (OF != OF_VALUES) {
            changes = products_of(place, other, p.value_dim, true, local);
        }
        if (OF != OF_QUERIES) {
            known = known_of(place, other + tx * 4u, 1u);
        }
        let own_factors = four_factors(place, products, changes, line, other + tx * 4u, known);
        // The sums: 16 of the factors and PART of the other lines are staged per iteration.
        var next = other_part(place, other + part_line, part_column, OF == OF_VALUES);
        for (var done = 0u; done < LINES; done += PART) {
            workgroupBarrier();
            if (done % 16u == 0u && tx / 4u == done / 16u) {
                let at = own + tx % 4u;
                pool[at] = own_factors.a;
                pool[at + 16u * PITCH] = own_factors.b;
                pool[at + 32u * PITCH] = own_factors.c;
                pool[at + 48u * PITCH] = own_factors.d;
            }
            pool[OTHERS + local] = next;
            workgroupBarrier();
            if (done + PART < LINES) {
                next = other_part(place, other + done + PART + part_line, part_column, OF == OF_VALUES);
            }
            for (var at = 0u; at < PART; at += 4u) {
                let first = own + (done % 16u + at) / 4u;
                let staged = OTHERS + at * 16u * COLS + tx;
                sums0 = add_products(sums0, first, columns_at(staged));
                if (COLS > 1u) {
                    sums1 = add_products(sums1, first, columns_at(staged + 16u));
                }
            }
        }
    }

    let column = place.slice * 64u * COLS + tx * 4u;
    put_lines(place, line, column, sums0);
    if (COLS > 1u) {
        put_lines(place, line, column + 64u, sums1);
    }
}
