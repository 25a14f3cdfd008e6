// Reduction functions on 32-bit numbers: sum, product, maximum and minimum. Floats (IN <= BF16) are
// F32; integers wrap. The including kernel declares IN.
// uses cumsum.wgsl or cumsum_vectors.wgsl or reduce.wgsl or scatter.wgsl: IN
// uses prelude.wgsl: BF16, I32, I8, U8, float_of, fmax, fmin, int_of, uint_of
// uses scalar/arithmetic.wgsl: f_add, f_mul

override OP: u32 = 0u;
const SUM: u32 = 0u;
const PROD: u32 = 1u;
const MAX: u32 = 2u;
const MIN: u32 = 3u;

// An element widened to 32 bits.
fn number_of(word: u32, lane: u32, dtype: u32) -> u32 {
    if dtype <= BF16 {
        return bitcast<u32>(float_of(word, lane, dtype));
    }
    if dtype == I32 || dtype == I8 {
        return bitcast<u32>(int_of(word, lane, dtype));
    }
    return uint_of(word, lane, dtype);
}

// The identity element of the reduction.
fn identity() -> u32 {
    if OP == SUM {
        return 0u;
    }
    if IN <= BF16 {
        return select(select(0x7f800000u, 0xff800000u, OP == MAX), 0x3f800000u, OP == PROD);
    }
    if OP == PROD {
        return 1u;
    }
    if IN == I32 {
        return select(0x7fffffffu, 0x80000000u, OP == MAX);
    }
    if IN == I8 {
        return select(127u, 0xffffff80u, OP == MAX);
    }
    return select(select(0xffffffffu, 0xffu, IN == U8), 0u, OP == MAX);
}

// Sums and products keep subnormal numbers, also on devices that flush them to zero.
fn combine_floats(a: f32, b: f32) -> f32 {
    if OP == SUM {
        return f_add(a, b);
    }
    if OP == PROD {
        return f_mul(a, b);
    }
    if OP == MAX {
        return fmax(a, b);
    }
    return fmin(a, b);
}

fn combine(a: u32, b: u32) -> u32 {
    if IN <= BF16 {
        return bitcast<u32>(combine_floats(bitcast<f32>(a), bitcast<f32>(b)));
    }
    if OP == SUM {
        return a + b;
    }
    if OP == PROD {
        return a * b;
    }
    // Flipping the sign bit makes signed numbers comparable as unsigned.
    let flip = select(0u, 0x80000000u, IN == I32 || IN == I8);
    return select(b, a, ((a ^ flip) >= (b ^ flip)) == (OP == MAX));
}
