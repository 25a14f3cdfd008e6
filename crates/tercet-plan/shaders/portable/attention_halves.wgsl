// Unpacks two words of F16 or BF16 to four floats. The including attention kernel declares DTYPE.
// uses attention_common.wgsl or rope_turn.wgsl: DTYPE
// uses prelude.wgsl: F16, F32
fn halves(a: u32, b: u32) -> vec4<f32> {
    if (DTYPE == F16) {
        return vec4<f32>(unpack2x16float(a), unpack2x16float(b));
    }
    let words = vec4<u32>(a << 16u, a & 0xffff0000u, b << 16u, b & 0xffff0000u);
    return bitcast<vec4<f32>>(words);
}

// Unpacks four elements of a 16-byte chunk. `part` selects the first or the last four 16-bit
// elements.
fn four(chunk: vec4<u32>, part: u32) -> vec4<f32> {
    if DTYPE == F32 {
        return bitcast<vec4<f32>>(chunk);
    }
    let two = select(chunk.xy, chunk.zw, part == 1u);
    return halves(two.x, two.y);
}
