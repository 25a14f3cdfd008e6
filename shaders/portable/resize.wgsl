// y = sum over taps of weights times elements of x: COUNT taps along each of the AXES that change. `taps`
// holds for such an axis from `first[axis]` on, result by result, the index of each tap and then its weight
// (the bits of an f32). Elements of weight 0 are not read. With COUNT = 1 elements move by bits. One
// invocation writes one word.

struct Params {
    shape: array<vec4<u32>, 2>,
    strides: array<vec4<u32>, 2>,
    first: array<vec4<u32>, 2>,
    numel: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read> taps: array<u32>;
@group(0) @binding(3) var<storage, read_write> y: array<u32>;

override DTYPE: u32 = 0u;
override RANK: u32 = 4u;
// Bit i is set where axis i changes; AXES are counted.
override CHANGED: u32 = 0u;
override AXES: u32 = 2u;
override COUNT: u32 = 2u;

// Of each axis that changes: the place of its first tap, and its stride.
struct Axes {
    tap: vec3<u32>,
    stride: vec3<u32>,
    base: u32,
}

fn axes_at(i: u32) -> Axes {
    var rest = i;
    var axes: Axes;
    axes.base = p.offset;
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

fn nearest_bits(i: u32) -> u32 {
    let axes = axes_at(i);
    var at = axes.base;
    for (var axis = 0u; axis < AXES; axis += 1u) {
        at += step_of(axes, axis, 0u);
    }
    let per = lanes(DTYPE);
    return bits_of(x[at / per], at % per, 4u / per);
}

fn term(at: u32, weight: f32) -> f32 {
    if weight == 0.0 {
        return 0.0;
    }
    return weight * float_of(x[word_of(at, DTYPE)], lane_of(at, DTYPE), DTYPE);
}

fn sum_bits(i: u32) -> u32 {
    let axes = axes_at(i);
    var sum = 0.0;
    for (var a = 0u; a < COUNT; a += 1u) {
        let at_a = axes.base + step_of(axes, 0u, a);
        let weight_a = weight_of(axes, 0u, a);
        if AXES == 1u {
            sum += term(at_a, weight_a);
            continue;
        }
        for (var b = 0u; b < COUNT; b += 1u) {
            let at_b = at_a + step_of(axes, 1u, b);
            let weight_b = weight_a * weight_of(axes, 1u, b);
            if AXES == 2u {
                sum += term(at_b, weight_b);
                continue;
            }
            for (var c = 0u; c < COUNT; c += 1u) {
                sum += term(at_b + step_of(axes, 2u, c), weight_b * weight_of(axes, 2u, c));
            }
        }
    }
    return float_bits(sum, DTYPE);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let word = flat_group(group, groups) * 128u + local;
    let per = lanes(DTYPE);
    if word * per >= p.numel {
        return;
    }
    var out = 0u;
    for (var lane = 0u; lane < per; lane += 1u) {
        let i = word * per + lane;
        if i < p.numel {
            var bits = 0u;
            if COUNT == 1u {
                bits = nearest_bits(i);
            } else {
                bits = sum_bits(i);
            }
            out |= bits << (lane * (32u / per));
        }
    }
    y[word] = out;
}
