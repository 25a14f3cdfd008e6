// Operands of a matmul, shared by all matmul kernels: y[z, i, j] = f(sum_k a[z, i, k] b[z, k, j] +
// bias[i, j]), with z over up to six batch axes. a and b are views with offsets and strides in
// elements; offsets of reversed axes wrap. y is dense. A per-column bias has bias_row = 0. A bias
// with rows is a residual operand and requires z = 0. b_data is declared separately, as words or as
// vectors.

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

// Offsets of the operands in the current batch.
var<private> a_base: u32;
var<private> b_base: u32;
var<private> y_base: u32;
