// Cluster with shuffles: cluster.wgsl for devices whose subgroups have at least CLUSTER threads.

override CLUSTER: u32 = 4u;

fn shuffle_xor(x: u32, mask: u32) -> u32 {
    return subgroupShuffleXor(x, mask);
}

fn shuffle_xor2(x: vec2<u32>, mask: u32) -> vec2<u32> {
    return subgroupShuffleXor(x, mask);
}

fn shuffle_xor4(x: vec4<f32>, mask: u32) -> vec4<f32> {
    return subgroupShuffleXor(x, mask);
}
