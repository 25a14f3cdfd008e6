// concat.wgsl with elements of ELEM_BYTES bytes. A thread writes one word, 4 / ELEM_BYTES elements,
// if it contains elements of these operands. With `keep`, elements of other operands in the word
// are preserved.
// uses concat.wgsl: find, p, unit_of_operand, y
// uses prelude.wgsl: bits_of, flat_group

alias Unit = u32;

override ELEM_BYTES: u32 = 4u;

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) count: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, count) * 256u + local;
    let lanes = 4u / ELEM_BYTES;
    if word * lanes >= p.numel {
        return;
    }
    var keep = 0xffffffffu;
    var out = 0u;
    for (var lane = 0u; lane < lanes; lane += 1u) {
        let i = word * lanes + lane;
        let shift = lane * ELEM_BYTES * 8u;
        let mask = bits_of(0xffffffffu, 0u, ELEM_BYTES) << shift;
        if i >= p.numel {
            // Padding is zero.
            keep &= ~mask;
            continue;
        }
        let found = find(i);
        if found.is_ours {
            let own = unit_of_operand(found.operand, found.at / lanes);
            out |= bits_of(own, found.at % lanes, ELEM_BYTES) << shift;
            keep &= ~mask;
        }
    }
    if p.keep == 0u {
        y[word] = out;
    } else if keep != 0xffffffffu {
        y[word] = (y[word] & keep) | out;
    }
}
