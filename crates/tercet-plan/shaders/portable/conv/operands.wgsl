// Operands of a float convolution: x and y as words, and a bias per output channel.

@group(0) @binding(1) var<storage, read> x_data: array<u32>;
@group(0) @binding(3) var<storage, read> bias_data: array<u32>;
@group(0) @binding(4) var<storage, read_write> y_data: array<u32>;

override BIAS: u32 = 0u;
override ACTIVATION: u32 = 0u;

fn x_at(at: u32, inside: bool) -> f32 {
    let i = select(0u, at, inside);
    return select(0.0, element_of(x_data[word_of(i, A_TYPE)], i, A_TYPE), inside);
}
