// Result y as words.

@group(0) @binding(4) var<storage, read_write> y_data: array<u32>;
