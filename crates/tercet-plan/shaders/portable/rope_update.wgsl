// RoPE with DynamicUpdate: writes the rotated heads of rope.wgsl to a window of the dense state y,
// at `starts`. The heads of y have the same size, a multiple of a word. If the record of a data
// check reports a failed run, nothing is written. A thread writes one word.
// uses prelude.wgsl: flat_group, lanes
// uses rope.wgsl: p, turned
// uses rope_turn.wgsl: DTYPE
// uses window.wgsl: size_of, start_of

@group(0) @binding(4) var<storage, read> starts: array<u32>;
@group(0) @binding(5) var<storage, read_write> y: array<u32>;
@group(0) @binding(6) var<storage, read> faults: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, count) * 256u + local;
    let n = lanes(DTYPE);
    let i = word * n;
    if (i >= p.numel) {
        return;
    }
    // The fault records are tested right before the write, so that no earlier instruction waits for
    // their loads.
    var failed = 0u;
    for (var check = 0u; check < p.checks; check += 1u) {
        failed |= faults[check * 64u];
    }
    let second = i / p.head_dim % p.second;
    let first = i / p.head_dim / p.second % p.first;
    let batch = i / p.head_dim / p.second / p.first;
    let row = ((start_of(0u) + batch) * size_of(1u) + start_of(1u) + first) * size_of(2u)
        + start_of(2u) + second;
    var bits = turned(i);
    if (n == 2u) {
        bits |= turned(i + 1u) << 16u;
    }
    if (failed != 0u) {
        return;
    }
    y[(row * p.head_dim + i % p.head_dim) / n] = bits;
}
