// Binding of the dependent-launch counters (chain.wgsl) for GEMV kernels.

@group(0) @binding(6) var<storage, read_write> chain: array<atomic<u32>>;
