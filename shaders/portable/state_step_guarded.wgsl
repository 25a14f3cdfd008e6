// Last states of a step that are a state of the graph: nothing is written if the record of some data check says that the
// run failed.
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
