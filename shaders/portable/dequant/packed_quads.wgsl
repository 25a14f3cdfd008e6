// Packed weights by quads of words: blocks begin with one.

@group(0) @binding(2) var<storage, read> b_data: array<vec4<u32>>;

fn packed_word(i: u32) -> u32 {
    return b_data[i / 4u][i % 4u];
}

fn window(i: u32) -> vec4<u32> {
    return b_data[i / 16u];
}

fn window_end(i: u32) -> u32 {
    return 0u;
}

fn is_odd(i: u32) -> bool {
    return false;
}
