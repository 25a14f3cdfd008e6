// Packed weights by words.

@group(0) @binding(2) var<storage, read> b_data: array<u32>;

fn packed_word(i: u32) -> u32 {
    return b_data[i];
}

// The words from that of byte i on; i is even.
fn window(i: u32) -> vec4<u32> {
    let at = i / 4u;
    return vec4<u32>(b_data[at], b_data[at + 1u], b_data[at + 2u], b_data[at + 3u]);
}

// The word that has bytes i + 14 and i + 15: the fifth of the window where i is not a multiple of 4.
fn window_end(i: u32) -> u32 {
    return b_data[(i + 14u) / 4u];
}

fn is_odd(i: u32) -> bool {
    return (i & 2u) != 0u;
}
