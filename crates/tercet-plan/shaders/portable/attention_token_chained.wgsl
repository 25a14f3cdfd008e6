// Bindings of the dependent-launch counters (chain.wgsl) and of the data-check records for
// attention_token.wgsl.

@group(0) @binding(13) var<storage, read_write> chain: array<atomic<u32>>;
@group(0) @binding(14) var<storage, read> faults: array<u32>;
