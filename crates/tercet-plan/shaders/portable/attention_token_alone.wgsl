// Bindings of the data-check records for attention_token.wgsl. Variant for ordinary barriers
// between dispatches.

@group(0) @binding(13) var<storage, read> faults: array<u32>;
