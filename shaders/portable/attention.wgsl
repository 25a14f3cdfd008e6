// y = softmax(mask(cap(scale q k^T))) v for many queries, without ever holding the scores.
//
// A workgroup takes 16 ROWS rows of one batch entry and key head (rows: see attention_common.wgsl) and
// up to 64 COLS columns of the values, and walks the keys that any of its rows sees, 32 at a time:
// products over 32 elements of the head dim at a time through shared memory, the running maximum of
// each row, the weights, and the weighted values, rescaled whenever the maximum grows (Dao et al.,
// "FlashAttention", 2022). Invocation (ty, tx) of 16 x 16 holds rows ty ROWS + (0 .. ROWS), keys tx and
// tx + 16 of the scores, and columns 4 tx + (0 .. 4) + 64 j, j < COLS, of the result.
//
// The flat group is (tile * slices + slice) * heads + head, the last tiles first: under a causal mask
// they take longest.

// Rows of an invocation: 1, 2 or 4.
override ROWS: u32 = 4u;
// Vectors of columns of an invocation: 1, 2 or 4.
override COLS: u32 = 4u;

// Row pitch of queries and keys: 8 vectors and one that keeps invocations off each other's banks.
const PITCH: u32 = 9u;
// Weights of four rows by (ty, key), at the start of the pool while no queries and keys are in it.
const WEIGHTS: u32 = 33u;
const VALUES: u32 = 528u;

var<workgroup> pool: array<vec4<f32>, 864>;
var<workgroup> tops: array<atomic<i32>, 64>;

// Four elements of the head dim of a query.
fn query_part(is_row: bool, start: u32, d: u32) -> vec4<f32> {
    if (!is_row) {
        return vec4<f32>();
    }
    return q_four(start + d * p.q_dim, p.q_dim, left_of(p.head_dim, d));
}

// The products of one query with two keys.
fn two_dots(row: u32, first: vec4<f32>, second: vec4<f32>, at: u32) -> vec2<f32> {
    let x = pool[row * PITCH + at];
    return vec2<f32>(dot(x, first), dot(x, second));
}

fn add_value(sum: Four, weights: vec4<f32>, value: vec4<f32>, guarded: bool) -> Four {
    if (guarded) {
        return add_seen(sum, weights, value);
    }
    var out = sum;
    out.a += weights.x * value;
    if (ROWS > 1u) {
        out.b += weights.y * value;
    }
    if (ROWS > 2u) {
        out.c += weights.z * value;
        out.d += weights.w * value;
    }
    return out;
}

// The maximum that a row has now.
fn top_of(row: u32) -> i32 {
    return atomicLoad(&tops[row]);
}

fn put(batch: u32, head: u32, row: u32, column: u32, sum: vec4<f32>, weights: f32, top: i32) {
    if (row < p.queries * p.group) {
        let count = left_of(p.value_dim, column);
        y_four(y_start(batch, head, row, column), count, normalized(sum, weights, top));
    }
}

fn put_rows(batch: u32, head: u32, row: u32, column: u32, sum: Four, weights: vec4<f32>, top: vec4<i32>) {
    put(batch, head, row, column, sum.a, weights.x, top.x);
    if (ROWS > 1u) {
        put(batch, head, row + 1u, column, sum.b, weights.y, top.y);
    }
    if (ROWS > 2u) {
        put(batch, head, row + 2u, column, sum.c, weights.z, top.z);
        put(batch, head, row + 3u, column, sum.d, weights.w, top.w);
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
    let batch = flat % heads / p.kv_heads;
    let head = flat % p.kv_heads;
    let slice = flat / heads % p.slices;
    let tile = p.tiles - 1u - flat / (heads * p.slices);
    let first_row = tile * 16u * ROWS;
    let rows = p.queries * p.group;
    let last_row = min(first_row + 16u * ROWS, rows) - 1u;
    let tx = local % 16u;
    let ty = local / 16u;
    let row = first_row + ty * ROWS;

    // The pieces of queries and keys that this invocation brings.
    let q_part = local % 8u * 4u;
    let part_row = local / 8u;
    let has_first = first_row + part_row < rows;
    let has_second = first_row + part_row + 32u < rows;
    let first_at = q_start(batch, head, first_row + part_row);
    let second_at = q_start(batch, head, first_row + part_row + 32u);

    // The keys that some row of the tile sees, and those that all see.
    let n = keys_of(batch);
    let first_seen = seen_by(first_row / p.group, n);
    let last_seen = seen_by(last_row / p.group, n);
    let k_at = k_start(batch, head);
    let v_at = v_start(batch, head);

    let seen_a = seen_by(row / p.group, n);
    let seen_b = seen_by((row + 1u) / p.group, n);
    let seen_c = seen_by((row + 2u) / p.group, n);
    let seen_d = seen_by((row + 3u) / p.group, n);
    var top = vec4<i32>(UNSEEN);
    var sums = vec4<f32>();
    var sum0 = Four();
    var sum1 = Four();
    var sum2 = Four();
    var sum3 = Four();
    if (local < 64u) {
        atomicStore(&tops[local], UNSEEN);
    }
    workgroupBarrier();

    for (var key0 = first_seen.x; key0 < last_seen.y; key0 += 32) {
        // The products, 32 elements of the head dim at a time.
        var dots0 = vec4<f32>();
        var dots1 = vec4<f32>();
        for (var d = 0u; d < p.head_dim; d += 32u) {
            if (part_row < 16u * ROWS) {
                pool[part_row * PITCH + local % 8u] = query_part(has_first, first_at, d + q_part);
            }
            if (ROWS > 2u) {
                pool[(part_row + 32u) * PITCH + local % 8u] = query_part(has_second, second_at, d + q_part);
            }
            let key = key0 + i32(part_row);
            var x = vec4<f32>();
            if (key < last_seen.y) {
                let start = k_at + u32(key) * p.k_seq + (d + q_part) * p.k_dim;
                x = k_four(start, p.k_dim, left_of(p.head_dim, d + q_part));
            }
            pool[(16u * ROWS + part_row) * PITCH + local % 8u] = x;
            workgroupBarrier();
            for (var at = 0u; at < 8u; at += 1u) {
                let first = pool[(16u * ROWS + tx) * PITCH + at];
                let second = pool[(16u * ROWS + tx + 16u) * PITCH + at];
                let a = two_dots(ty * ROWS, first, second, at);
                dots0.x += a.x;
                dots1.x += a.y;
                if (ROWS > 1u) {
                    let b = two_dots(ty * ROWS + 1u, first, second, at);
                    dots0.y += b.x;
                    dots1.y += b.y;
                }
                if (ROWS > 2u) {
                    let c = two_dots(ty * ROWS + 2u, first, second, at);
                    dots0.z += c.x;
                    dots1.z += c.y;
                    let e = two_dots(ty * ROWS + 3u, first, second, at);
                    dots0.w += e.x;
                    dots1.w += e.y;
                }
            }
            workgroupBarrier();
        }

        // The scores and the new maxima.
        let key_a = key0 + i32(tx);
        let key_b = key_a + 16;
        var keys0 = vec4<i32>(UNSEEN);
        var keys1 = vec4<i32>(UNSEEN);
        if (row < rows) {
            keys0.x = score(dots0.x, batch, head, row, key_a, seen_a);
            keys1.x = score(dots1.x, batch, head, row, key_b, seen_a);
            atomicMax(&tops[ty * ROWS], max(keys0.x, keys1.x));
        }
        if (ROWS > 1u && row + 1u < rows) {
            keys0.y = score(dots0.y, batch, head, row + 1u, key_a, seen_b);
            keys1.y = score(dots1.y, batch, head, row + 1u, key_b, seen_b);
            atomicMax(&tops[ty * ROWS + 1u], max(keys0.y, keys1.y));
        }
        if (ROWS > 2u && row + 2u < rows) {
            keys0.z = score(dots0.z, batch, head, row + 2u, key_a, seen_c);
            keys1.z = score(dots1.z, batch, head, row + 2u, key_b, seen_c);
            atomicMax(&tops[ty * ROWS + 2u], max(keys0.z, keys1.z));
        }
        if (ROWS > 2u && row + 3u < rows) {
            keys0.w = score(dots0.w, batch, head, row + 3u, key_a, seen_d);
            keys1.w = score(dots1.w, batch, head, row + 3u, key_b, seen_d);
            atomicMax(&tops[ty * ROWS + 3u], max(keys0.w, keys1.w));
        }
        workgroupBarrier();

        // The weights.
        var now = vec4<i32>(UNSEEN);
        now.x = top_of(ty * ROWS);
        if (ROWS > 1u) {
            now.y = top_of(ty * ROWS + 1u);
        }
        if (ROWS > 2u) {
            now.z = top_of(ty * ROWS + 2u);
            now.w = top_of(ty * ROWS + 3u);
        }
        let center = vec4<f32>(center_of(now.x), center_of(now.y), center_of(now.z), center_of(now.w));
        pool[ty * WEIGHTS + tx] = vec4<f32>(
            weight(keys0.x, center.x),
            weight(keys0.y, center.y),
            weight(keys0.z, center.z),
            weight(keys0.w, center.w),
        );
        pool[ty * WEIGHTS + tx + 16u] = vec4<f32>(
            weight(keys1.x, center.x),
            weight(keys1.y, center.y),
            weight(keys1.z, center.z),
            weight(keys1.w, center.w),
        );
        let by = vec4<f32>(
            rescale(top.x, center.x),
            rescale(top.y, center.y),
            rescale(top.z, center.z),
            rescale(top.w, center.w),
        );
        top = now;
        sums *= by;
        sum0 = scale_rows(sum0, by);
        if (COLS > 1u) {
            sum1 = scale_rows(sum1, by);
        }
        if (COLS > 2u) {
            sum2 = scale_rows(sum2, by);
            sum3 = scale_rows(sum3, by);
        }

        // The weighted values, 16 / COLS keys at a time.
        let guarded = MASK != 0u || key0 < last_seen.x || key0 + 32 > first_seen.y;
        let step = 16u / COLS;
        for (var done = 0u; done < 32u && key0 + i32(done) < last_seen.y; done += step) {
            let key = key0 + i32(done + local / (16u * COLS));
            let column = slice * 64u * COLS + local % (16u * COLS) * 4u;
            var x = vec4<f32>();
            if (key < last_seen.y) {
                let start = v_at + u32(key) * p.v_seq + column * p.v_dim;
                x = v_four(start, p.v_dim, left_of(p.value_dim, column));
            }
            pool[VALUES + local] = x;
            workgroupBarrier();
            for (var at = 0u; at < step; at += 1u) {
                let weights = pool[ty * WEIGHTS + done + at];
                let values = VALUES + at * 16u * COLS + tx;
                sums += weights;
                sum0 = add_value(sum0, weights, pool[values], guarded);
                if (COLS > 1u) {
                    sum1 = add_value(sum1, weights, pool[values + 16u], guarded);
                }
                if (COLS > 2u) {
                    sum2 = add_value(sum2, weights, pool[values + 32u], guarded);
                    sum3 = add_value(sum3, weights, pool[values + 48u], guarded);
                }
            }
            workgroupBarrier();
        }
    }

    let column = slice * 64u * COLS + tx * 4u;
    put_rows(batch, head, row, column, sum0, sums, top);
    if (COLS > 1u) {
        put_rows(batch, head, row, column + 64u, sum1, sums, top);
    }
    if (COLS > 2u) {
        put_rows(batch, head, row, column + 128u, sum2, sums, top);
        put_rows(batch, head, row, column + 192u, sum3, sums, top);
    }
}
