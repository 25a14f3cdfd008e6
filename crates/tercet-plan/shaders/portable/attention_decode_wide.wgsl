// Split-KV decode attention with 16-byte loads, for F16 and BF16. Rows must be multiples of 16
// bytes, and head and value dimensions at most 128.
//
// Work split and results are the same as in attention_decode.wgsl. A workgroup iterates over its
// keys, 64 per step. Four threads share a key, and each reads every fourth 16-byte chunk of 8
// elements. COLS threads share a value row, 8 columns each. A thread issues all loads of a step
// together: the values before q k^T, and the keys of the next step before the scores.
// uses attention_common.wgsl: Four, add_seen, k_start, left_of, p, q_start, scale_rows, score, v_start
// uses attention_few.wgsl: COLS, ROWS, SPLIT, pick, rescales, stats, tops, tops_of, weights_of
// uses attention_halves.wgsl: halves
// uses attention_store.wgsl: y_four, y_start
// uses attention_vec8.wgsl: k, q, v
// uses prelude.wgsl: flat_group

// 16-byte chunks of a key per thread, at most 4. Four threads share a key.
override PARTS: u32 = 4u;

const SUBSETS: u32 = 256u / COLS;
// Iterations that load the values of 64 keys.
const TURNS: u32 = COLS / 4u;
// Vectors of four elements in a query.
const VECTORS: u32 = 8u * PARTS;
// Row pitch of the partial dot products by (row, key), padded against bank conflicts.
const PITCH: u32 = 64u * ROWS + 8u;

var<workgroup> queries: array<vec4<f32>, ROWS * VECTORS>;
// Partial dot products, up to 4 PITCH floats; later the partial sums of 8 columns per thread.
var<workgroup> scratch: array<f32, 2080>;
var<workgroup> totals: array<f32, 64>;

struct Eight {
    low: vec4<f32>,
    high: vec4<f32>,
}

fn eight_of(x: vec4<u32>) -> Eight {
    return Eight(halves(x.x, x.y), halves(x.z, x.w));
}

fn key_words(k_at: u32, key: i32, end: i32, part: u32) -> vec4<u32> {
    if (key >= end || part * 8u >= p.head_dim) {
        return vec4<u32>();
    }
    return k[(k_at + u32(key) * p.k_seq) / 8u + part];
}

fn value_words(v_at: u32, key: i32, end: i32, column: u32) -> vec4<u32> {
    if (key >= end || column >= p.value_dim) {
        return vec4<u32>();
    }
    return v[(v_at + u32(key) * p.v_seq + column) / 8u];
}

fn product(row: u32, part: u32, x: Eight) -> f32 {
    let at = row * VECTORS + part * 2u;
    return dot(queries[at], x.low) + dot(queries[at + 1u], x.high);
}

// Partial dot products of four rows, from row `first`, with a 16-byte chunk of a key.
fn products(first: u32, part: u32, x: Eight) -> vec4<f32> {
    var out = vec4<f32>();
    out.x = product(first, part, x);
    if (ROWS > 1u) {
        out.y = product(first + 1u, part, x);
    }
    if (ROWS > 2u) {
        out.z = product(first + 2u, part, x);
        out.w = product(first + 3u, part, x);
    }
    return out;
}

// Stores the partial sums of four rows in shared memory for the reduction.
fn leave(first: u32, local: u32, x: vec4<f32>) {
    let at = local % 4u * PITCH + first * 64u + local / 4u;
    scratch[at] = x.x;
    if (ROWS > 1u) {
        scratch[at + 64u] = x.y;
    }
    if (ROWS > 2u) {
        scratch[at + 128u] = x.z;
        scratch[at + 192u] = x.w;
    }
}

fn sum_at(pair: u32) -> f32 {
    return (scratch[pair] + scratch[PITCH + pair]) + (scratch[2u * PITCH + pair] + scratch[3u * PITCH + pair]);
}

// Accumulators of eight columns and of the softmax weights, for four rows.
struct Sums {
    low: Four,
    high: Four,
    weights: vec4<f32>,
    top: vec4<i32>,
}

fn rescaled(sums: Sums, first: u32) -> Sums {
    let now = tops_of(first);
    var out = sums;
    if (any(now != sums.top)) {
        let by = rescales(sums.top, now);
        out.weights *= by;
        out.low = scale_rows(sums.low, by);
        out.high = scale_rows(sums.high, by);
        out.top = now;
    }
    return out;
}

fn added(sums: Sums, key: u32, first: u32, x: Eight) -> Sums {
    let w = weights_of(key, first);
    return Sums(
        add_seen(sums.low, w, x.low),
        add_seen(sums.high, w, x.high),
        sums.weights + w,
        sums.top,
    );
}

// The kernel is one function: barriers separate its steps, and calls would pass all register state.
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
    let batch = flat % heads / p.kv_heads;
    let head = flat % p.kv_heads;
    let split = flat / heads % p.splits;
    let first_row = flat / (heads * p.splits) * ROWS;
    let rows = p.queries * p.group;
    let last_row = min(first_row + ROWS, rows) - 1u;

    let n = common_keys_of(batch);
    let split_start = i32(split * p.split_keys);
    let start = max(seen_by(first_row / p.group, n).x, split_start);
    let end = min(seen_by(last_row / p.group, n).y, split_start + i32(p.split_keys));
    if (SPLIT == 1u && start >= end) {
        return;
    }

    // This thread's key and chunk in q k^T, then its columns and first key in the product with the
    // values.
    let lane = local % 4u;
    let own_key = i32(local / 4u);
    let column = local % COLS * 8u;
    let subset = local / COLS;
    let k_at = k_start(batch, head);
    let v_at = v_start(batch, head);
    var k0 = key_words(k_at, start + own_key, end, lane);
    var k1 = vec4<u32>();
    var k2 = vec4<u32>();
    var k3 = vec4<u32>();
    if (PARTS > 1u) {
        k1 = key_words(k_at, start + own_key, end, lane + 4u);
    }
    if (PARTS > 2u) {
        k2 = key_words(k_at, start + own_key, end, lane + 8u);
    }
    if (PARTS > 3u) {
        k3 = key_words(k_at, start + own_key, end, lane + 12u);
    }

    for (var at = local; at < ROWS * VECTORS / 2u; at += 256u) {
        let r = at / (VECTORS / 2u);
        let part = at % (VECTORS / 2u);
        var words = vec4<u32>();
        if (first_row + r < rows && part * 8u < p.head_dim) {
            words = q[q_start(batch, head, first_row + r) / 8u + part];
        }
        queries[at * 2u] = halves(words.x, words.y);
        queries[at * 2u + 1u] = halves(words.z, words.w);
    }
    if (local < 8u) {
        atomicStore(&tops[local], UNSEEN);
    }
    workgroupBarrier();

    var low: Sums;
    var high: Sums;
    low.top = vec4<i32>(UNSEEN);
    high.top = vec4<i32>(UNSEEN);
    for (var key0 = start; key0 < end; key0 += 64) {
        let value = key0 + i32(subset);
        let turn = i32(SUBSETS);
        let v0 = value_words(v_at, value, end, column);
        var v1 = vec4<u32>();
        var v2 = vec4<u32>();
        var v3 = vec4<u32>();
        if (TURNS > 1u) {
            v1 = value_words(v_at, value + turn, end, column);
        }
        if (TURNS > 2u) {
            v2 = value_words(v_at, value + 2 * turn, end, column);
            v3 = value_words(v_at, value + 3 * turn, end, column);
        }

        // q k^T, and the loads of the keys of the next step.
        let x0 = eight_of(k0);
        let x1 = eight_of(k1);
        let x2 = eight_of(k2);
        let x3 = eight_of(k3);
        let next = key0 + 64 + own_key;
        k0 = key_words(k_at, next, end, lane);
        if (PARTS > 1u) {
            k1 = key_words(k_at, next, end, lane + 4u);
        }
        if (PARTS > 2u) {
            k2 = key_words(k_at, next, end, lane + 8u);
        }
        if (PARTS > 3u) {
            k3 = key_words(k_at, next, end, lane + 12u);
        }
        for (var first = 0u; first < ROWS; first += 4u) {
            var dots = products(first, lane, x0);
            if (PARTS > 1u) {
                dots += products(first, lane + 4u, x1);
            }
            if (PARTS > 2u) {
                dots += products(first, lane + 8u, x2);
            }
            if (PARTS > 3u) {
                dots += products(first, lane + 12u, x3);
            }
            leave(first, local, dots);
        }
        workgroupBarrier();

        // Scores and row maxima: each thread handles pairs of a row and a key.
        var own = vec2<i32>(UNSEEN);
        for (var round = 0u; round < (ROWS + 3u) / 4u; round += 1u) {
            let r = round * 4u + local / 64u;
            if (r < ROWS && first_row + r < rows) {
                let row = first_row + r;
                let key = key0 + i32(local % 64u);
                let range = seen_by(row / p.group, n);
                let seen = vec2<i32>(range.x, min(range.y, end));
                let s = score(sum_at(r * 64u + local % 64u), batch, head, row, key, seen);
                own = select(vec2<i32>(own.x, s), vec2<i32>(s, own.y), round == 0u);
                atomicMax(&tops[r], s);
            }
        }
        workgroupBarrier();

        // Softmax weights. Sums of earlier keys are rescaled to the new maximum.
        for (var round = 0u; round < (ROWS + 3u) / 4u; round += 1u) {
            let r = round * 4u + local / 64u;
            if (r < ROWS) {
                let center = center_of(atomicLoad(&tops[r]));
                weights[local % 64u * ROWS + r] = weight(select(own.y, own.x, round == 0u), center);
            }
        }
        low = rescaled(low, 0u);
        if (ROWS > 4u) {
            high = rescaled(high, 4u);
        }
        workgroupBarrier();

        // Weights times values.
        let y0 = eight_of(v0);
        low = added(low, subset, 0u, y0);
        if (ROWS > 4u) {
            high = added(high, subset, 4u, y0);
        }
        if (TURNS > 1u) {
            let y1 = eight_of(v1);
            low = added(low, subset + SUBSETS, 0u, y1);
            if (ROWS > 4u) {
                high = added(high, subset + SUBSETS, 4u, y1);
            }
        }
        if (TURNS > 2u) {
            let y2 = eight_of(v2);
            let y3 = eight_of(v3);
            low = added(low, subset + 2u * SUBSETS, 0u, y2);
            low = added(low, subset + 3u * SUBSETS, 0u, y3);
            if (ROWS > 4u) {
                high = added(high, subset + 2u * SUBSETS, 4u, y2);
                high = added(high, subset + 3u * SUBSETS, 4u, y3);
            }
        }
    }
    workgroupBarrier();

    // Reduces the key subsets row by row: first the columns of a thread, then across threads.
    for (var r = 0u; r < ROWS; r += 1u) {
        let is_high = r >= 4u;
        let a = select(pick(low.low, r), pick(high.low, r - 4u), is_high);
        let b = select(pick(low.high, r), pick(high.high, r - 4u), is_high);
        for (var c = 0u; c < 4u; c += 1u) {
            scratch[c * 256u + local] = a[c];
            scratch[(c + 4u) * 256u + local] = b[c];
        }
        if (local % COLS == 0u) {
            totals[subset] = select(low.weights[r % 4u], high.weights[r % 4u], is_high);
        }
        workgroupBarrier();
        let row = first_row + r;
        let to = local * 4u;
        let columns = min(left_of(p.value_dim, to), 4u);
        if (local < 2u * COLS && row < rows) {
            var sum = vec4<f32>();
            var total = 0.0;
            for (var s = 0u; s < SUBSETS; s += 1u) {
                let at = local % 2u * 1024u + s * COLS + local / 2u;
                sum += vec4<f32>(scratch[at], scratch[at + 256u], scratch[at + 512u], scratch[at + 768u]);
                total += totals[s];
            }
            let top = select(low.top[r % 4u], high.top[r % 4u], is_high);
            if (SPLIT == 1u) {
                let place = ((batch * p.kv_heads + head) * rows + row) * p.splits + split;
                y_four(place * p.value_dim + to, columns, sum);
                if (local == 0u) {
                    stats[place * 2u] = bitcast<u32>(top);
                    stats[place * 2u + 1u] = bitcast<u32>(total);
                }
            } else {
                y_four(y_start(batch, head, row, to), columns, normalized(sum, total, top));
            }
        }
        workgroupBarrier();
    }
}
