// Row statistics of a norm, reduced across the threads of a row.
// uses channel_norm_stats.wgsl or norm.wgsl or norm_lay.wgsl or norm_plain_vectors.wgsl or norm_residual.wgsl or norm_residual_vectors.wgsl: p
// uses norm_row.wgsl or row_vectors.wgsl: DTYPE
// uses norm_scale.wgsl: scale_for, scaled_eps
// uses norm_value.wgsl: RMS, Row
// uses prelude.wgsl: F16, as_float, is_nan, magnitude
// uses row_floats.wgsl: GREATEST, SUM, over_row

// Power of two by which the row is scaled. The sums of v, v^2 and (v - mean)^2 use scaled elements.
fn about_size(size: f32) -> f32 {
    // Squares of F16 values cannot overflow F32.
    if DTYPE == F16 {
        return 1.0;
    }
    return scale_for(over_row(vec2<f32>(size, 0.0), GREATEST).x);
}

fn mean_of(own_sum: f32) -> f32 {
    if RMS == 1u {
        return 0.0;
    }
    return over_row(vec2<f32>(own_sum, 0.0), SUM).x / f32(p.len);
}

fn row_of(scale: f32, mean: f32, own_sums: vec2<f32>) -> Row {
    let means = over_row(own_sums, SUM) / f32(p.len);
    let rest = select(means.x, 0.0, RMS == 1u);
    let variance = max(means.y - rest * rest, 0.0);
    let spread = select(variance, means.y, RMS == 1u || is_nan(means.y));
    return Row(scale, mean, rest, inverseSqrt(spread + scaled_eps(p.eps, scale)));
}

fn size_of(size: f32, v: f32) -> f32 {
    return as_float(max(magnitude(size), magnitude(v)));
}

fn sums_of(v: f32) -> vec2<f32> {
    return vec2<f32>(v, v * v);
}
