// Checked state write: the last states of a step are a state of the graph. If the record of a data
// check reports a failed run, nothing is written.
// uses state_step.wgsl: p

@group(0) @binding(9) var<storage, read> faults: array<u32>;

fn may_write() -> bool {
    for (var check = 0u; check < p.checks; check += 1u) {
        if faults[check * 64u] != 0u {
            return false;
        }
    }
    return true;
}
