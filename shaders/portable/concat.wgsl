// Up to seven strided operands of RANK axes one after the other along an axis, by bits. Operand k
// covers the places from starts[k] to starts[k + 1] of the axis. One invocation writes one word, 4 /
// ELEM_BYTES elements, if it holds any of these operands; with `keep` what it holds of others stays.
// uses prelude.wgsl: bits_of, flat_group

struct Params {
    shape: array<vec4<u32>, 2>,
    starts: array<vec4<u32>, 2>,
    offsets: array<vec4<u32>, 2>,
    strides0: array<vec4<u32>, 2>,
    strides1: array<vec4<u32>, 2>,
    strides2: array<vec4<u32>, 2>,
    strides3: array<vec4<u32>, 2>,
    strides4: array<vec4<u32>, 2>,
    strides5: array<vec4<u32>, 2>,
    strides6: array<vec4<u32>, 2>,
    numel: u32,
    axis: u32,
    operands: u32,
    keep: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x0: array<u32>;
@group(0) @binding(2) var<storage, read> x1: array<u32>;
@group(0) @binding(3) var<storage, read> x2: array<u32>;
@group(0) @binding(4) var<storage, read> x3: array<u32>;
@group(0) @binding(5) var<storage, read> x4: array<u32>;
@group(0) @binding(6) var<storage, read> x5: array<u32>;
@group(0) @binding(7) var<storage, read> x6: array<u32>;
@group(0) @binding(8) var<storage, read_write> y: array<u32>;

override ELEM_BYTES: u32 = 4u;
override RANK: u32 = 2u;

fn start_of(k: u32) -> u32 {
    return p.starts[k / 4u][k % 4u];
}

fn stride_of(k: u32, axis: u32) -> u32 {
    let row = axis / 4u;
    let column = axis % 4u;
    switch k {
        case 0u: { return p.strides0[row][column]; }
        case 1u: { return p.strides1[row][column]; }
        case 2u: { return p.strides2[row][column]; }
        case 3u: { return p.strides3[row][column]; }
        case 4u: { return p.strides4[row][column]; }
        case 5u: { return p.strides5[row][column]; }
        default: { return p.strides6[row][column]; }
    }
}

fn word_of_operand(k: u32, word: u32) -> u32 {
    switch k {
        case 0u: { return x0[word]; }
        case 1u: { return x1[word]; }
        case 2u: { return x2[word]; }
        case 3u: { return x3[word]; }
        case 4u: { return x4[word]; }
        case 5u: { return x5[word]; }
        default: { return x6[word]; }
    }
}

struct Found {
    is_ours: bool,
    bits: u32,
}

// Element `i` of the result. Strides may be negative: the sum wraps.
fn element(i: u32) -> Found {
    var place = 0u;
    var rest = i;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        if axis == p.axis {
            place = rest % size;
        }
        rest /= size;
    }
    if place < start_of(0u) || place >= start_of(p.operands) {
        return Found(false, 0u);
    }
    var operand = 0u;
    while place >= start_of(operand + 1u) {
        operand += 1u;
    }
    rest = i;
    var at = p.offsets[operand / 4u][operand % 4u];
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        let own = rest % size - select(0u, start_of(operand), axis == p.axis);
        rest /= size;
        at += own * stride_of(operand, axis);
    }
    let lanes = 4u / ELEM_BYTES;
    return Found(true, bits_of(word_of_operand(operand, at / lanes), at % lanes, ELEM_BYTES));
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
    var keep = 0xffffffffu;
    var out = 0u;
    for (var lane = 0u; lane < lanes; lane += 1u) {
        let i = word * lanes + lane;
        let shift = lane * ELEM_BYTES * 8u;
        let mask = bits_of(0xffffffffu, 0u, ELEM_BYTES) << shift;
        if i >= p.numel {
            // Padding is zero.
            keep &= ~mask;
            continue;
        }
        let found = element(i);
        if found.is_ours {
            out |= found.bits << shift;
            keep &= ~mask;
        }
    }
    if p.keep == 0u {
        y[word] = out;
    } else if keep != 0xffffffffu {
        y[word] = (y[word] & keep) | out;
    }
}
