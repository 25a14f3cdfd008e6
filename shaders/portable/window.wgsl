// Where a window lies in a tensor: `p.sizes` are the tensor's, `p.window` the window's, `starts` has
// one number for each axis. Negative ones count from the end, then they are clamped so that the
// window fits.
// uses dynamic_slice.wgsl or dynamic_update.wgsl or dynamic_update_copy.wgsl or rope.wgsl or rope_append.wgsl: p
// uses dynamic_slice.wgsl or dynamic_update.wgsl or dynamic_update_copy.wgsl or rope_append.wgsl or rope_update.wgsl: starts

fn size_of(axis: u32) -> u32 {
    return p.sizes[axis / 4u][axis % 4u];
}

fn window_of(axis: u32) -> u32 {
    return p.window[axis / 4u][axis % 4u];
}

fn start_of(axis: u32) -> u32 {
    let size = bitcast<i32>(size_of(axis));
    let start = bitcast<i32>(starts[axis]);
    let last = size - bitcast<i32>(window_of(axis));
    return bitcast<u32>(clamp(select(start, start + size, start < 0), 0, last));
}
