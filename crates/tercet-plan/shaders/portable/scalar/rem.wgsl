// Remainder of truncated division: it has the sign of a and is exact.
fn f_rem(a: f32, b: f32) -> f32 {
    let a_size = magnitude(a);
    let b_size = magnitude(b);
    if (a_size >= 0x7f800000u || b_size > 0x7f800000u || b_size == 0u) {
        return nan();
    }
    if (a_size < b_size) {
        return a;
    }
    let x = parts(as_float(a_size));
    let y = parts(as_float(b_size));
    let divisor = (bitcast<u32>(y.a) & 0x7fffffu) | 0x800000u;
    var rest = ((bitcast<u32>(x.a) & 0x7fffffu) | 0x800000u) % divisor;
    var e = x.e - y.e;
    while (e > 0 && rest != 0u) {
        let step = min(e, 8);
        rest = (rest << u32(step)) % divisor;
        e -= step;
    }
    return copy_sign(scaled(f32(rest), y.e - 23), a);
}
