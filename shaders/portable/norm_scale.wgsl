// Powers of two by which rows are scaled where the squares of their elements would leave the range of f32.
// uses prelude.wgsl: magnitude

// The power of two for a row whose greatest magnitude is `size`.
fn scale_for(size: f32) -> f32 {
    let e = magnitude(size) >> 23u;
    if e == 255u || (e >= 87u && e <= 167u) {
        return 1.0;
    }
    return bitcast<f32>(clamp(254u - e, 1u, 187u) << 23u);
}

// eps of a scaled row; not 0 where eps is not.
fn scaled_eps(eps: f32, scale: f32) -> f32 {
    return select(max(eps * scale * scale, 1e-37), 0.0, eps == 0.0);
}
