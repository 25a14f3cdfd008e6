// keys[i] orders element i of a strided operand of RANK axes: the lesser key is the more extreme
// element, equal elements have equal keys. With LARGEST the greatest is the most extreme. NaN has the
// least key, with NAN = 1 that of -inf, with NAN = 2 the greatest. One invocation writes one key.
// uses prelude.wgsl: BF16, F16, I32, I8, bits_of, flat_group, from_half, int_of, lane_of, uint_of, word_of

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;

override DTYPE: u32 = 0u;
override RANK: u32 = 2u;
override LARGEST: u32 = 1u;
override NAN: u32 = 0u;

// The element of the operand for element `i`. Strides may be negative: the sum wraps.
fn source_of(i: u32) -> u32 {
    var rest = i;
    var at = p.offset;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        at += (rest % size) * p.strides[axis / 4u][axis % 4u];
        rest /= size;
    }
    return at;
}

// The bits of a float lane as f32.
fn wide_bits(word: u32, lane: u32) -> u32 {
    if DTYPE == F16 {
        return bitcast<u32>(from_half(bits_of(word, lane, 2u)));
    }
    if DTYPE == BF16 {
        return bits_of(word, lane, 2u) << 16u;
    }
    return word;
}

fn key_of(word: u32, lane: u32) -> u32 {
    var up = 0u;
    if DTYPE <= BF16 {
        var bits = wide_bits(word, lane);
        let size = bits & 0x7fffffffu;
        if size > 0x7f800000u {
            if NAN != 1u {
                return select(0u, 0xffffffffu, NAN == 2u);
            }
            bits = 0xff800000u;
        }
        if size == 0u {
            bits = 0u;
        }
        up = select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
    } else if DTYPE == I32 || DTYPE == I8 {
        up = bitcast<u32>(int_of(word, lane, DTYPE)) ^ 0x80000000u;
    } else {
        up = uint_of(word, lane, DTYPE);
    }
    return select(up, ~up, LARGEST == 1u);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, count) * 256u + local;
    if i >= p.numel {
        return;
    }
    let at = source_of(i);
    keys[i] = key_of(x[word_of(at, DTYPE)], lane_of(at, DTYPE));
}
