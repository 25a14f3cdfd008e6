// Maps a workgroup of 256 threads to 256 / THREADS rows, THREADS threads per row. Adjacent threads
// are on one row (ACROSS = 0) or on adjacent rows (ACROSS = 1), depending on which are contiguous
// in memory.
// uses cluster.wgsl: CLUSTER

override THREADS: u32 = 256u;
override ACROSS: u32 = 0u;

// Number of rows of a workgroup.
fn group_rows() -> u32 {
    return 256u / THREADS;
}

var<private> local: u32;
// The row within the workgroup, and the index of this thread in the row.
var<private> own_row: u32;
var<private> thread: u32;

fn take_place(index: u32) {
    local = index;
    own_row = select(index / THREADS, index % group_rows(), ACROSS == 1u);
    thread = select(index % THREADS, index / group_rows(), ACROSS == 1u);
}

// Threads of a row that form one cluster. All threads of a cluster receive the results of its
// reductions.
const ALIKE: u32 = select(min(CLUSTER, THREADS), 1u, ACROSS == 1u);
// Clusters of a row. Shared memory exchanges one value per cluster.
const CLUSTERS: u32 = THREADS / ALIKE;

// Workgroup index of thread `t` of this thread's row.
fn mate(t: u32) -> u32 {
    return select(own_row * THREADS + t, t * group_rows() + own_row, ACROSS == 1u);
}
