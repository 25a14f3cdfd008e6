// y = four Philox random words per counter, with one key for all counters. A thread computes the
// words of one counter.
// uses philox.wgsl: philox
// uses prelude.wgsl: flat_group

struct Params {
    counters: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> counter: array<u32>;
@group(0) @binding(2) var<storage, read> key: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, count) * 256u + local;
    if i >= p.counters {
        return;
    }
    let at = i * 4u;
    let start = vec4(counter[at], counter[at + 1u], counter[at + 2u], counter[at + 3u]);
    let words = philox(start, vec2(key[0], key[1]));
    for (var j = 0u; j < 4u; j += 1u) {
        y[at + j] = words[j];
    }
}
