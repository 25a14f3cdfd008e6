// Position of a window in a tensor. `p.sizes` is the shape of the tensor, `p.window` that of the
// window, and `starts` contains one number per axis. Negative starts count from the end. All starts
// are clamped so that the window fits.
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
