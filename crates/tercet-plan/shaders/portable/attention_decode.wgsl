// Split-KV decode attention (flash decoding): few queries, with the keys split over workgroups.
//
// A workgroup processes ROWS rows of one batch entry and KV head, one range of `split_keys` keys,
// and up to 4 COLS columns of the values. attention_common.wgsl defines rows. The workgroup
// iterates over its keys, 64 per step. For q k^T, 8 threads share a key. For the values, COLS
// threads share a key, with 4 columns each.
//
// With one range, y is the result. With several ranges, y is F32 `[row, range, column]`, the
// unnormalized sums of each range. `stats` `[row, range, 2]` then stores the maximum score, an
// ordered integer, and the F32 sum of the weights. attention_combine.wgsl combines them. Results of
// ranges that no row attends to stay uninitialized.
//
// The flat group is ((tile * slices + slice) * splits + split) * heads + head.
// uses attention_common.wgsl: Four, add_seen, k_start, left_of, p, q_start, scale_rows, score, v_start
// uses attention_few.wgsl: COLS, ROWS, SPLIT, pick, rescales, stats, tops, tops_of, weights, weights_of
// uses attention_store.wgsl: y_four, y_start
// uses attention_vec2.wgsl or attention_vec4.wgsl or attention_words.wgsl: k_four, q_four, v_four
// uses prelude.wgsl: flat_group

// Row pitch of the partial dot products by (row, key), padded against bank conflicts.
fn pitch() -> u32 {
    return 32u * ROWS + 4u;
}

var<workgroup> queries: array<vec4<f32>, 256>;
var<workgroup> scratch: array<f32, 2080>;

// Partial dot products of four rows, from row `first`, with four elements of a key.
fn products(first: u32, vectors: u32, at: u32, x: vec4<f32>) -> vec4<f32> {
    var out = vec4<f32>();
    out.x = dot(queries[first * vectors + at], x);
    if (ROWS > 1u) {
        out.y = dot(queries[(first + 1u) * vectors + at], x);
    }
    if (ROWS > 2u) {
        out.z = dot(queries[(first + 2u) * vectors + at], x);
        out.w = dot(queries[(first + 3u) * vectors + at], x);
    }
    return out;
}

// Stores the partial sums of four rows in shared memory for the reduction.
fn leave(first: u32, local: u32, x: vec4<f32>) {
    let at = local % 8u * pitch() + first * 32u + local / 8u;
    scratch[at] = x.x;
    if (ROWS > 1u) {
        scratch[at + 32u] = x.y;
    }
    if (ROWS > 2u) {
        scratch[at + 64u] = x.z;
        scratch[at + 96u] = x.w;
    }
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
    let slice = flat / (heads * p.splits) % p.slices;
    let first_row = flat / (heads * p.splits * p.slices) * ROWS;
    let rows = p.queries * p.group;
    let last_row = min(first_row + ROWS, rows) - 1u;

    let n = common_keys_of(batch);
    let split_start = i32(split * p.split_keys);
    let start = max(seen_by(first_row / p.group, n).x, split_start);
    let end = min(seen_by(last_row / p.group, n).y, split_start + i32(p.split_keys));
    if (SPLIT == 1u && start >= end) {
        return;
    }

    let vectors = (p.head_dim + 3u) / 4u;
    for (var at = local; at < vectors * ROWS; at += 256u) {
        let r = at / vectors;
        let d = at % vectors * 4u;
        var x = vec4<f32>();
        if (first_row + r < rows) {
            let q_at = q_start(batch, head, first_row + r) + d * p.q_dim;
            x = q_four(q_at, p.q_dim, left_of(p.head_dim, d));
        }
        queries[at] = x;
    }
    if (local < 8u) {
        atomicStore(&tops[local], UNSEEN);
    }
    workgroupBarrier();

    // Thread mapping: in the score phase, one row and one of 32 keys; in the value phase, four
    // columns and one subset of the keys.
    let own_row = local / 32u;
    let has_row = own_row < ROWS && first_row + own_row < rows;
    let own_seen = seen_by((first_row + own_row) / p.group, n);
    let column = slice * 4u * COLS + local % COLS * 4u;
    let subset = local / COLS;
    let subsets = 256u / COLS;
    let columns = left_of(p.value_dim, column);
    let k_at = k_start(batch, head);
    let v_at = v_start(batch, head) + column * p.v_dim;

    var low = Four();
    var high = Four();
    var low_sums = vec4<f32>();
    var high_sums = vec4<f32>();
    var low_top = vec4<i32>(UNSEEN);
    var high_top = vec4<i32>(UNSEEN);
    for (var key0 = start; key0 < end; key0 += 64) {
        var own = vec2<i32>(UNSEEN);
        for (var round = 0u; round < 2u; round += 1u) {
            let key = key0 + i32(round * 32u + local / 8u);
            var low_dots = vec4<f32>();
            var high_dots = vec4<f32>();
            if (key < end) {
                for (var at = local % 8u; at < vectors; at += 8u) {
                    let k_part = k_at + u32(key) * p.k_seq + at * 4u * p.k_dim;
                    let x = k_four(k_part, p.k_dim, left_of(p.head_dim, at * 4u));
                    low_dots += products(0u, vectors, at, x);
                    if (ROWS > 4u) {
                        high_dots += products(4u, vectors, at, x);
                    }
                }
            }
            leave(0u, local, low_dots);
            if (ROWS > 4u) {
                leave(4u, local, high_dots);
            }
            workgroupBarrier();
            if (has_row) {
                var product = 0.0;
                for (var part = 0u; part < 8u; part += 1u) {
                    product += scratch[part * pitch() + local];
                }
                let own_key = key0 + i32(round * 32u + local % 32u);
                let seen = vec2<i32>(own_seen.x, min(own_seen.y, end));
                let s = score(product, batch, head, first_row + own_row, own_key, seen);
                own = select(vec2<i32>(own.x, s), vec2<i32>(s, own.y), round == 0u);
                atomicMax(&tops[own_row], s);
            }
            workgroupBarrier();
        }
        if (own_row < ROWS) {
            let center = center_of(atomicLoad(&tops[own_row]));
            weights[local % 32u * ROWS + own_row] = weight(own.x, center);
            weights[(local % 32u + 32u) * ROWS + own_row] = weight(own.y, center);
        }
        let low_now = tops_of(0u);
        let low_by = rescales(low_top, low_now);
        low_top = low_now;
        low_sums *= low_by;
        low = scale_rows(low, low_by);
        if (ROWS > 4u) {
            let high_now = tops_of(4u);
            let high_by = rescales(high_top, high_now);
            high_top = high_now;
            high_sums *= high_by;
            high = scale_rows(high, high_by);
        }
        workgroupBarrier();
        for (var key = subset; key < 64u && key0 + i32(key) < end; key += subsets) {
            let x = v_four(v_at + u32(key0 + i32(key)) * p.v_seq, p.v_dim, columns);
            let low_weights = weights_of(key, 0u);
            low_sums += low_weights;
            low = add_seen(low, low_weights, x);
            if (ROWS > 4u) {
                let high_weights = weights_of(key, 4u);
                high_sums += high_weights;
                high = add_seen(high, high_weights, x);
            }
        }
        workgroupBarrier();
    }

    // Reduces the key subsets, row by row.
    for (var r = 0u; r < ROWS; r += 1u) {
        let is_high = r >= 4u;
        let own_sum = select(pick(low, r), pick(high, r - 4u), is_high);
        scratch[local * 4u] = own_sum.x;
        scratch[local * 4u + 1u] = own_sum.y;
        scratch[local * 4u + 2u] = own_sum.z;
        scratch[local * 4u + 3u] = own_sum.w;
        if (local % COLS == 0u) {
            scratch[1024u + subset] = select(low_sums[r % 4u], high_sums[r % 4u], is_high);
        }
        workgroupBarrier();
        let row = first_row + r;
        if (subset == 0u && row < rows) {
            var sum = vec4<f32>();
            var total = 0.0;
            for (var s = 0u; s < subsets; s += 1u) {
                let at = (local + s * COLS) * 4u;
                sum += vec4<f32>(scratch[at], scratch[at + 1u], scratch[at + 2u], scratch[at + 3u]);
                total += scratch[1024u + s];
            }
            let top = select(low_top[r % 4u], high_top[r % 4u], is_high);
            if (SPLIT == 1u) {
                let part = ((batch * p.kv_heads + head) * rows + row) * p.splits + split;
                y_four(part * p.value_dim + column, columns, sum);
                if (column == 0u) {
                    stats[part * 2u] = bitcast<u32>(top);
                    stats[part * 2u + 1u] = bitcast<u32>(total);
                }
            } else {
                y_four(y_start(batch, head, row, column), columns, normalized(sum, total, top));
            }
        }
        workgroupBarrier();
    }
}
