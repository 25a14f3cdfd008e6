//! Cases of reductions with elementwise operators before, between and after them, which executors
//! may fuse.
