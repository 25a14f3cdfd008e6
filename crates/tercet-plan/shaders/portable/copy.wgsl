// y[i] = x[offset + sum_a index_a(i) * strides[a]]: copies a strided view of RANK axes to a dense
// slot, bit for bit. A thread writes one word: 4 / ELEM_BYTES elements.

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override ELEM_BYTES: u32 = 4u;
override RANK: u32 = 2u;

// Source element of result element `i`. Strides may be negative: the sum wraps modulo 2^32.
fn source_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - 1u - k;
        let size = p.shape[axis / 4u][axis % 4u];
        let stride = p.strides[axis / 4u][axis % 4u];
        at += (rest % size) * stride;
        rest /= size;
    }
    return at;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = (group.y * count.x + group.x) * 256u + local;
    let lanes = 4u / ELEM_BYTES;
    if word * lanes >= p.numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < lanes; lane += 1u) {
        let i = word * lanes + lane;
        if i < p.numel {
            let at = source_of(i);
            let bits = x[at / lanes] >> ((at % lanes) * ELEM_BYTES * 8u);
            let mask = select((1u << (ELEM_BYTES * 8u % 32u)) - 1u, 0xffffffffu, ELEM_BYTES == 4u);
            out |= (bits & mask) << (lane * ELEM_BYTES * 8u);
        }
    }
    y[word] = out;
}
