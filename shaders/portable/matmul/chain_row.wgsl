// The counters of chain.wgsl, for products of one row.

@group(0) @binding(6) var<storage, read_write> chain: array<atomic<u32>>;
