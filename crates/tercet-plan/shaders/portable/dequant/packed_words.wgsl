// Quantized weights as words. Loads may begin in the middle of a word, at an even byte.

@group(0) @binding(2) var<storage, read> b_data: array<u32>;

fn packed_word(i: u32) -> u32 {
    return b_data[i];
}

// Loads 16 bytes from byte i.
fn load_quad(i: u32) -> vec4<u32> {
    let at = i / 4u;
    let words = vec4<u32>(b_data[at], b_data[at + 1u], b_data[at + 2u], b_data[at + 3u]);
    if (i & 2u) == 0u {
        return words;
    }
    return (words >> vec4<u32>(16u)) | (vec4<u32>(words.yzw, b_data[at + 4u]) << vec4<u32>(16u));
}

// Loads 4 bytes from byte i.
fn load_word(i: u32) -> u32 {
    return quad_at(i);
}
