// Operand b as words.

@group(0) @binding(2) var<storage, read> b_data: array<u32>;
