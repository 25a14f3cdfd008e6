// Attention over all KV heads that also stores the log-sum-exp of each row's scores,
// `[batch, heads, queries]`. The log-sum-exp is -inf for a row without visible keys.
// uses attention.wgsl: ROWS
// uses attention_common.wgsl: p
// uses attention_rows.wgsl: Place
// uses prelude.wgsl: inf

@group(0) @binding(7) var<storage, read_write> lse: array<f32>;

fn is_left(batch: u32, head: u32) -> bool {
    return true;
}

fn put_one_lse(place: Place, row: u32, weights: f32, top: i32) {
    if (row >= place.rows) {
        return;
    }
    let query_head = (place.batch * p.kv_heads + place.head) * p.group + row % p.group;
    let sum = center_of(top) + log(weights);
    lse[query_head * p.queries + row / p.group] = select(sum, -inf(), top <= MINUS_INF);
}

fn put_lse(place: Place, row: u32, weights: vec4<f32>, top: vec4<i32>) {
    put_one_lse(place, row, weights.x, top.x);
    if (ROWS > 1u) {
        put_one_lse(place, row + 16u, weights.y, top.y);
    }
    if (ROWS > 2u) {
        put_one_lse(place, row + 32u, weights.z, top.z);
        put_one_lse(place, row + 48u, weights.w, top.w);
    }
}
