//! Cases of projection and rendering: scenes made of a few rough numbers, which keep away from borders (a
//! test measures how far).

use super::{CAMERA_LEN, Scene};
use crate::case::{Case, CaseGraph, Fill, Reject};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::types::{Shape, Type};

/// Numbers of a range in steps of 1/64 (Lehmer 1951, with the multiplier of Park and Miller).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn list(&mut self, count: usize, least: f64, most: f64) -> Vec<f64> {
        let one = |state: &mut u64| {
            *state = *state * 16807 % 0x7fff_ffff;
            let unit = *state as f64 / f64::from(0x7fff_ffff_u32);
            ((least + (most - least) * unit) * 64.0).round() / 64.0
        };
        (0..count).map(|_| one(&mut self.0)).collect()
    }
}

/// What colours are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Colors {
    Plain,
    Harmonics(usize),
}

impl Colors {
    fn shape(self, n: Dim) -> Shape {
        match self {
            Colors::Plain => vec![n, 3.into()].into(),
            Colors::Harmonics(k) => vec![n, k.into(), 3.into()].into(),
        }
    }
}

/// The data of a scene.
#[derive(Clone, Debug)]
struct Data {
    count: usize,
    colors: Colors,
    /// `positions log_scales rotations opacities colors`
    values: [Vec<f64>; 5],
}

impl Data {
    /// Gaussians some units before the origin, some at its edges.
    fn made(count: usize, colors: Colors, seed: u64) -> Data {
        let mut n = Numbers(seed);
        let mut positions = n.list(3 * count, -1.5, 1.5);
        for at in positions.chunks_exact_mut(3) {
            at[2] += 4.0;
        }
        let own = match colors {
            Colors::Plain => n.list(3 * count, 0.0, 1.0),
            Colors::Harmonics(k) => n.list(3 * k * count, -0.75, 0.75),
        };
        let values = [
            positions,
            n.list(3 * count, -2.0, -0.5),
            n.list(4 * count, -1.0, 1.0),
            n.list(count, -1.0, 3.0),
            own,
        ];
        Data {
            count,
            colors,
            values,
        }
    }

    /// The same with one number changed.
    fn with(mut self, list: usize, at: usize, value: f64) -> Data {
        self.values[list][at] = value;
        self
    }

    fn inputs(&self, c: &mut CaseGraph, n: Dim) -> Result<Scene, OpError> {
        let [positions, scales, rotations, opacities, colors] =
            self.values.clone().map(Fill::Values);
        let rows = |width: usize| -> Shape { vec![n.clone(), width.into()].into() };
        Ok(Scene {
            positions: c.input("positions", rows(3), positions)?,
            log_scales: c.input("log_scales", rows(3), scales)?,
            rotations: c.input("rotations", rows(4), rotations)?,
            opacities: c.input("opacities", vec![n.clone()], opacities)?,
            colors: c.input("colors", self.colors.shape(n), colors)?,
        })
    }
}

/// A camera at the origin, or one that is turned and shifted a little.
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

/// A scene and how it is seen.
#[derive(Clone, Debug)]
struct Shot {
    data: Data,
    image: [usize; 2],
    camera: Vec<f64>,
    /// The number of Gaussians is a symbol.
    symbolic: bool,
}

impl Shot {
    fn of(data: Data, image: [usize; 2], focal: f64, turned: bool) -> Shot {
        Shot {
            data,
            image,
            camera: camera(image, focal, turned),
            symbolic: false,
        }
    }

    fn case(
        self,
        name: &str,
        build: fn(&mut Graph, &Scene, Value, [usize; 2]) -> Result<Value, OpError>,
    ) -> Case {
        Case::new(name, move |c| {
            let count = self.data.count;
            let n = match self.symbolic {
                true => c.sym("n", count, count + 3),
                false => count.into(),
            };
            let scene = self.data.inputs(c, n)?;
            let camera = c.input("camera", [CAMERA_LEN], Fill::Values(self.camera.clone()))?;
            let y = build(&mut c.graph, &scene, camera, self.image)?;
            c.output(y)?;
            c.output(y.port(1))
        })
    }
}

const NAN: f64 = f64::NAN;

/// Scenes that both projection and rendering are tested on.
fn shots() -> Vec<(&'static str, Shot)> {
    use Colors::{Harmonics, Plain};
    let wide = [40, 24];
    let of = |data: Data, image: [usize; 2]| Shot::of(data, image, 24.0, true);
    let near = Data::made(5, Plain, 154);
    // One behind the camera, one before the near depth, one beyond the far depth.
    let mut beyond = Shot::of(near.clone(), wide, 24.0, false);
    for (i, z) in [(0, -3.0), (2, 0.125), (4, 150.0)] {
        beyond.data.values[0][3 * i + 2] = z;
    }
    let mut turns = near.clone();
    turns.values[2][..4].fill(0.0);
    turns.values[2][4..8].fill(1e-20);
    turns.values[2][8..12].copy_from_slice(&[3e18, 0.0, -1e18, 0.0]);
    let mut not_finite = Data::made(9, Harmonics(4), 305);
    for (list, at) in [(0, 1), (1, 5), (2, 8), (3, 3), (4, 4 * 12 + 7)] {
        not_finite.values[list][at] = NAN;
    }
    not_finite.values[0][17] = f64::INFINITY;
    not_finite.values[3][6] = f64::NEG_INFINITY;
    let symbolic = Shot {
        symbolic: true,
        ..of(Data::made(6, Harmonics(1), 324), wide)
    };
    // Beyond 2^40 pixels.
    let huge = near.clone().with(1, 0, 30.0).with(1, 4, 80.0);
    vec![
        ("colors", of(Data::made(9, Plain, 42), wide)),
        ("degree_0", of(Data::made(6, Harmonics(1), 155), wide)),
        ("degree_1", of(Data::made(6, Harmonics(4), 38), [33, 17])),
        ("degree_2", of(Data::made(6, Harmonics(9), 324), [17, 33])),
        ("degree_3", of(Data::made(7, Harmonics(16), 281), wide)),
        ("no_splats", of(Data::made(0, Plain, 1), wide)),
        (
            "no_splats_of_degree_1",
            of(Data::made(0, Harmonics(4), 1), [5, 3]),
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

pub(super) fn of_prepare() -> Vec<Case> {
    let build = Graph::gaussian_splat_prepare;
    let mut cases: Vec<Case> = (shots().into_iter())
        .map(|(name, shot)| shot.case(name, build))
        .collect();
    cases.push(
        Case::new("written", |c| {
            // Variance (16 / 2)^2 in both axes; half a colour of degree 0 above half.
            let data = Data {
                count: 1,
                colors: Colors::Harmonics(1),
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
            let camera = c.input("camera", [CAMERA_LEN], Fill::Values(camera))?;
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

pub(super) fn of_render() -> Vec<Case> {
    let build = Graph::gaussian_splat_render;
    (shots().into_iter())
        .map(|(name, shot)| shot.case(name, build))
        .collect()
}

/// A scene of these shapes for a camera of so many numbers.
fn wrong(
    g: &mut Graph,
    rotations: [usize; 2],
    colors: &[usize],
    camera: usize,
    build: fn(&mut Graph, &Scene, Value, [usize; 2]) -> Result<Value, OpError>,
) -> Result<Value, OpError> {
    let input = |g: &mut Graph, name: &str, shape: &[usize]| {
        g.input(name, Type::new(DType::F32, Shape::known(shape)))
    };
    let scene = Scene {
        positions: input(g, "positions", &[8, 3])?,
        log_scales: input(g, "log_scales", &[8, 3])?,
        rotations: input(g, "rotations", &rotations)?,
        opacities: input(g, "opacities", &[8])?,
        colors: input(g, "colors", colors)?,
    };
    let camera = input(g, "camera", &[camera])?;
    build(g, &scene, camera, [64, 32])
}

pub(super) fn rejects_of_prepare() -> Vec<Reject> {
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
            let scene = Scene {
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

pub(super) fn rejects_of_render() -> Vec<Reject> {
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
