// Resize: y = weighted sum of elements of x, with COUNT taps along each of the AXES resized axes.
// For a resized axis, `taps` contains the index and the weight (F32 bits) of each tap, output by
// output, from `first[axis]`. Elements with weight 0 are not read. With COUNT = 1, elements are
// copied bit for bit.
//
// The result is split into planes. A plane covers the RANK axes from the first resized one on. A
// thread computes the taps of one word once, and then applies them to EACH planes. Planes begin at
// whole words.
// uses halves.wgsl: half_of, two_bits
// uses prelude.wgsl: F32, bits_of, flat_group, lane_of, lanes, word_of

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    first: array<vec4<u32>, 2>,
    places: u32,
    planes: u32,
    plane_stride: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> taps: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;
override RANK: u32 = 4u;
// Bit i is set if axis i of a plane is resized; AXES is the number of set bits.
override CHANGED: u32 = 0u;
override AXES: u32 = 2u;
override COUNT: u32 = 2u;
override EACH: u32 = 1u;

// For each resized axis: the index of its first tap, and its stride.
struct Axes {
    tap: vec3<u32>,
    stride: vec3<u32>,
    base: u32,
}

fn axes_at(place: u32, first: u32) -> Axes {
    var rest = place;
    var axes: Axes;
    axes.base = first;
    var changed = AXES;
    for (var k = 0u; k < RANK; k += 1u) {
        let axis = RANK - (k + 1u);
        let size = p.shape[axis / 4u][axis % 4u];
        let stride = p.strides[axis / 4u][axis % 4u];
        let at = rest % size;
        rest /= size;
        if ((CHANGED >> axis) & 1u) == 0u {
            axes.base += at * stride;
        } else {
            changed -= 1u;
            axes.tap[changed] = p.first[axis / 4u][axis % 4u] + at * COUNT * 2u;
            axes.stride[changed] = stride;
        }
    }
    return axes;
}

fn step_of(axes: Axes, axis: u32, tap: u32) -> u32 {
    return taps[axes.tap[axis] + tap * 2u] * axes.stride[axis];
}

fn weight_of(axes: Axes, axis: u32, tap: u32) -> f32 {
    return bitcast<f32>(taps[axes.tap[axis] + tap * 2u + 1u]);
}

// Per plane: the word, the sum of the current element, and the sum of the previous element of the
// word.
var<private> words: array<u32, EACH>;
var<private> sums: array<f32, EACH>;
var<private> sums_before: array<f32, EACH>;
var<private> loaded: array<u32, EACH>;

// Offset of plane `plane + j`. Planes beyond the end are clamped to the last; their words are not
// stored.
fn plane_at(plane: u32, j: u32) -> u32 {
    return (min(plane + j, p.planes - 1u) - plane) * p.plane_stride;
}

fn move_bits(axes: Axes, plane: u32, lane: u32) {
    var at = axes.base;
    for (var axis = 0u; axis < AXES; axis += 1u) {
        at += step_of(axes, axis, 0u);
    }
    let per = lanes(DTYPE);
    for (var j = 0u; j < EACH; j += 1u) {
        let i = at + plane_at(plane, j);
        words[j] |= bits_of(x[i / per], i % per, 4u / per) << (lane * (32u / per));
    }
}

fn add(at: u32, weight: f32, plane: u32) {
    if weight == 0.0 {
        return;
    }
    // All loads are issued before the first conversion, which may branch.
    for (var j = 0u; j < EACH; j += 1u) {
        loaded[j] = x[word_of(at + plane_at(plane, j), DTYPE)];
    }
    for (var j = 0u; j < EACH; j += 1u) {
        if DTYPE == F32 {
            sums[j] += weight * bitcast<f32>(loaded[j]);
        } else {
            sums[j] += weight * half_of(loaded[j], lane_of(at + plane_at(plane, j), DTYPE), DTYPE);
        }
    }
}

fn sum_taps(axes: Axes, plane: u32) {
    for (var a = 0u; a < COUNT; a += 1u) {
        let at_a = axes.base + step_of(axes, 0u, a);
        let weight_a = weight_of(axes, 0u, a);
        if AXES == 1u {
            add(at_a, weight_a, plane);
            continue;
        }
        for (var b = 0u; b < COUNT; b += 1u) {
            let at_b = at_a + step_of(axes, 1u, b);
            let weight_b = weight_a * weight_of(axes, 1u, b);
            if AXES == 2u {
                add(at_b, weight_b, plane);
                continue;
            }
            for (var c = 0u; c < COUNT; c += 1u) {
                add(at_b + step_of(axes, 2u, c), weight_b * weight_of(axes, 2u, c), plane);
            }
        }
    }
}

fn round_sums() {
    for (var j = 0u; j < EACH; j += 1u) {
        if DTYPE == F32 {
            words[j] = bitcast<u32>(sums[j]);
        } else {
            words[j] = two_bits(vec2<f32>(sums_before[j], sums[j]), DTYPE);
        }
    }
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let per = lanes(DTYPE);
    let words_of = (p.places + per - 1u) / per;
    let i = flat_group(group, groups) * 128u + local;
    let plane = i / words_of * EACH;
    if plane >= p.planes {
        return;
    }
    let word = i % words_of;
    let first = p.offset + plane * p.plane_stride;
    words = array<u32, EACH>();
    for (var lane = 0u; lane < per; lane += 1u) {
        let place = word * per + lane;
        sums_before = sums;
        sums = array<f32, EACH>();
        if place < p.places {
            let axes = axes_at(place, first);
            if COUNT == 1u {
                move_bits(axes, plane, lane);
            } else {
                sum_taps(axes, plane);
            }
        }
    }
    if COUNT > 1u {
        round_sums();
    }
    for (var j = 0u; j < EACH; j += 1u) {
        if plane + j < p.planes {
            y[(plane + j) * words_of + word] = words[j];
        }
    }
}
