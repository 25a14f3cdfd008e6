// y[.., j, ..] = x[.., idx[.., j, ..], ..]: for each index the element of a strided operand of RANK axes at
// the place of the index, but along one axis where the index says, by bits. `shape` is that of the indices
// and of the result. Negative indices count from the end; others outside the axis are clamped (a check of
// its own fails the run). One invocation writes one word: 4 / ELEM_BYTES elements.
// uses named.wgsl: named
// uses prelude.wgsl: bits_of, flat_group

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
    axis: u32,
    len: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> idx: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override ELEM_BYTES: u32 = 4u;
override RANK: u32 = 2u;

// The element of the operand for element `i` of the result. Strides may be negative: the sum wraps.
fn source_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        var place = rest % size;
        rest /= size;
        if axis == p.axis {
            place = named(idx[i], p.len);
        }
        at += place * p.strides[axis / 4u][axis % 4u];
    }
    return at;
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, count) * 256u + local;
    let lanes = 4u / ELEM_BYTES;
    if word * lanes >= p.numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < lanes; lane += 1u) {
        let i = word * lanes + lane;
        // An empty axis has nothing to name.
        if i < p.numel && p.len > 0u {
            let at = source_of(i);
            out |= bits_of(x[at / lanes], at % lanes, ELEM_BYTES) << (lane * ELEM_BYTES * 8u);
        }
    }
    y[word] = out;
}
