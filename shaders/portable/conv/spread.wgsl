// What kernels of transposed convolutions share: result p along an axis takes element i at tap t where
// p + pad = i stride + t dilation. Windows stand on the result, whose sizes are out_*; size_* are those of x.
// uses conv/windows.wgsl: p

// The element that a tap reaches a place of the padded result from; beyond the axis where it does not.
fn element_of_tap(place: u32, tap: u32, dilation: u32, stride: u32) -> u32 {
    let reach = tap * dilation;
    if place < reach || (place - reach) % stride != 0u {
        return 0xffffffffu;
    }
    return (place - reach) / stride;
}

// A window on the padded result.
fn padded_at(window: u32) -> vec3<u32> {
    let row = window / p.out_w;
    return vec3<u32>(row / p.out_h + p.pad_d, row % p.out_h + p.pad_h, window % p.out_w + p.pad_w);
}
