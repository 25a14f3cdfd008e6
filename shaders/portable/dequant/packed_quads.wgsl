// Packed weights by quads of words: what is read as 16 bytes begins with one.

@group(0) @binding(2) var<storage, read> b_data: array<vec4<u32>>;

// Quads before what byte 0 is.
var<private> row_quads: u32 = 0u;

fn packed_word(i: u32) -> u32 {
    return b_data[row_quads + i / 4u][i % 4u];
}

// The 16 bytes from byte i on.
fn load_quad(i: u32) -> vec4<u32> {
    return b_data[row_quads + i / 16u];
}

// The 4 bytes from byte i on.
fn load_word(i: u32) -> u32 {
    return packed_word(i / 4u);
}
