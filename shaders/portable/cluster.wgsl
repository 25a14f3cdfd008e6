// A cluster: CLUSTER invocations with consecutive numbers within the workgroup, a power of two, the first of them at a
// multiple of it, all in one subgroup. They tell each other without shared memory what a number is where it is theirs.
// 1 where a device has no shuffles, or numbers invocations in another order; then nobody calls these.

const CLUSTER: u32 = 1u;

// The number of the invocation of the cluster whose own number differs in the bits of `mask`, which is below CLUSTER.
// Every invocation of the workgroup must call these.
fn shuffle_xor(x: u32, mask: u32) -> u32 {
    return x;
}

fn shuffle_xor2(x: vec2<u32>, mask: u32) -> vec2<u32> {
    return x;
}

fn shuffle_xor4(x: vec4<f32>, mask: u32) -> vec4<f32> {
    return x;
}
