// Index arithmetic of windows for convolution and pooling. x [N, C, D, H, W] is a view with a
// stride per axis; offsets of reversed axes wrap. There are AXES spatial axes, at most three;
// missing leading axes have size 1. An index before an axis wraps to a large number.

struct Params {
    batch: u32,
    groups: u32,
    m: u32,
    k: u32,
    channels: u32,
    windows: u32,
    x_offset: u32,
    x_batch: u32,
    x_channel: u32,
    x_deep: u32,
    x_row: u32,
    x_col: u32,
    size_d: u32,
    size_h: u32,
    size_w: u32,
    out_d: u32,
    out_h: u32,
    out_w: u32,
    stride_d: u32,
    stride_h: u32,
    stride_w: u32,
    dilation_d: u32,
    dilation_h: u32,
    dilation_w: u32,
    pad_d: u32,
    pad_h: u32,
    pad_w: u32,
    end_d: u32,
    end_h: u32,
    end_w: u32,
    bias_offset: u32,
    bias_row: u32,
    bias_stride: u32,
    zero: u32,
}

@group(0) @binding(0) var<uniform> p: Params;

override AXES: u32 = 2u;
override KD: u32 = 1u;
override KH: u32 = 3u;
override KW: u32 = 3u;

const TAPS: u32 = KD * KH * KW;

// Coordinates of tap `t` in a window, along the spatial axes.
fn tap_at(t: u32) -> vec3<u32> {
    return vec3<u32>(
        (t / (KH * KW)) * p.dilation_d,
        (t / KW) % KH * p.dilation_h,
        (t % KW) * p.dilation_w,
    );
}

// Coordinates of the first tap of a window.
fn window_at(window: u32) -> vec3<u32> {
    let row = window / p.out_w;
    return vec3<u32>(
        (row / p.out_h) * p.stride_d - p.pad_d,
        (row % p.out_h) * p.stride_h - p.pad_h,
        (window % p.out_w) * p.stride_w - p.pad_w,
    );
}

fn is_inside(at: vec3<u32>) -> bool {
    var inside = at.z < p.size_w;
    if AXES > 1u {
        inside = inside && at.y < p.size_h;
    }
    if AXES > 2u {
        inside = inside && at.x < p.size_d;
    }
    return inside;
}

fn place_of(at: vec3<u32>) -> u32 {
    return at.x * p.x_deep + at.y * p.x_row + at.z * p.x_col;
}
