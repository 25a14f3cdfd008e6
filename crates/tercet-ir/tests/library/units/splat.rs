//! Tests that the numbers of test cases keep a distance from discontinuities, and tests of
//! projection and harmonics against their definitions.

use std::collections::BTreeMap;
use std::f64::consts::PI;

use tercet_cases::{CaseGraph, cases};
use tercet_ir::internals::{alpha, covers, drawn, harmonics, prepare};
use tercet_ir::ops::splat::{
    CAMERA_LEN, DEPTH_AT, FOOTPRINT_LEN, Gaussian, GaussianSplatPrepare, GaussianSplatRasterize,
    PinholeCamera, ProjectionImage, RasterLimits, SPLAT_LEN, SplatOptions,
};
use tercet_ir::{DType, Op, OpKind, Tensor};

/// Minimum distance of a number from the threshold at which the result would change, relative to
/// the threshold, or in pixels or tiles.
const MIN_MARGIN: f64 = 2e-4;

/// The smallest distance from a threshold so far, and a description of the number that has it.
#[derive(Clone, Debug)]
struct BranchMargin(f64, String);

impl BranchMargin {
    fn take(&mut self, distance: f64, what: impl FnOnce() -> String) {
        if distance < self.0 {
            *self = BranchMargin(distance, what());
        }
    }
}

fn from_whole(x: f64) -> f64 {
    (x - x.round()).abs()
}

/// Distances of depths, radii and tiles from values at which the result would change.
fn projection_margin(
    tensors: &BTreeMap<String, Tensor>,
    image: &ProjectionImage,
    limits: &RasterLimits,
    margin: &mut BranchMargin,
) {
    let block = tensors["camera"].to_f64s();
    let names = [
        "positions",
        "log_scales",
        "rotations",
        "opacities",
        "colors",
        "camera",
    ];
    let operands = names.map(|name| &tensors[name]);
    let (splats, footprints) = prepare(&operands, *image);
    let positions = operands[0].to_f64s();
    for (i, at) in positions.chunks_exact(3).enumerate() {
        let z = block[8] * at[0] + block[9] * at[1] + block[10] * at[2] + block[11];
        for border in [block[20], block[21]] {
            margin.take((z / border - 1.0).abs(), || format!("depth {z} of {i}"));
        }
        let (own, tiles) = (
            &splats[i * SPLAT_LEN..][..SPLAT_LEN],
            &footprints[i * FOOTPRINT_LEN..][..FOOTPRINT_LEN],
        );
        if tiles[4] == 0 {
            continue;
        }
        let det = own[2] * own[4] - own[3] * own[3];
        let (xx, xy, yy) = (own[4] / det, -own[3] / det, own[2] / det);
        let gap = ((xx - yy) / 2.0).powi(2) + xy * xy;
        let radius = image.radius_scale * ((xx + yy) / 2.0 + gap.max(0.1).sqrt()).sqrt();
        // The distance is relative to the radius, because rounding errors are.
        margin.take(from_whole(radius) / radius, || {
            format!("radius {radius} of {i}")
        });
        let tile = image.tile_size;
        for (axis, sides) in [0, 1].map(|axis| (axis, image.size[axis])) {
            let (place, r) = (own[axis] - 0.5, tiles[4] as f64);
            for edge in [place - r, place + r + tile as f64 - 1.0] {
                let is_inside = edge > -8.0 && edge < (sides.div_ceil(tile) * tile) as f64 + 8.0;
                if is_inside {
                    let share = edge / tile as f64;
                    margin.take(from_whole(share), || format!("tile of {i} at {edge}"));
                }
            }
        }
    }
    for pair in drawn(&splats).windows(2) {
        let [a, b] = [pair[0], pair[1]].map(|i| splats[i * SPLAT_LEN + DEPTH_AT]);
        if a != b && a.is_finite() && b.is_finite() {
            margin.take((b - a).abs() / (100.0 * a.abs()), || {
                format!("depths {a} {b}")
            });
        }
    }
    image_margin(&splats, &footprints, image.size, limits, margin);
}

/// Distances of alphas and transmittances from their thresholds.
fn image_margin(
    splats: &[f64],
    footprints: &[i64],
    [width, height]: [usize; 2],
    limits: &RasterLimits,
    margin: &mut BranchMargin,
) {
    let order = drawn(splats);
    for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
        let mut light = 1.0;
        for &i in &order {
            if !covers(&footprints[i * FOOTPRINT_LEN..], x, y, limits.tile_size) {
                continue;
            }
            let own = &splats[i * SPLAT_LEN..][..SPLAT_LEN];
            let (dx, dy) = (x as f64 + 0.5 - own[0], y as f64 + 0.5 - own[1]);
            let power = -0.5 * (own[2] * dx * dx + own[4] * dy * dy) - own[3] * dx * dy;
            let covered = own[5] * power.exp();
            let cutoff = limits.alpha_cutoff;
            margin.take((covered / cutoff - 1.0).abs(), || {
                format!("alpha {covered} of {i} at {x} {y}")
            });
            let next = light * (1.0 - alpha(own, x, y, cutoff).unwrap_or(0.0));
            let least = limits.transmittance_threshold;
            margin.take((next / least - 1.0).abs(), || {
                format!("light {next} after {i} at {x} {y}")
            });
            if next < least {
                break;
            }
            light = next;
        }
    }
}

/// The data of a case, repeated or truncated to another number of splats, as tests of symbolic
/// sizes do.
fn resized(tensors: &BTreeMap<String, Tensor>, count: usize) -> BTreeMap<String, Tensor> {
    let fixed = ["camera", "background"];
    let own = tensors.iter().map(|(name, tensor)| {
        let mut ty = tensor.ty().clone();
        if fixed.contains(&name.as_str()) {
            return (name.clone(), tensor.clone());
        }
        ty.shape[0] = count;
        let bytes = tensor.bytes().iter().copied().cycle();
        let bytes: Vec<u8> = bytes.take(ty.size_bytes()).collect();
        (name.clone(), Tensor::from_bytes(ty, &bytes).unwrap())
    });
    own.collect()
}

/// The margin of a case.
fn margin_of(case: &CaseGraph) -> BranchMargin {
    let mut margin = BranchMargin(f64::INFINITY, String::new());
    let mut sets = vec![case.tensors.clone()];
    for sizes in [&case.bounds, &case.sizes] {
        let counts = sizes.iter().map(|(_, n)| n);
        let counts = counts.flat_map(|n| [n, 1]);
        sets.extend(counts.map(|n| resized(&case.tensors, n)));
    }
    for tensors in sets {
        for (_, node) in case.graph.nodes() {
            match &node.op {
                Op::GaussianSplatPrepare(o) => {
                    let size = [o.width, o.height];
                    let limits =
                        GaussianSplatRasterize::new(size, SplatOptions::default()).limits();
                    projection_margin(&tensors, &o.image(), &limits, &mut margin);
                }
                Op::GaussianSplatRender(o) => {
                    let size = [o.width, o.height];
                    let image = GaussianSplatPrepare::new(size, o.options()).image();
                    let limits = GaussianSplatRasterize::new(size, o.options()).limits();
                    projection_margin(&tensors, &image, &limits, &mut margin);
                }
                Op::GaussianSplatRasterize(o) => {
                    let splats = tensors["splats"].to_f64s();
                    let footprints = tensors["footprints"].to_i64s();
                    let size = [o.width, o.height];
                    image_margin(&splats, &footprints, size, &o.limits(), &mut margin);
                }
                _ => {}
            }
        }
    }
    margin
}

#[test]
fn cases_keep_away_from_borders() {
    let mut near = Vec::new();
    for kind in [
        OpKind::GaussianSplatPrepare,
        OpKind::GaussianSplatRasterize,
        OpKind::GaussianSplatRasterizeGrad,
        OpKind::GaussianSplatRender,
    ] {
        let cases = cases(kind);
        assert!(!cases.is_empty(), "{}", kind.doc().name);
        for case in cases {
            let built = case.build(DType::F32).unwrap();
            let BranchMargin(distance, what) = margin_of(&built);
            if distance < MIN_MARGIN {
                near.push(format!(
                    "{}/{}: {distance:e}, {what}",
                    kind.doc().name,
                    case.name
                ));
            }
        }
    }
    assert!(near.is_empty(), "{}", near.join("\n"));
}

/// Products of harmonics integrate over the sphere to 1 with themselves and to 0 with others.
#[test]
fn harmonics_are_orthonormal() {
    let (rings, spokes) = (64, 64);
    let mut sums = vec![0.0; 256];
    for (ring, spoke) in (0..rings).flat_map(|r| (0..spokes).map(move |s| (r, s))) {
        let z = (ring as f64 + 0.5) / f64::from(rings) * 2.0 - 1.0;
        let turn = (f64::from(spoke) + 0.5) / f64::from(spokes) * 2.0 * PI;
        let r = (1.0 - z * z).sqrt();
        let basis = harmonics([r * turn.cos(), r * turn.sin(), z], 16);
        for (k, sum) in sums.iter_mut().enumerate() {
            *sum += basis[k / 16] * basis[k % 16] * 4.0 * PI / f64::from(rings * spokes);
        }
    }
    for (k, sum) in sums.iter().enumerate() {
        let want = f64::from(u8::from(k / 16 == k % 16));
        assert!((sum - want).abs() < 5e-3, "{} {}: {sum}", k / 16, k % 16);
    }
}

type RotationMatrix = [[f64; 3]; 3];

fn times(a: RotationMatrix, b: RotationMatrix) -> RotationMatrix {
    [0, 1, 2].map(|i| [0, 1, 2].map(|j| (0..3).map(|k| a[i][k] * b[k][j]).sum()))
}

fn transposed(a: RotationMatrix) -> RotationMatrix {
    [0, 1, 2].map(|i| [0, 1, 2].map(|j| a[j][i]))
}

/// Checks `J W S W^T J^T` with explicit matrices (Zwicker et al. 2001, eq. 31), inverted by
/// cofactors.
#[test]
fn conics_are_inverse_variances() {
    let (cos, sin) = (0.8f64, 0.6f64);
    let view: RotationMatrix = [[cos, 0.0, -sin], [0.0, 1.0, 0.0], [sin, 0.0, cos]];
    let mut block = vec![0.0; CAMERA_LEN];
    for (i, row) in view.iter().enumerate() {
        block[4 * i..][..3].copy_from_slice(row);
    }
    block[11] = 1.0;
    block[16..22].copy_from_slice(&[50.0, 40.0, 32.0, 24.0, 0.1, 100.0]);
    let position = [1.0, -0.5, 4.0];
    // A third of a turn about (1, 1, 1) maps x to y, y to z, z to x.
    let turn: RotationMatrix = [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]];
    let scales = [0.5f64, 0.25, 0.125];
    let own = Gaussian {
        position,
        log_scales: scales.map(f64::ln),
        rotation: [3.0; 4],
        opacity: 1.0,
        colors: &[0.0; 3],
        harmonics: false,
    };
    let got = own
        .project(
            &PinholeCamera::from_block(&block),
            &ProjectionImage::new([64, 48]),
        )
        .unwrap();

    let variances =
        [0, 1, 2].map(|i| [0, 1, 2].map(|j| if i == j { scales[i] * scales[i] } else { 0.0 }));
    let world = times(times(turn, variances), transposed(turn));
    let seen = times(times(view, world), transposed(view));
    let [x, y, z] = [0, 1, 2].map(|i| {
        let sum: f64 = (0..3).map(|k| view[i][k] * position[k]).sum();
        sum + if i == 2 { 1.0 } else { 0.0 }
    });
    let slopes: RotationMatrix = [
        [50.0 / z, 0.0, -50.0 * x / (z * z)],
        [0.0, 40.0 / z, -40.0 * y / (z * z)],
        [0.0; 3],
    ];
    let flat = times(times(slopes, seen), transposed(slopes));
    let (xx, xy, yy) = (flat[0][0] + 0.3, flat[0][1], flat[1][1] + 0.3);
    let det = xx * yy - xy * xy;
    let want = [
        50.0 * x / z + 32.0,
        40.0 * y / z + 24.0,
        yy / det,
        -xy / det,
        xx / det,
        1.0 / (1.0 + (-1f64).exp()),
        0.0,
        0.0,
        0.0,
        z,
    ];
    for (got, want) in got.splat.iter().zip(want) {
        assert!((got - want).abs() < 1e-12, "{got} {want}");
    }
}
