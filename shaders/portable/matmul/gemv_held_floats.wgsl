// The row as floats, after `gemv_held.wgsl`.

// Puts what was fetched where the slices take it.
fn fill(local: u32) {
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        if at < 32u * SLICES {
            let spot = spot_of(at);
            memory[spot.y * TILE_ROW + spot.x] = fetched[i];
        }
    }
    workgroupBarrier();
}

fn hold(slice: u32) {
    for (var quad = 0u; quad < QUADS; quad += 1u) {
        x[quad] = memory[quad * TILE_ROW + slice];
    }
    sum_up();
}

fn takes_floats(take: u32) -> bool {
    return false;
}

fn sum_of_held(held: Held) -> f32 {
    return sum_of_floats(held);
}
