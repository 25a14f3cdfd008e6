// RoPE to a dense result: see rope.wgsl. A thread writes one word.
// uses prelude.wgsl: flat_group, lanes
// uses rope.wgsl: p, turned
// uses rope_turn.wgsl: DTYPE

@group(0) @binding(4) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, count) * 256u + local;
    let n = lanes(DTYPE);
    if (word * n >= p.numel) {
        return;
    }
    var bits = turned(word * n);
    if (n == 2u && word * 2u + 1u < p.numel) {
        bits |= turned(word * 2u + 1u) << 16u;
    }
    y[word] = bits;
}
