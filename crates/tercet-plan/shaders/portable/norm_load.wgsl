// Loads a row of one operand in 16-byte vectors, for norms.
// uses norm_lay.wgsl or norm_plain_vectors.wgsl: p, x
// uses row_vectors.wgsl: PARTS, VECTORS, floats, held, vectors_in
// uses rows.wgsl: THREADS, thread

// Loads the row into `held`, zero-padded.
fn elements(row: u32, units: u32) {
    let own = min(row, p.rows - 1u);
    let start = vectors_in(p.x_offset + own / p.x_count * p.x_outer + own % p.x_count * p.x_row);
    var words: array<vec4<u32>, VECTORS>;
    for (var i = 0u; i < VECTORS; i += 1u) {
        words[i] = x[start + min(i * THREADS + thread, units - 1u)];
    }
    for (var i = 0u; i < VECTORS; i += 1u) {
        for (var part = 0u; part < PARTS; part += 1u) {
            let v = floats(words[i], part);
            held[i * PARTS + part] = select(vec4<f32>(), v, i * THREADS + thread < units);
        }
    }
}
