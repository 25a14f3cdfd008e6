// Quantized weights as 16-byte vectors. Every 16-byte load is aligned.

@group(0) @binding(2) var<storage, read> b_data: array<vec4<u32>>;

// Vector offset of byte 0.
var<private> row_quads: u32 = 0u;

fn packed_word(i: u32) -> u32 {
    return b_data[row_quads + i / 4u][i % 4u];
}

// Loads 16 bytes from byte i.
fn load_quad(i: u32) -> vec4<u32> {
    return b_data[row_quads + i / 16u];
}

// Loads 4 bytes from byte i.
fn load_word(i: u32) -> u32 {
    return packed_word(i / 4u);
}
