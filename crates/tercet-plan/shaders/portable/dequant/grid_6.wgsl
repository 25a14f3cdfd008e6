// Rows of a codebook; one unused word for schemes without a codebook.

@group(0) @binding(6) var<storage, read> grid: array<u32>;
