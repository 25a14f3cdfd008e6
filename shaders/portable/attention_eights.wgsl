// Eight neighbouring invocations that share a key: the sum of what each has of the product, known to all of them where
// clusters are that large.
// uses cluster.wgsl: CLUSTER, shuffle_xor

const SHARES_PRODUCTS: bool = CLUSTER >= 8u;

// As a tree: scores are exponents, in which the roundings of a longer chain would show.
fn sum_of_eight(own: f32) -> f32 {
    var sum = own;
    for (var mask = 4u; mask > 0u; mask /= 2u) {
        sum += bitcast<f32>(shuffle_xor(bitcast<u32>(sum), mask));
    }
    return sum;
}
