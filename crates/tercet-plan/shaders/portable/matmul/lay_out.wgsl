// Weight prepack: reorders 16-bit weights [k, n] for gemm_laid_f16.comp, which defines the order. A
// thread writes one word: two adjacent elements along k. The 16 bytes of a lane contain a column
// and the next column at its first two k positions, then both at the other two.

struct Params {
    words: u32,
    steps: u32,
    offset: u32,
    row: u32,
    column: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

fn half_of(at: u32) -> u32 {
    return (x[at / 2u] >> (at % 2u * 16u)) & 0xffffu;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = (group.y * count.x + group.x) * 256u + local;
    if word >= p.words {
        return;
    }
    let side = word % 2u;
    let pair = word / 2u % 2u;
    let t = word / 4u % 4u;
    let g = word / 16u % 8u;
    let fragment = word / 128u % 4u;
    let half = word / 512u % 2u;
    let step = word / 1024u % p.steps;
    let block = word / 1024u / p.steps;
    let k = step * 32u + t * 8u + half * 4u + pair * 2u;
    let n = block * 64u + g * 8u + fragment * 2u + side;
    // Strides may be negative: the sums wrap modulo 2^32.
    let at = p.offset + k * p.row + n * p.column;
    y[word] = half_of(at) | (half_of(at + p.row) << 16u);
}
