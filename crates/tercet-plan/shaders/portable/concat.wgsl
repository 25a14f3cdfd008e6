// Concatenation of up to seven strided operands of RANK axes along one axis. The including shader
// defines the unit of an element. Operand k covers the indices starts[k] to starts[k + 1] of the
// axis.
// uses concat_vectors.wgsl or concat_words.wgsl: Unit

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
@group(0) @binding(1) var<storage, read> x0: array<Unit>;
@group(0) @binding(2) var<storage, read> x1: array<Unit>;
@group(0) @binding(3) var<storage, read> x2: array<Unit>;
@group(0) @binding(4) var<storage, read> x3: array<Unit>;
@group(0) @binding(5) var<storage, read> x4: array<Unit>;
@group(0) @binding(6) var<storage, read> x5: array<Unit>;
@group(0) @binding(7) var<storage, read> x6: array<Unit>;
@group(0) @binding(8) var<storage, read_write> y: array<Unit>;

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

fn unit_of_operand(k: u32, at: u32) -> Unit {
    switch k {
        case 0u: { return x0[at]; }
        case 1u: { return x1[at]; }
        case 2u: { return x2[at]; }
        case 3u: { return x3[at]; }
        case 4u: { return x4[at]; }
        case 5u: { return x5[at]; }
        default: { return x6[at]; }
    }
}

struct Found {
    is_ours: bool,
    operand: u32,
    at: u32,
}

// Source operand and offset of element `i` of the result. Strides may be negative: the sum wraps
// modulo 2^32.
fn find(i: u32) -> Found {
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
        return Found(false, 0u, 0u);
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
    return Found(true, operand, at);
}
