// concat.wgsl with units of four words; each vector comes from one operand.
// uses concat.wgsl: find, p, unit_of_operand, y
// uses prelude.wgsl: flat_group

alias Unit = vec4<u32>;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, count) * 256u + local;
    if i >= p.numel {
        return;
    }
    let found = find(i);
    if found.is_ours {
        y[i] = unit_of_operand(found.operand, found.at);
    }
}
