// Row statistics of a norm whose rows are in registers, and the normalized elements.
// uses norm_about.wgsl: about_size, mean_of, row_of, size_of
// uses norm_value.wgsl: RMS, Row, normalized
// uses row_vectors.wgsl: PARTS, VECTORS, held, sum_of
// uses rows.wgsl: THREADS, thread

fn means_of(v: vec4<f32>, scale: f32, mean: f32) -> vec2<f32> {
    let apart = v * scale - vec4<f32>(mean);
    return vec2<f32>(sum_of(apart), sum_of(apart * apart));
}

fn normalized_all(v: vec4<f32>, about: Row) -> vec4<f32> {
    return vec4<f32>(
        normalized(v.x, about),
        normalized(v.y, about),
        normalized(v.z, about),
        normalized(v.w, about),
    );
}

fn sizes_of(size: f32, v: vec4<f32>) -> f32 {
    return size_of(size_of(size_of(size_of(size, v.x), v.y), v.z), v.w);
}

// Statistics of the row in `held`.
fn about_row(units: u32) -> Row {
    var size = 0.0;
    for (var i = 0u; i < VECTORS * PARTS; i += 1u) {
        size = sizes_of(size, held[i]);
    }
    let scale = about_size(size);
    var sum = 0.0;
    if RMS == 0u {
        for (var i = 0u; i < VECTORS * PARTS; i += 1u) {
            sum += sum_of(held[i] * scale);
        }
    }
    let mean = mean_of(sum);
    var sums = vec2<f32>();
    for (var i = 0u; i < VECTORS; i += 1u) {
        if i * THREADS + thread < units {
            for (var part = 0u; part < PARTS; part += 1u) {
                sums += means_of(held[i * PARTS + part], scale, mean);
            }
        }
    }
    return row_of(scale, mean, sums);
}
