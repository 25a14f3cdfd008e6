// Projection of 3D Gaussians to the image: position and conic of J W (R S) (R S)^T W^T J^T + 0.3 in
// pixels (Zwicker et al. 2001), opacity, color, depth, and the tiles within `radius_scale` standard
// deviations. Colors come from HARMONICS real spherical harmonics per channel (1, 4, 9, 16), or
// directly if HARMONICS is 0. Gaussians outside the depth range or the image, or with non-finite
// values, are culled. A thread projects one Gaussian.
// uses prelude.wgsl: flat_group, inf, is_nan, magnitude, order
// uses scalar/exp.wgsl: f_exp
// uses scalar/gate.wgsl: f_sigmoid
// uses splat/common.wgsl: FOOTPRINT_LEN, SPLAT_LEN, is_finite

struct Params {
    count: u32,
    width: u32,
    height: u32,
    // Side of a tile in pixels, and its reciprocal.
    tile: u32,
    per_tile: f32,
    radius_scale: f32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> positions: array<f32>;
@group(0) @binding(2) var<storage, read> log_scales: array<f32>;
@group(0) @binding(3) var<storage, read> rotations: array<f32>;
@group(0) @binding(4) var<storage, read> opacities: array<f32>;
@group(0) @binding(5) var<storage, read> colors: array<f32>;
@group(0) @binding(6) var<storage, read> camera: array<f32>;
@group(0) @binding(7) var<storage, read_write> splats: array<f32>;
@group(0) @binding(8) var<storage, read_write> footprints: array<i32>;

override HARMONICS: u32 = 0u;

const DILATION: f32 = 0.3;
const LEAST_DEPTH: f32 = 1e-6;
// The bits of 2^40. Larger pixel coordinates count as infinite.
const FAR_OUT: u32 = 0x53800000u;
const LEAST_TURN: f32 = 1e-12;

fn row_of_view(i: u32) -> vec3<f32> {
    return vec3(camera[4u * i], camera[4u * i + 1u], camera[4u * i + 2u]);
}

fn is_whole(i: u32) -> bool {
    var all = is_finite(opacities[i]);
    for (var k = 0u; k < 3u; k += 1u) {
        all = all && is_finite(positions[3u * i + k]) && is_finite(log_scales[3u * i + k]);
    }
    for (var k = 0u; k < 4u; k += 1u) {
        all = all && is_finite(rotations[4u * i + k]);
    }
    let numbers = 3u * max(HARMONICS, 1u);
    for (var k = 0u; k < numbers; k += 1u) {
        all = all && is_finite(colors[numbers * i + k]);
    }
    return all;
}

// True if z is strictly between the near plane, at least 1e-6, and the far plane; false for NaN.
fn draws_depth(z: f32) -> bool {
    let near = camera[20];
    let far = camera[21];
    let known = !(is_nan(z) || is_nan(near) || is_nan(far));
    return known && order(z) > order(near) && order(z) > order(LEAST_DEPTH) && order(z) < order(far);
}

// The axes of the ellipsoid as rows: the rotation's columns times the scales, transposed.
fn axes_of(i: u32) -> mat3x3<f32> {
    var q = vec4(rotations[4u * i], rotations[4u * i + 1u], rotations[4u * i + 2u], rotations[4u * i + 3u]);
    let most = max(max(abs(q.x), abs(q.y)), max(abs(q.z), abs(q.w)));
    if most < LEAST_TURN {
        q = vec4(1.0, 0.0, 0.0, 0.0);
    } else {
        q = q / most;
        q = q / sqrt(dot(q, q));
    }
    let w = q.x;
    let x = q.y;
    let y = q.z;
    let z = q.w;
    let at = 3u * i;
    return mat3x3(
        vec3(1.0 - 2.0 * (y * y + z * z), 2.0 * (x * y + w * z), 2.0 * (x * z - w * y)) * f_exp(log_scales[at]),
        vec3(2.0 * (x * y - w * z), 1.0 - 2.0 * (x * x + z * z), 2.0 * (y * z + w * x)) * f_exp(log_scales[at + 1u]),
        vec3(2.0 * (x * z + w * y), 2.0 * (y * z - w * x), 1.0 - 2.0 * (x * x + y * y)) * f_exp(log_scales[at + 2u]),
    );
}

// One row of the linear map from the ellipsoid's axes to pixels.
fn row_of_map(axis: u32, at: vec3<f32>, axes: mat3x3<f32>, side: u32) -> vec3<f32> {
    let focal = camera[16u + axis];
    let limit = abs(0.65 * f32(side) / focal);
    let slope = clamp(at[axis] / at.z, -limit, limit);
    let row = focal / at.z * (row_of_view(axis) - slope * row_of_view(2u));
    return row * axes;
}

// The k-th spherical harmonic of a direction.
fn harmonic(k: u32, d: vec3<f32>) -> f32 {
    let s = d * d;
    let ring = 4.0 * s.z - s.x - s.y;
    switch k {
        case 0u: { return 0.28209479177387814; }
        case 1u: { return -0.4886025119029199 * d.y; }
        case 2u: { return 0.4886025119029199 * d.z; }
        case 3u: { return -0.4886025119029199 * d.x; }
        case 4u: { return 1.0925484305920792 * d.x * d.y; }
        case 5u: { return -1.0925484305920792 * d.y * d.z; }
        case 6u: { return 0.31539156525252005 * (2.0 * s.z - s.x - s.y); }
        case 7u: { return -1.0925484305920792 * d.x * d.z; }
        case 8u: { return 0.5462742152960396 * (s.x - s.y); }
        case 9u: { return -0.5900435899266435 * d.y * (3.0 * s.x - s.y); }
        case 10u: { return 2.890611442640554 * d.x * d.y * d.z; }
        case 11u: { return -0.4570457994644658 * d.y * ring; }
        case 12u: { return 0.3731763325901154 * d.z * (2.0 * s.z - 3.0 * s.x - 3.0 * s.y); }
        case 13u: { return -0.4570457994644658 * d.x * ring; }
        case 14u: { return 1.445305721320277 * d.z * (s.x - s.y); }
        default: { return -0.5900435899266435 * d.x * (s.x - 3.0 * s.y); }
    }
}

fn color_of(i: u32) -> vec3<f32> {
    if HARMONICS == 0u {
        return vec3(colors[3u * i], colors[3u * i + 1u], colors[3u * i + 2u]);
    }
    let shift = vec3(camera[3], camera[7], camera[11]);
    let view = mat3x3(row_of_view(0u), row_of_view(1u), row_of_view(2u));
    // The inverse of a rotation is its transpose.
    let eye = -(view * shift);
    let away = vec3(positions[3u * i], positions[3u * i + 1u], positions[3u * i + 2u]) - eye;
    let direction = away / sqrt(dot(away, away));
    var sum = vec3(0.5);
    for (var k = 0u; k < HARMONICS; k += 1u) {
        let at = 3u * (HARMONICS * i + k);
        sum += harmonic(k, direction) * vec3(colors[at], colors[at + 1u], colors[at + 2u]);
    }
    return max(sum, vec3(0.0));
}

// First and end tile covered along an axis.
fn tiles_of(place: f32, radius: f32, side: u32) -> vec2<i32> {
    let count = f32((side + p.tile - 1u) / p.tile);
    let first = floor((place - radius) * p.per_tile);
    let end = floor((place + radius + f32(p.tile - 1u)) * p.per_tile);
    return vec2(i32(clamp(first, 0.0, count)), i32(clamp(end, 0.0, count)));
}

fn cull(i: u32) {
    for (var k = 0u; k < SPLAT_LEN - 1u; k += 1u) {
        splats[SPLAT_LEN * i + k] = 0.0;
    }
    splats[SPLAT_LEN * i + SPLAT_LEN - 1u] = inf();
    for (var k = 0u; k < FOOTPRINT_LEN; k += 1u) {
        footprints[FOOTPRINT_LEN * i + k] = 0;
    }
}

@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = flat_group(group, groups) * 256u + local;
    if i >= p.count {
        return;
    }
    let x = vec3(positions[3u * i], positions[3u * i + 1u], positions[3u * i + 2u]);
    let at = vec3(
        dot(row_of_view(0u), x) + camera[3],
        dot(row_of_view(1u), x) + camera[7],
        dot(row_of_view(2u), x) + camera[11],
    );
    if !is_whole(i) || !draws_depth(at.z) {
        cull(i);
        return;
    }
    let axes = axes_of(i);
    let a = row_of_map(0u, at, axes, p.width);
    let b = row_of_map(1u, at, axes, p.height);
    // The determinant as a sum of squares: no cancellation, even for very thin splats.
    let own = vec2(dot(a, a), dot(b, b));
    let normal = cross(a, b);
    let xx = own.x + DILATION;
    let yy = own.y + DILATION;
    let xy = dot(a, b);
    let det = dot(normal, normal) + DILATION * (own.x + own.y) + DILATION * DILATION;
    let half_gap = 0.5 * (xx - yy);
    let spread = 0.5 * (xx + yy) + sqrt(max(half_gap * half_gap + xy * xy, 0.1));
    let place = vec2(camera[16], camera[17]) * (at.xy / at.z) + vec2(camera[18], camera[19]);
    if magnitude(spread) >= FAR_OUT || magnitude(place.x) >= FAR_OUT || magnitude(place.y) >= FAR_OUT {
        cull(i);
        return;
    }
    let radius = ceil(p.radius_scale * sqrt(spread));
    let columns = tiles_of(place.x - 0.5, radius, p.width);
    let rows = tiles_of(place.y - 0.5, radius, p.height);
    if columns.x >= columns.y || rows.x >= rows.y {
        cull(i);
        return;
    }
    let color = color_of(i);
    let to = SPLAT_LEN * i;
    splats[to] = place.x;
    splats[to + 1u] = place.y;
    splats[to + 2u] = yy / det;
    splats[to + 3u] = -xy / det;
    splats[to + 4u] = xx / det;
    splats[to + 5u] = f_sigmoid(opacities[i]);
    splats[to + 6u] = color.x;
    splats[to + 7u] = color.y;
    splats[to + 8u] = color.z;
    splats[to + 9u] = at.z;
    let tiles = FOOTPRINT_LEN * i;
    footprints[tiles] = columns.x;
    footprints[tiles + 1u] = rows.x;
    footprints[tiles + 2u] = columns.y;
    footprints[tiles + 3u] = rows.y;
    footprints[tiles + 4u] = i32(radius);
}
