// Normalizes an index along an axis of `len` elements: negative indices count from the end,
// out-of-range indices are clamped. `len` must not be 0.
fn named(index: u32, len: u32) -> u32 {
    let n = bitcast<i32>(len);
    let i = bitcast<i32>(index);
    return bitcast<u32>(clamp(select(i, i + n, i < 0), 0, n - 1));
}
