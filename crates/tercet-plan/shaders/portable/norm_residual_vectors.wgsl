// Residual add and norm in one kernel, with 16-byte vectors: sum = x + residual + bias, rounded to
// its dtype, and its norm. See norm_vectors.wgsl.
// uses row_vectors.wgsl: PARTS, VECTORS, floats, held, vectors_in, words_of
// uses rows.wgsl: THREADS, thread

struct Params {
    rows: u32,
    len: u32,
    x_offset: u32,
    x_row: u32,
    x_stride: u32,
    r_offset: u32,
    r_row: u32,
    r_stride: u32,
    eps: f32,
    y_panels: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> residual: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read> gamma: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read> beta: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read> bias: array<vec4<u32>>;
@group(0) @binding(6) var<storage, read_write> y: array<vec4<u32>>;
@group(0) @binding(7) var<storage, read_write> sum: array<vec4<u32>>;

override BETA: u32 = 0u;
override BIAS: u32 = 0u;

// Computes the sums into `held`, zero-padded, and stores them.
fn elements(row: u32, units: u32) {
    let own = min(row, p.rows - 1u);
    let start = vectors_in(p.x_offset + own * p.x_row);
    let other = vectors_in(p.r_offset + own * p.r_row);
    let first = vectors_in(own * p.len);
    var a: array<vec4<u32>, VECTORS>;
    var b: array<vec4<u32>, VECTORS>;
    for (var i = 0u; i < VECTORS; i += 1u) {
        let unit = min(i * THREADS + thread, units - 1u);
        a[i] = x[start + unit];
        b[i] = residual[other + unit];
    }
    for (var i = 0u; i < VECTORS; i += 1u) {
        let unit = i * THREADS + thread;
        var both: array<vec4<f32>, 2>;
        for (var part = 0u; part < PARTS; part += 1u) {
            var v = floats(a[i], part) + floats(b[i], part);
            if BIAS == 1u {
                v += floats(bias[min(unit, units - 1u)], part);
            }
            both[part] = v;
        }
        let words = words_of(both[0], both[PARTS - 1u]);
        for (var part = 0u; part < PARTS; part += 1u) {
            held[i * PARTS + part] = select(vec4<f32>(), floats(words, part), unit < units);
        }
        if row < p.rows && unit < units {
            sum[first + unit] = words;
        }
    }
}
