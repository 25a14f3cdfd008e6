// Power-of-two row scaling for norms, against overflow and underflow of squares in F32.
// uses prelude.wgsl: magnitude

// Power of two that scales a row whose largest magnitude is `size`.
fn scale_for(size: f32) -> f32 {
    let e = magnitude(size) >> 23u;
    if e == 255u || (e >= 87u && e <= 167u) {
        return 1.0;
    }
    return bitcast<f32>(clamp(254u - e, 1u, 187u) << 23u);
}

// eps for a scaled row. The scaled eps remains nonzero if eps is nonzero.
fn scaled_eps(eps: f32, scale: f32) -> f32 {
    return select(max(eps * scale * scale, 1e-37), 0.0, eps == 0.0);
}
