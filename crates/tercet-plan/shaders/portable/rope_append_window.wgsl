// The row of a state in which a head is stored: rows of a window that begins at `starts`.
// uses window.wgsl: size_of, start_of

fn cache_row(batch: u32, first: u32, second: u32) -> u32 {
    let position = (start_of(0u) + batch) * size_of(1u) + start_of(1u) + first;
    return position * size_of(2u) + start_of(2u) + second;
}
