// Empty prologue of a matmul: rows of a are used unchanged.

fn own_squares() -> f32 {
    return 0.0;
}

fn settle(local: u32, again: bool) -> bool {
    return true;
}

fn settled(sum: f32) -> f32 {
    return sum;
}
