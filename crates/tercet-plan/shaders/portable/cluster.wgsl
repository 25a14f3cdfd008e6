// Cluster without shuffles. A cluster is a group of CLUSTER consecutive threads of a workgroup that
// exchange values without shared memory. CLUSTER is a power of two, the first thread's index is a
// multiple of it, and all threads belong to one subgroup. CLUSTER = 1 if the device has no shuffles
// or numbers threads in another order; kernels do not call these functions if CLUSTER is 1.

const CLUSTER: u32 = 1u;

// Value of the cluster's thread whose index differs in the bits of `mask`; `mask` < CLUSTER. All
// threads of the workgroup must call the shuffle functions.
fn shuffle_xor(x: u32, mask: u32) -> u32 {
    return x;
}

fn shuffle_xor2(x: vec2<u32>, mask: u32) -> vec2<u32> {
    return x;
}

fn shuffle_xor4(x: vec4<f32>, mask: u32) -> vec4<f32> {
    return x;
}
