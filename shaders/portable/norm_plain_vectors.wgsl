// Norm of one operand with 16-byte vectors. See norm_vectors.wgsl.
// uses row_vectors.wgsl: PARTS, VECTORS, floats, held, vectors_in
// uses rows.wgsl: THREADS, thread

struct Params {
    rows: u32,
    len: u32,
    x_offset: u32,
    x_row: u32,
    x_stride: u32,
    eps: f32,
    // Row strides: x_row between rows, x_outer between groups of x_count rows.
    x_count: u32,
    x_outer: u32,
    y_panels: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> gamma: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> beta: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> y: array<vec4<u32>>;

override BETA: u32 = 0u;

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
