// Sampling weights: exp((logit - maximum) / temperature) of the first `kept` logits of a sorted
// row, as integers in units of 2^-`fraction`, and the sum of each block of 256 weights. Logits are
// represented by their keys (`top_k_keys.wgsl`, largest first, NaN as -inf).
//
// With c = log2(e) / temperature, the weight is 2^-t with t = (maximum - logit) c, in integer
// arithmetic. c = (c_high, c_low) 2^c_exponent with its highest bit set. Errors are below 2^-50 of
// the weight plus half a unit. A workgroup processes one block.
// uses prelude.wgsl: flat_group
// uses wide64.wgsl: add64, leading_zeros64, mul_high64, shl64, shr64, sub64

struct Params {
    rows: u32,
    kept: u32,
    blocks: u32,
    row_stride: u32,
    fraction: u32,
    c_low: u32,
    c_high: u32,
    c_exponent: i32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> keys: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<u32>;
@group(0) @binding(3) var<storage, read_write> sums: array<u32>;

const INFINITY_BITS: u32 = 0x7f800000u;

var<workgroup> part: array<vec2<u32>, 256>;

// F32 bits of the logit with this key.
fn bits_of_key(key: u32) -> u32 {
    let up = ~key;
    return select(~up, up ^ 0x80000000u, up >= 0x80000000u);
}

// |x| as an integer in units of 2^(exponent - 188); `exponent` is at least that of x.
fn magnitude64(bits: u32, exponent: u32) -> vec2<u32> {
    let own = (bits >> 23u) & 0xffu;
    let fraction = bits & 0x7fffffu;
    let whole = select(fraction | 0x800000u, fraction, own == 0u);
    return shr64(shl64(vec2(whole, 0u), 38u), exponent - max(own, 1u));
}

// 2^-(f / 2^64) in units of 2^-63.
fn power(f: vec2<u32>) -> vec2<u32> {
    var steps = array<vec2<u32>, 16>(
        vec2(0x00000000u, 0x80000000u), vec2(0x92436616u, 0x7a92be8au),
        vec2(0xee921c97u, 0x75606373u), vec2(0x154a7089u, 0x70666f76u),
        vec2(0x6b4eb57au, 0x6ba27e65u), vec2(0x8fc24072u, 0x6712460au),
        vec2(0xaa836d6fu, 0x62b39508u), vec2(0xac061b5fu, 0x5e8451cfu),
        vec2(0xfcef3242u, 0x5a827999u), vec2(0x2150a563u, 0x56ac1f75u),
        vec2(0xd8a89c75u, 0x52ff6b54u), vec2(0x48d088d7u, 0x4f7a9930u),
        vec2(0xc6dc54b8u, 0x4c1bf828u), vec2(0xd588e19bu, 0x48e1e9b9u),
        vec2(0xf545eb73u, 0x45cae0f1u), vec2(0xe6243d8au, 0x42d561b3u),
    );
    // Taylor coefficients ln(2)^n / n!, from n = 9 down, in units of 2^-64.
    var series = array<vec2<u32>, 9>(
        vec2(0x5253d395u, 0x000001b5u), vec2(0x0223a5c8u, 0x0000162cu),
        vec2(0xfe2c4586u, 0x0000ffe5u), vec2(0x97c363c4u, 0x000a1848u),
        vec2(0x9e299cc4u, 0x005761ffu), vec2(0xf749cee5u, 0x0276556du),
        vec2(0x82505fc6u, 0x0e35846bu), vec2(0x058b1d51u, 0x3d7f7bffu),
        vec2(0xd1cf79acu, 0xb17217f7u),
    );
    let rest = vec2(f.x, f.y & 0x0fffffffu);
    var sum = series[0];
    for (var n = 1u; n < 9u; n += 1u) {
        sum = sub64(series[n], mul_high64(sum, rest));
    }
    let step = steps[f.y >> 28u];
    return sub64(step, mul_high64(step, mul_high64(sum, rest)));
}

fn weight(key: u32, greatest_key: u32) -> vec2<u32> {
    if key == greatest_key {
        return shl64(vec2(1u, 0u), p.fraction);
    }
    let x = bits_of_key(key);
    let greatest = bits_of_key(greatest_key);
    if x == (INFINITY_BITS | 0x80000000u) || greatest == INFINITY_BITS {
        return vec2(0u, 0u);
    }
    let exponent = max(1u, max((x >> 23u) & 0xffu, (greatest >> 23u) & 0xffu));
    let a = magnitude64(greatest, exponent);
    let b = magnitude64(x, exponent);
    // maximum - x > 0. The difference has three cases: signs differ, both positive, both negative.
    var d = add64(a, b);
    if (x ^ greatest) < 0x80000000u {
        if x < 0x80000000u {
            d = sub64(a, b);
        } else {
            d = sub64(b, a);
        }
    }
    let zeros = leading_zeros64(d);
    let product = mul_high64(shl64(d, zeros), vec2(p.c_low, p.c_high));
    // t = product 2^e
    let e = bitcast<i32>(exponent) - 188 - bitcast<i32>(zeros) + p.c_exponent + 64;
    if e >= 0 {
        return vec2(0u, 0u);
    }
    let shift = bitcast<u32>(-e);
    let whole = shr64(product, shift);
    var f = vec2(0u, 0u);
    if shift <= 64u {
        f = shl64(product, 64u - shift);
    } else {
        f = shr64(product, shift - 64u);
    }
    if whole.y != 0u || whole.x >= 64u {
        return vec2(0u, 0u);
    }
    let drop = 63u - p.fraction + whole.x;
    let rounding = shl64(vec2(1u, 0u), drop - 1u);
    return shr64(add64(power(f), rounding), drop);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let block = flat_group(group, count);
    if block >= p.rows * p.blocks {
        return;
    }
    let row = block / p.blocks;
    let i = block % p.blocks * 256u + local;
    var own = vec2(0u, 0u);
    if i < p.kept {
        own = weight(keys[row * p.row_stride + i], keys[row * p.row_stride]);
        weights[(row * p.kept + i) * 2u] = own.x;
        weights[(row * p.kept + i) * 2u + 1u] = own.y;
    }
    part[local] = own;
    workgroupBarrier();
    for (var step = 128u; step > 0u; step /= 2u) {
        if local < step {
            part[local] = add64(part[local], part[local + step]);
        }
        workgroupBarrier();
    }
    if local == 0u {
        sums[block * 2u] = part[0].x;
        sums[block * 2u + 1u] = part[0].y;
    }
}
