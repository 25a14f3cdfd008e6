// The rows of a codebook, or a word that is not read.

@group(0) @binding(7) var<storage, read> grid: array<u32>;
