// Sum of the partial dot products of eight adjacent threads that share a key. All eight threads
// receive the sum if clusters have at least eight threads.
// uses cluster.wgsl: CLUSTER, shuffle_xor

const SHARES_PRODUCTS: bool = CLUSTER >= 8u;

// Tree summation: scores are exponents, so the rounding error of a sequential sum would be visible.
fn sum_of_eight(own: f32) -> f32 {
    var sum = own;
    for (var mask = 4u; mask > 0u; mask /= 2u) {
        sum += bitcast<f32>(shuffle_xor(bitcast<u32>(sum), mask));
    }
    return sum;
}
