// The place along an axis of `len` elements that an index names: negative ones count from the end, those
// outside are clamped. `len` is not 0.
fn named(index: u32, len: u32) -> u32 {
    let n = bitcast<i32>(len);
    let i = bitcast<i32>(index);
    return bitcast<u32>(clamp(select(i, i + n, i < 0), 0, n - 1));
}
