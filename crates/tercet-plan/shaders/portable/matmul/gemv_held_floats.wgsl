// Float variant of `gemv_held.wgsl`: the activation row as floats.

// Number of weights of a column that a thread multiplies at once.
const TAKE: u32 = 32u;
// Vectors in the shared tile per TAKE weights.
const HELD: u32 = 8u;

// Stores the loaded row elements in the tile.
fn fill(local: u32) {
    for (var i = 0u; i < FETCHED; i += 1u) {
        let at = fetched_at(i, local);
        if at < TAKE * SLICES {
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

fn ask_for_queue() {
}

fn needs_floats() -> bool {
    return false;
}

fn take_anew(take: u32, part: u32) {
}

fn sum_of_held(held: Held) -> f32 {
    return sum_of_floats(held);
}
