//! Cases of projection and rendering. The scenes consist of coarse numbers that keep a distance
//! from discontinuities; a test measures that distance.

use super::{CAMERA_LEN, SplatSceneOperands};
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::types::{Shape, Type};

/// Random numbers of a range in steps of 1/64 (Lehmer 1951, with the multiplier of Park and
/// Miller).
pub(super) struct SplatCaseRng(pub(super) u64);

impl SplatCaseRng {
    pub(super) fn list(&mut self, count: usize, least: f64, most: f64) -> Vec<f64> {
        let one = |state: &mut u64| {
            *state = *state * 16807 % 0x7fff_ffff;
            let unit = *state as f64 / f64::from(0x7fff_ffff_u32);
            ((least + (most - least) * unit) * 64.0).round() / 64.0
        };
        (0..count).map(|_| one(&mut self.0)).collect()
    }
}

/// The form of the colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SplatCaseColors {
    Plain,
    Harmonics(usize),
}

impl SplatCaseColors {
    fn shape(self, n: Dim) -> Shape {
        match self {
            SplatCaseColors::Plain => vec![n, 3.into()].into(),
            SplatCaseColors::Harmonics(k) => vec![n, k.into(), 3.into()].into(),
        }
    }
}

/// The data of a scene.
#[derive(Clone, Debug)]
struct SplatCaseData {
    count: usize,
    colors: SplatCaseColors,
    /// The values of `positions log_scales rotations opacities colors`.
    values: [Vec<f64>; 5],
}

impl SplatCaseData {
    /// Gaussians a few units in front of the origin, some at the image edges.
    fn random(count: usize, colors: SplatCaseColors, seed: u64) -> SplatCaseData {
        let mut n = SplatCaseRng(seed);
        let mut positions = n.list(3 * count, -1.5, 1.5);
        for at in positions.chunks_exact_mut(3) {
            at[2] += 4.0;
        }
        let own = match colors {
            SplatCaseColors::Plain => n.list(3 * count, 0.0, 1.0),
            SplatCaseColors::Harmonics(k) => n.list(3 * k * count, -0.75, 0.75),
        };
        let values = [
            positions,
            n.list(3 * count, -2.0, -0.5),
            n.list(4 * count, -1.0, 1.0),
            n.list(count, -1.0, 3.0),
            own,
        ];
        SplatCaseData {
            count,
            colors,
            values,
        }
    }

    /// The data with one number changed.
    fn with(mut self, list: usize, at: usize, value: f64) -> SplatCaseData {
        self.values[list][at] = value;
        self
    }

    fn inputs(&self, c: &mut CaseGraph, n: Dim) -> Result<SplatSceneOperands, OpError> {
        let [positions, scales, rotations, opacities, colors] =
            self.values.clone().map(InputFill::Values);
        let rows = |width: usize| -> Shape { vec![n.clone(), width.into()].into() };
        Ok(SplatSceneOperands {
            positions: c.input("positions", rows(3), positions)?,
            log_scales: c.input("log_scales", rows(3), scales)?,
            rotations: c.input("rotations", rows(4), rotations)?,
            opacities: c.input("opacities", vec![n.clone()], opacities)?,
            colors: c.input("colors", self.colors.shape(n), colors)?,
        })
    }
}

/// A camera at the origin, or one that is slightly rotated and shifted.
fn camera([width, height]: [usize; 2], focal: f64, turned: bool) -> Vec<f64> {
    let view: [f64; 12] = match turned {
        false => [1., 0., 0., 0., 0., 1., 0., 0., 0., 0., 1., 0.],
        true => [
            0.96, 0.0, -0.28, 1.0, 0.0, 1.0, 0.0, -0.125, 0.28, 0.0, 0.96, 0.25,
        ],
    };
    let (x, y) = (width as f64 / 2.0, height as f64 / 2.0);
    let rest = [0., 0., 0., 1., focal, 1.125 * focal, x, y, 0.25, 100.0];
    let background = [0.125, 0.25, 0.5];
    let all = view.iter().chain(&rest).chain(&background);
    all.copied().collect()
}

/// A scene with its camera and image size.
#[derive(Clone, Debug)]
struct SplatCaseView {
    data: SplatCaseData,
    image: [usize; 2],
    camera: Vec<f64>,
    /// Whether the number of Gaussians is a symbol.
    symbolic: bool,
}

impl SplatCaseView {
    fn new(data: SplatCaseData, image: [usize; 2], focal: f64, turned: bool) -> SplatCaseView {
        SplatCaseView {
            data,
            image,
            camera: camera(image, focal, turned),
            symbolic: false,
        }
    }

    fn case(
        self,
        name: &str,
        build: fn(&mut Graph, &SplatSceneOperands, Value, [usize; 2]) -> Result<Value, OpError>,
    ) -> OpCase {
        OpCase::new(name, move |c| {
            let count = self.data.count;
            let n = match self.symbolic {
                true => c.sym("n", count, count + 3),
                false => count.into(),
            };
            let scene = self.data.inputs(c, n)?;
            let camera = c.input(
                "camera",
                [CAMERA_LEN],
                InputFill::Values(self.camera.clone()),
            )?;
            let y = build(&mut c.graph, &scene, camera, self.image)?;
            c.output(y)?;
            c.output(y.port(1))
        })
    }
}

const NAN: f64 = f64::NAN;

/// Scenes for testing both projection and rendering.
fn shots() -> Vec<(&'static str, SplatCaseView)> {
    use SplatCaseColors::{Harmonics, Plain};
    let wide = [40, 24];
    let of = |data: SplatCaseData, image: [usize; 2]| SplatCaseView::new(data, image, 24.0, true);
    let near = SplatCaseData::random(5, Plain, 154);
    // Three culled Gaussians: behind the camera, between camera and near plane, beyond the far plane.
    let mut beyond = SplatCaseView::new(near.clone(), wide, 24.0, false);
    for (i, z) in [(0, -3.0), (2, 0.125), (4, 150.0)] {
        beyond.data.values[0][3 * i + 2] = z;
    }
    let mut turns = near.clone();
    turns.values[2][..4].fill(0.0);
    turns.values[2][4..8].fill(1e-20);
    turns.values[2][8..12].copy_from_slice(&[3e18, 0.0, -1e18, 0.0]);
    let mut not_finite = SplatCaseData::random(9, Harmonics(4), 305);
    for (list, at) in [(0, 1), (1, 5), (2, 8), (3, 3), (4, 4 * 12 + 7)] {
        not_finite.values[list][at] = NAN;
    }
    not_finite.values[0][17] = f64::INFINITY;
    not_finite.values[3][6] = f64::NEG_INFINITY;
    let symbolic = SplatCaseView {
        symbolic: true,
        ..of(SplatCaseData::random(6, Harmonics(1), 324), wide)
    };
    // Sizes beyond 2^40 pixels.
    let huge = near.clone().with(1, 0, 30.0).with(1, 4, 80.0);
    vec![
        ("colors", of(SplatCaseData::random(9, Plain, 42), wide)),
        (
            "degree_0",
            of(SplatCaseData::random(6, Harmonics(1), 155), wide),
        ),
        (
            "degree_1",
            of(SplatCaseData::random(6, Harmonics(4), 38), [33, 17]),
        ),
        (
            "degree_2",
            of(SplatCaseData::random(6, Harmonics(9), 324), [17, 33]),
        ),
        (
            "degree_3",
            of(SplatCaseData::random(7, Harmonics(16), 281), wide),
        ),
        ("no_splats", of(SplatCaseData::random(0, Plain, 1), wide)),
        (
            "no_splats_of_degree_1",
            of(SplatCaseData::random(0, Harmonics(4), 1), [5, 3]),
        ),
        ("one_pixel", of(near.clone(), [1, 1])),
        ("whole_tiles", of(near.clone(), [32, 16])),
        ("no_pixels", of(near.clone(), [0, 7])),
        ("behind_and_beyond", beyond),
        ("turns_of_any_length", of(turns, wide)),
        ("not_finite", of(not_finite, wide)),
        ("huge", of(huge, wide)),
        ("symbolic", symbolic),
    ]
}

pub(super) fn prepare_cases() -> Vec<OpCase> {
    let build = Graph::gaussian_splat_prepare;
    let mut cases: Vec<OpCase> = (shots().into_iter())
        .map(|(name, shot)| shot.case(name, build))
        .collect();
    cases.push(
        OpCase::new("written", |c| {
            // The variance is (16 / 2)^2 in both axes; the colour is half a degree 0 coefficient
            // plus 0.5.
            let data = SplatCaseData {
                count: 1,
                colors: SplatCaseColors::Harmonics(1),
                values: [
                    vec![0.0, 0.0, 2.0],
                    vec![0.0; 3],
                    vec![2.0, 0.0, 0.0, 0.0],
                    vec![0.0],
                    vec![0.0, 0.0, -20.0],
                ],
            };
            let scene = data.inputs(c, 1.into())?;
            let mut camera = camera([32, 48], 16.0, false);
            camera[17] = 16.0;
            let camera = c.input("camera", [CAMERA_LEN], InputFill::Values(camera))?;
            let y = c.graph.gaussian_splat_prepare(&scene, camera, [32, 48])?;
            let conic = 64.3 / (64.3 * 64.3);
            let splat = [16.0, 24.0, conic, 0.0, conic, 0.5, 0.5, 0.5, 0.0, 2.0];
            c.output_expect(y, &splat)?;
            c.output_expect(y.port(1), &[0.0, 0.0, 2.0, 3.0, 25.0])
        })
        .only(&[DType::F32]),
    );
    cases
}

pub(super) fn render_cases() -> Vec<OpCase> {
    let build = Graph::gaussian_splat_render;
    (shots().into_iter())
        .map(|(name, shot)| shot.case(name, build))
        .collect()
}

/// A scene with operands of these shapes, and a camera of this length.
fn wrong(
    g: &mut Graph,
    rotations: [usize; 2],
    colors: &[usize],
    camera: usize,
    build: fn(&mut Graph, &SplatSceneOperands, Value, [usize; 2]) -> Result<Value, OpError>,
) -> Result<Value, OpError> {
    let input = |g: &mut Graph, name: &str, shape: &[usize]| {
        g.input(name, Type::new(DType::F32, Shape::known(shape)))
    };
    let scene = SplatSceneOperands {
        positions: input(g, "positions", &[8, 3])?,
        log_scales: input(g, "log_scales", &[8, 3])?,
        rotations: input(g, "rotations", &rotations)?,
        opacities: input(g, "opacities", &[8])?,
        colors: input(g, "colors", colors)?,
    };
    let camera = input(g, "camera", &[camera])?;
    build(g, &scene, camera, [64, 32])
}

pub(super) fn rejects_of_prepare() -> Vec<RejectCase> {
    let of = |name, message, build| reject(name, message, build);
    vec![
        of("rotations", "axis 1 of rotations: 3 and 4 differ", |g| {
            wrong(g, [8, 3], &[8, 3], 25, Graph::gaussian_splat_prepare)
        }),
        of("count", "axis 0 of rotations: 7 and 8 differ", |g| {
            wrong(g, [7, 4], &[8, 3], 25, Graph::gaussian_splat_prepare)
        }),
        of("harmonics", "5 spherical harmonics", |g| {
            wrong(g, [8, 4], &[8, 5, 3], 25, Graph::gaussian_splat_prepare)
        }),
        of("channels", "axis 2 of colors: 4 and 3 differ", |g| {
            wrong(g, [8, 4], &[8, 4, 4], 25, Graph::gaussian_splat_prepare)
        }),
        of("colors", "rank 2, or rank 3", |g| {
            wrong(g, [8, 4], &[24], 25, Graph::gaussian_splat_prepare)
        }),
        of("camera", "axis 0 of camera: 16 and 25 differ", |g| {
            wrong(g, [8, 4], &[8, 3], 16, Graph::gaussian_splat_prepare)
        }),
        of("width", "attribute `width`: 40000 pixels", |g| {
            wrong(g, [8, 4], &[8, 3], 25, |g, scene, camera, _| {
                g.gaussian_splat_prepare(scene, camera, [40000, 8])
            })
        }),
        of("dtype", "operand positions is f16", |g| {
            let mut input = |name: &str, shape: &[usize]| {
                g.input(name, Type::new(DType::F16, Shape::known(shape)))
            };
            let (x, q) = (input("x", &[2, 3])?, input("q", &[2, 4])?);
            let (o, camera) = (input("o", &[2])?, input("camera", &[25])?);
            let scene = SplatSceneOperands {
                positions: x,
                log_scales: x,
                rotations: q,
                opacities: o,
                colors: x,
            };
            g.gaussian_splat_prepare(&scene, camera, [8, 8])
        }),
    ]
}

pub(super) fn rejects_of_render() -> Vec<RejectCase> {
    vec![
        reject("harmonics", "8 spherical harmonics", |g| {
            wrong(g, [8, 4], &[8, 8, 3], 25, Graph::gaussian_splat_render)
        }),
        reject("camera", "axis 0 of camera: 24 and 25 differ", |g| {
            wrong(g, [8, 4], &[8, 3], 24, Graph::gaussian_splat_render)
        }),
        reject("height", "attribute `height`: 32769 pixels", |g| {
            wrong(g, [8, 4], &[8, 3], 25, |g, scene, camera, _| {
                g.gaussian_splat_render(scene, camera, [8, 32769])
            })
        }),
    ]
}
