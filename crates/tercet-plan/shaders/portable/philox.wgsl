// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011). Needs
// `scalar/wide.wgsl`.
// uses scalar/wide.wgsl: wide_product

fn philox(start: vec4<u32>, seed: vec2<u32>) -> vec4<u32> {
    var counter = start;
    var key = seed;
    for (var round = 0u; round < 10u; round += 1u) {
        let a = wide_product(0xd2511f53u, counter.x);
        let b = wide_product(0xcd9e8d57u, counter.z);
        counter = vec4(b.x ^ counter.y ^ key.x, b.y, a.x ^ counter.w ^ key.y, a.y);
        key += vec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter;
}
