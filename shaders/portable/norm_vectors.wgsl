// norm_row.wgsl with 16-byte vectors; see row_vectors.wgsl. The including kernel loads the rows
// with `elements`, which also stores the residual sum if there is one, and defines the location of
// gamma and beta.
// uses norm_about.wgsl: about_size, mean_of, row_of, size_of
// uses norm_alone.wgsl or norm_rounded.wgsl: write_also
// uses norm_plain_vectors.wgsl or norm_residual_vectors.wgsl: BETA, beta, elements, gamma, p, y
// uses norm_value.wgsl: RMS, Row, normalized
// uses prelude.wgsl: flat_group
// uses row_vectors.wgsl: PARTS, VECTORS, floats, held, sum_of, vectors_in, words_of
// uses rows.wgsl: THREADS, group_rows, own_row, take_place, thread

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

// Index of a result vector: dense rows, or panels of 32 16-bit elements of all rows, the layout
// that `gemm_laid_f16.comp` reads.
fn place_of(row: u32, unit: u32, first: u32) -> u32 {
    if p.y_panels != 0u {
        return (unit / 4u * p.rows + row) * 4u + unit % 4u;
    }
    return first + unit;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) index: u32,
) {
    take_place(index);
    let row = flat_group(group, groups) * group_rows() + own_row;
    let units = vectors_in(p.len);
    elements(row, units);
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
    let about = row_of(scale, mean, sums);
    let first = vectors_in(row * p.len);
    for (var i = 0u; i < VECTORS; i += 1u) {
        let unit = i * THREADS + thread;
        if row < p.rows && unit < units {
            let gains = gamma[unit];
            var a = normalized_all(held[i * PARTS], about) * floats(gains, 0u);
            var b = normalized_all(held[i * PARTS + PARTS - 1u], about) * floats(gains, PARTS - 1u);
            if BETA == 1u {
                let more = beta[unit];
                a += floats(more, 0u);
                b += floats(more, PARTS - 1u);
            }
            y[place_of(row, unit, first)] = words_of(a, b);
            write_also(first + unit, a);
        }
    }
}
