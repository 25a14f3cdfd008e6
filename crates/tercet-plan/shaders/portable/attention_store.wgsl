// Stores attention results to `y` at binding 6. F16 and BF16 require an even value dimension, so
// that no word belongs to two rows.
// uses attention_common.wgsl: p
// uses prelude.wgsl: F32, float_bits

@group(0) @binding(6) var<storage, read_write> y: array<u32>;

// Dtype of y.
override OUT: u32 = 0u;

// Stores `count` elements, at most four, from element `at`. Words are stored whole.
fn y_four(at: u32, count: u32, x: vec4<f32>) {
    if (OUT == F32) {
        if (count > 0u) { y[at] = bitcast<u32>(x.x); }
        if (count > 1u) { y[at + 1u] = bitcast<u32>(x.y); }
        if (count > 2u) { y[at + 2u] = bitcast<u32>(x.z); }
        if (count > 3u) { y[at + 3u] = bitcast<u32>(x.w); }
        return;
    }
    if (count > 0u) { y[at / 2u] = float_bits(x.x, OUT) | (float_bits(x.y, OUT) << 16u); }
    if (count > 2u) { y[at / 2u + 1u] = float_bits(x.z, OUT) | (float_bits(x.w, OUT) << 16u); }
}

// Element offset of a column of a row in y.
fn y_start(batch: u32, head: u32, row: u32, column: u32) -> u32 {
    let query_head = head * p.group + row % p.group;
    return batch * p.y_batch + query_head * p.y_head + row / p.group * p.y_seq + column;
}
