// Index arithmetic of transposed convolutions. Result p along an axis receives element i at tap t
// if p + pad = i stride + t dilation. Windows are positioned on the result, which has sizes out_*;
// size_* are the sizes of x.
// uses conv/windows.wgsl: p

// Element of x that contributes to a padded result position at a tap. Returns an index beyond the
// axis if no element contributes.
fn element_of_tap(place: u32, tap: u32, dilation: u32, stride: u32) -> u32 {
    let reach = tap * dilation;
    if place < reach || (place - reach) % stride != 0u {
        return 0xffffffffu;
    }
    return (place - reach) / stride;
}

// Position of a window in the padded result.
fn padded_at(window: u32) -> vec3<u32> {
    let row = window / p.out_w;
    return vec3<u32>(row / p.out_h + p.pad_d, row % p.out_h + p.pad_h, window % p.out_w + p.pad_w);
}
