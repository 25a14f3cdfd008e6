// A workgroup of 256 invocations over 256 / THREADS rows, THREADS invocations each. Neighbouring invocations are
// on one row (ACROSS = 0) or on neighbouring rows (ACROSS = 1), whichever lie side by side in memory.
// uses cluster.wgsl: CLUSTER

override THREADS: u32 = 256u;
override ACROSS: u32 = 0u;

// The rows of a workgroup.
fn group_rows() -> u32 {
    return 256u / THREADS;
}

var<private> local: u32;
// The row within the workgroup, and the number of this invocation on it.
var<private> own_row: u32;
var<private> thread: u32;

fn take_place(index: u32) {
    local = index;
    own_row = select(index / THREADS, index % group_rows(), ACROSS == 1u);
    thread = select(index % THREADS, index / group_rows(), ACROSS == 1u);
}

// Invocations of a row that are one cluster: what one of them found out with the others by shuffles, all of them know.
const ALIKE: u32 = select(min(CLUSTER, THREADS), 1u, ACROSS == 1u);
// What is left to share in shared memory: a number of each cluster of a row.
const CLUSTERS: u32 = THREADS / ALIKE;

// The invocation that is number `t` on this one's row.
fn mate(t: u32) -> u32 {
    return select(own_row * THREADS + t, t * group_rows() + own_row, ACROSS == 1u);
}
