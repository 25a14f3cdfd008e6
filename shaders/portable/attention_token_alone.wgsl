// The records of data checks, for attention_token.wgsl between barriers of the device.

@group(0) @binding(13) var<storage, read> faults: array<u32>;
