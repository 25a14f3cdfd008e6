// Main function of kernels that copy elements bit for bit: one thread per result word of 4 /
// ELEM_BYTES elements. The including kernel defines `bits_at`, and declares `y` and `p` with
// `numel`.
// uses dynamic_slice.wgsl or dynamic_update_copy.wgsl or gather.wgsl or gather_elements.wgsl or gather_nd.wgsl or pad.wgsl or periodic.wgsl or trilu.wgsl: bits_at, p, y
// uses prelude.wgsl: flat_group

override ELEM_BYTES: u32 = 4u;
const LANES: u32 = 4u / ELEM_BYTES;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, count) * 256u + local;
    if word * LANES >= p.numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < LANES; lane += 1u) {
        let i = word * LANES + lane;
        if i < p.numel {
            out |= bits_at(i) << (lane * ELEM_BYTES * 8u);
        }
    }
    y[word] = out;
}
