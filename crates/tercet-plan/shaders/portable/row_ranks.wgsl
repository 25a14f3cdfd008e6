// Order-preserving integer keys of floats, so that integer comparisons find the maximum. NaN has
// the greatest key.

fn rank_of(x: f32) -> i32 {
    let i = bitcast<i32>(x);
    let rank = select(i, i ^ 0x7fffffff, i < 0);
    return select(rank, 0x7fffffff, (i & 0x7fffffff) > 0x7f800000);
}

fn of_rank(rank: i32) -> f32 {
    return bitcast<f32>(select(rank, rank ^ 0x7fffffff, rank < 0));
}
