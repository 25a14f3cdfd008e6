// y[z, i, j] = f(sum_k a[z, i, k] b[z, k, j] + bias[i, j]), z over up to six batch axes: what all products
// share. Both operands are views: offsets and strides in elements, reversed axes wrap; y is dense. A bias
// per column has bias_row = 0; one that varies by row is a sum with something else (then z is 0).
// b_data is declared apart: as words, or as quads of them.

struct Params {
    batch_sizes: array<vec4<u32>, 2>,
    a_batches: array<vec4<u32>, 2>,
    b_batches: array<vec4<u32>, 2>,
    batch_axes: u32,
    batch: u32,
    m: u32,
    n: u32,
    k: u32,
    a_offset: u32,
    a_row: u32,
    a_col: u32,
    b_offset: u32,
    b_row: u32,
    b_col: u32,
    bias_offset: u32,
    bias_row: u32,
    bias_stride: u32,
    zero: u32,
    eps: f32,
    chain_waits: u32,
    chain_wanted: u32,
    chain_own: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(3) var<storage, read> bias_data: array<u32>;

override BIAS: u32 = 0u;
override ACTIVATION: u32 = 0u;

// The first elements of the current batch.
var<private> a_base: u32;
var<private> b_base: u32;
var<private> y_base: u32;
