// One element of a softmax, computed from the row statistics: the maximum, and 1 / sum(exp(x -
// max)) or the logarithm of that sum (LOG = 1).
// uses prelude.wgsl: as_float, magnitude, nan

override LOG: u32 = 0u;

struct Row {
    greatest: f32,
    factor: f32,
}

// e^x for x <= 0; results below the smallest normal number are 0.
fn exp_below(x: f32) -> f32 {
    if x < -87.0 {
        return 0.0;
    }
    let n = round(x * 1.44269502);
    // ln(2) as two constants. The first has 9 bits, so its product with n is exact.
    let r = (x - n * 0.693359375) + n * 0.000212194442;
    let p = 0.00833327183 + r * (0.00139465361 + r * 0.000199145463);
    let q = r + r * r * (0.5 + r * (0.166666672 + r * (0.0416662618 + r * p)));
    return (1.0 + q) * bitcast<f32>(u32(i32(n) + 127) << 23u);
}

// The part of an element's result that needs only the row maximum: x - max with LOG = 1, otherwise
// exp(x - max).
fn part_of(x: f32, greatest: f32) -> f32 {
    if LOG == 1u {
        return x - greatest;
    }
    return exp_below(x - greatest);
}

// A row with NaN or infinity is NaN. A row of only -inf is 0, or -inf with LOG = 1.
fn value_of(part: f32, row: Row) -> f32 {
    if magnitude(row.greatest) >= 0x7f800000u {
        let none = as_float(select(0u, 0xff800000u, LOG == 1u));
        return select(nan(), none, bitcast<u32>(row.greatest) == 0xff800000u);
    }
    if LOG == 1u {
        return part - row.factor;
    }
    return part * row.factor;
}
