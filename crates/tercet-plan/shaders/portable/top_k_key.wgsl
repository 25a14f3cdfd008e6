// Sort keys of elements: a more extreme element has a smaller key, and equal elements have equal
// keys. With LARGEST, the greatest element is the most extreme. NaN has the smallest key, with NAN
// = 1 the key of -inf, with NAN = 2 the greatest key.
// uses prelude.wgsl: BF16, F16, I32, I8, bits_of, from_half, int_of, uint_of

override DTYPE: u32 = 0u;
override LARGEST: u32 = 1u;
override NAN: u32 = 0u;

// F32 bits of a float lane.
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
