// Dequantization to the 16-bit float Y_TYPE: y = the values of rows of quantized blocks. Two
// threads decode a piece of 16 or 32 weights, and write 8 adjacent values each, so that a workgroup
// writes whole cache lines. `before` is not read. This argument is only a dependency: it delays the
// dequantization until shortly before the matmul that uses the weights.
// uses dequant/pieces.wgsl or dequant/pieces_coded.wgsl: GROUPS, PARTS, Raw, SECOND, codes, first_of, raw_of, scales
// uses prelude.wgsl: F16, flat_group, float_bits

struct Params {
    pieces: u32,
    offset: u32,
    row_len: u32,
    row_stride: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> before: array<u32>;
@group(0) @binding(3) var<storage, read_write> y_data: array<vec4<u32>>;

override Y_TYPE: u32 = 1u;

const PIECE: u32 = 16u * GROUPS;

fn row_blocks() -> u32 {
    return p.row_len / BLOCK_LEN;
}

fn pair_bits(low: f32, high: f32) -> u32 {
    if Y_TYPE == F16 {
        return pack2x16float(vec2<f32>(low, high));
    }
    return float_bits(low, Y_TYPE) | (float_bits(high, Y_TYPE) << 16u);
}

// Stores 8 adjacent values from element i.
fn store(i: u32, x: vec4<f32>, y: vec4<f32>) {
    y_data[i / 8u] = vec4<u32>(pair_bits(x.x, x.y), pair_bits(x.z, x.w), pair_bits(y.x, y.y), pair_bits(y.z, y.w));
}

// Stores eight of the 16 weights of a group, from weight 8 `half`.
fn store_half(i: u32, raw: Raw, group: u32, half: u32, scale: vec2<f32>) {
    let least = vec4<f32>(scale.y);
    let first = codes(raw, group, 2u * half);
    store(i + 8u * half, scale.x * first + least, scale.x * codes(raw, group, 2u * half + 1u) + least);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let at = flat_group(group, groups) * 128u + local / 2u;
    if at >= p.pieces {
        return;
    }
    let half = local % 2u;
    let row_pieces = p.row_len / PIECE;
    let row = at / row_pieces;
    let piece = at % row_pieces;
    let raw = raw_of(Block(p.offset + row * p.row_stride, piece / PARTS), piece % PARTS);
    let first = row * p.row_len + piece / PARTS * BLOCK_LEN + first_of(piece % PARTS);
    let scale = scales(raw);
    store_half(first, raw, 0u, half, scale.xy);
    if GROUPS == 2u {
        store_half(first + SECOND, raw, 1u, half, scale.zw);
    }
}
