// Operands a and y as words.

@group(0) @binding(1) var<storage, read> a_data: array<u32>;
@group(0) @binding(4) var<storage, read_write> y_data: array<u32>;
