// The 64-bit product a b, high word first.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let a_low = a & 0xffffu;
    let a_high = a >> 16u;
    let b_low = b & 0xffffu;
    let b_high = b >> 16u;
    let low = a_low * b_low;
    let middle = a_high * b_low + (low >> 16u);
    let other = a_low * b_high + (middle & 0xffffu);
    return vec2<u32>(a_high * b_high + (middle >> 16u) + (other >> 16u), (other << 16u) | (low & 0xffffu));
}
