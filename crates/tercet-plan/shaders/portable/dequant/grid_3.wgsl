// Rows of a codebook; one unused word for schemes without a codebook.

@group(0) @binding(3) var<storage, read> grid: array<u32>;
