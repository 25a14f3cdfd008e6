// im2col: y[n, (c, tap), window] = x[n, c, window, tap], zero in the padding, bit for bit. A thread
// writes one word: 4 / ELEM_BYTES elements.
// uses conv/windows.wgsl: TAPS, is_inside, p, place_of, tap_at, window_at
// uses prelude.wgsl: bits_of, flat_group

@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> y: array<u32>;

override ELEM_BYTES: u32 = 4u;

fn bits_at(i: u32) -> u32 {
    let window = i % p.windows;
    let row = (i / p.windows) % p.k;
    let at = window_at(window) + tap_at(row % TAPS);
    if !is_inside(at) {
        return 0u;
    }
    let source = p.x_offset + (i / p.windows / p.k) * p.x_batch + (row / TAPS) * p.x_channel + place_of(at);
    let lanes = 4u / ELEM_BYTES;
    return bits_of(x[source / lanes], source % lanes, ELEM_BYTES);
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let lanes = 4u / ELEM_BYTES;
    let word = flat_group(group, groups) * 256u + local;
    let numel = p.batch * p.k * p.windows;
    if word * lanes >= numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < lanes; lane += 1u) {
        let i = word * lanes + lane;
        if i < numel {
            out |= bits_at(i) << (lane * ELEM_BYTES * 8u);
        }
    }
    y[word] = out;
}
