//! Fitting scenes to pictures: the graph of the loss, learning rates, what a scene begins as, and what becomes of
//! Gaussians that show nothing.
//!
//! The number of Gaussians stays what it was, so that one compiled step does for all of a fit. What Kerbl et al. do by
//! adding and removing is done by moving: a Gaussian that has become transparent goes to where one is that shows much
//! ([`relocate`]; Kheradmand et al. 2024, "3D Gaussian Splatting as Markov Chain Monte Carlo").

use tercet::{DType, Graph, OpError, Shape, Tensor, Type, Value};
use tercet_ir::ops::splat::{BACKGROUND_AT, CAMERA_LEN, Scene as Operands};
use tercet_ir::ops::{ReduceFn, Window};
use tercet_ir::random::Stream;

use super::{Scene, SplatError};

type Built = Result<Value, OpError>;

/// The inputs of a graph that fits: a camera block `[25]` and a picture `[height, width, 3]`, 0 to 1.
pub const CAMERA: &str = "camera";
/// See [`CAMERA`].
pub const PICTURE: &str = "picture";
/// The output with the image, `[height, width, 3]`.
pub const IMAGE: &str = "image";

/// What a fit is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitShape {
    /// How many Gaussians there are.
    pub count: usize,
    /// Spherical harmonics of each channel: 1, 4, 9 or 16.
    pub harmonics: usize,
    /// Width and height of pictures in pixels.
    pub image: [usize; 2],
}

impl FitShape {
    /// Names and shapes of the states.
    fn states(&self) -> Vec<(&'static str, Vec<usize>)> {
        let FitShape {
            count, harmonics, ..
        } = *self;
        let mut all = vec![
            ("positions", vec![count, 3]),
            ("log_scales", vec![count, 3]),
            ("rotations", vec![count, 4]),
            ("opacities", vec![count]),
            ("base_colors", vec![count, 1, 3]),
        ];
        if harmonics > 1 {
            all.push(("more_colors", vec![count, harmonics - 1, 3]));
        }
        all
    }

    /// The names of the states.
    pub fn names(&self) -> Vec<&'static str> {
        self.states().into_iter().map(|(name, _)| name).collect()
    }

    /// Adds the states and the image that they make for the input [`CAMERA`].
    fn image(&self, g: &mut Graph) -> Built {
        let mut values = Vec::new();
        for (name, shape) in self.states() {
            values.push(g.state(name, Type::new(DType::F32, Shape::known(&shape)))?);
        }
        let colors = match &values[4..] {
            [base] => *base,
            colors => g.concat(colors, 1)?,
        };
        let scene = Operands {
            positions: values[0],
            log_scales: values[1],
            rotations: values[2],
            opacities: values[3],
            colors,
        };
        let camera = g.input(CAMERA, Type::new(DType::F32, [CAMERA_LEN]))?;
        // The parts of `gaussian_splat_render`, so that gradients read what the way forward made.
        let splats = g.gaussian_splat_prepare(&scene, camera, self.image)?;
        let background = g.narrow(camera, 0, BACKGROUND_AT, 3)?;
        g.gaussian_splat_rasterize(splats, splats.port(1), background, self.image)
    }

    /// The graph that draws the states for a camera: an input [`CAMERA`], an output [`IMAGE`].
    ///
    /// # Errors
    /// [`SplatError::Graph`] when the sizes are refused.
    pub fn drawing(&self) -> Result<Graph, SplatError> {
        let mut g = Graph::new();
        let image = self.image(&mut g)?;
        g.output(IMAGE, image)?;
        Ok(g)
    }

    /// The graph whose loss is to be minimized: `(1 - part) mean |image - picture| + part (1 - SSIM)`, where `part` is 0 to
    /// 1 (Kerbl et al. take 0.2). Inputs [`CAMERA`] and [`PICTURE`], states of the scene.
    ///
    /// # Errors
    /// [`SplatError::Graph`] when the sizes are refused.
    pub fn loss(&self, part: f64) -> Result<(Graph, Value), SplatError> {
        let mut g = Graph::new();
        let image = self.image(&mut g)?;
        let [width, height] = self.image;
        let picture = g.input(PICTURE, Type::new(DType::F32, [height, width, 3]))?;
        let off = g.sub(image, picture)?;
        let off = g.abs(off)?;
        let off = g.reduce(ReduceFn::Mean, off, &[0, 1, 2], false)?;
        let own = g.scalar(DType::F32, 1.0 - part)?;
        let mut loss = g.mul(off, own)?;
        if part > 0.0 {
            let likeness = ssim(&mut g, image, picture, self.image)?;
            let one = g.scalar(DType::F32, 1.0)?;
            let unlike = g.sub(one, likeness)?;
            let part = g.scalar(DType::F32, part)?;
            let unlike = g.mul(unlike, part)?;
            loss = g.plus(loss, unlike)?;
        }
        g.output(IMAGE, image)?;
        Ok((g, loss))
    }
}

/// The structural similarity of two pictures, 1 of equal ones: means over windows of 11 x 11 pixels by a normal
/// distribution of 1.5, with zeros outside of the picture (Wang et al. 2004).
fn ssim(g: &mut Graph, x: Value, y: Value, [width, height]: [usize; 2]) -> Built {
    let square = g.mul(x, x)?;
    let other = g.mul(y, y)?;
    let both = g.mul(x, y)?;
    let planes = [x, y, square, other, both].map(|v| g.transpose(v, &[2, 0, 1]));
    let planes: Vec<Value> = planes.into_iter().collect::<Result<_, _>>()?;
    let planes = g.concat(&planes, 0)?;
    let planes = g.unsqueeze(planes, 1)?;
    let bell: Vec<f32> = (-5i32..=5)
        .map(|i| (-f64::from(i * i) / 4.5).exp() as f32)
        .collect();
    let sum: f32 = bell.iter().sum();
    let bell: Vec<f32> = bell.iter().map(|x| x / sum).collect();
    let mut means = planes;
    for (shape, pads) in [([1, 1, 11, 1], [5, 0]), ([1, 1, 1, 11], [0, 5])] {
        let weights = Tensor::from_slice(&shape, &bell).expect("invariant: eleven numbers");
        let weights = g.constant(weights)?;
        let window = Window::new(2).with_pads(&pads, &pads);
        means = g.conv(means, weights, None, window, 1)?;
    }
    let means = g.reshape(means, [5, 3, height, width])?;
    let mean = |g: &mut Graph, at: usize| g.narrow(means, 0, at, 1);
    let [x, y, xx, yy, xy] = [0, 1, 2, 3, 4].map(|at| mean(g, at));
    let (x, y, xx, yy, xy) = (x?, y?, xx?, yy?, xy?);
    let (square_x, square_y, product) = (g.mul(x, x)?, g.mul(y, y)?, g.mul(x, y)?);
    let (var_x, var_y, covariance) = (
        g.sub(xx, square_x)?,
        g.sub(yy, square_y)?,
        g.sub(xy, product)?,
    );
    let [first, second] = [0.01f64, 0.03].map(|k| g.scalar(DType::F32, k * k));
    let (first, second) = (first?, second?);
    let twice = |g: &mut Graph, x: Value, more: Value| {
        let sum = g.plus(x, x)?;
        g.plus(sum, more)
    };
    let sum = |g: &mut Graph, a: Value, b: Value, more: Value| {
        let sum = g.plus(a, b)?;
        g.plus(sum, more)
    };
    let (a, b) = (twice(g, product, first)?, twice(g, covariance, second)?);
    let (c, d) = (
        sum(g, square_x, square_y, first)?,
        sum(g, var_x, var_y, second)?,
    );
    let (above, below) = (g.mul(a, b)?, g.mul(c, d)?);
    let likeness = g.div(above, below)?;
    g.reduce(ReduceFn::Mean, likeness, &[0, 1, 2, 3], false)
}

/// The learning rates of the states, by name, of a scene whose cameras are so far from it: for fits of some thousand steps,
/// 2 to 8 times those of Kerbl et al., whose take 30,000.
pub fn learning_rates(distance: f64) -> [(&'static str, f64); 6] {
    [
        ("positions", 1e-3 * distance),
        ("log_scales", 1e-2),
        ("rotations", 5e-3),
        ("opacities", 5e-2),
        ("base_colors", 2e-2),
        ("more_colors", 1e-3),
    ]
}

/// The harmonic of degree 0, by which a colour is its coefficient and half.
const DEGREE_0: f32 = 0.282_094_79;

/// Numbers of a seed, one after the other.
#[derive(Clone, Debug)]
pub struct Numbers {
    stream: Stream,
    next: u64,
}

impl Numbers {
    /// Those of a seed.
    pub fn of(seed: u64) -> Numbers {
        let stream = Stream {
            seed,
            stream: 0,
            step: 0,
        };
        Numbers { stream, next: 0 }
    }

    fn turn(&mut self) -> u64 {
        let turn = self.next;
        self.next += 1;
        turn
    }

    /// At least 0, below 1.
    pub fn unit(&mut self) -> f64 {
        let turn = self.turn();
        self.stream.unit(DType::F64, turn)
    }

    /// One of so many, of which there is at least one.
    pub fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Of a normal distribution.
    fn normal(&mut self) -> f64 {
        let turn = self.turn();
        self.stream.normal(DType::F64, turn)
    }
}

impl Scene {
    /// Gray Gaussians anywhere in a box of twice `half` around a point.
    pub fn random(
        count: usize,
        harmonics: usize,
        center: [f64; 3],
        half: f64,
        numbers: &mut Numbers,
    ) -> Scene {
        let mut positions = Vec::with_capacity(3 * count);
        for _ in 0..count {
            positions.extend(center.map(|c| (c + half * (2.0 * numbers.unit() - 1.0)) as f32));
        }
        // As wide as the box is for each.
        let scale = (2.0 * half / (count.max(1) as f64).cbrt() / 2.0).ln();
        Scene {
            harmonics,
            positions,
            log_scales: vec![scale as f32; 3 * count],
            rotations: [1.0, 0.0, 0.0, 0.0].repeat(count),
            opacities: vec![BEGIN; count],
            colors: vec![0.0; 3 * harmonics * count],
        }
    }

    /// The same with another number of harmonics: those that it has not are 0.
    #[must_use]
    pub fn with_harmonics(&self, harmonics: usize) -> Scene {
        let own = self.harmonics.max(1);
        let mut colors = Vec::with_capacity(3 * harmonics * self.len());
        for each in self.colors.chunks_exact(3 * own) {
            let kept = 3 * own.min(harmonics);
            colors.extend(&each[..kept]);
            colors.resize(colors.len() + 3 * harmonics - kept, 0.0);
        }
        Scene {
            harmonics,
            colors,
            ..self.clone()
        }
    }

    /// The states of a fit, as [`FitShape`] names them.
    ///
    /// # Errors
    /// [`SplatError::Tensor`] when the lists are not as long as the number of Gaussians says.
    pub fn fit_states(&self) -> Result<Vec<(&'static str, Tensor)>, SplatError> {
        let shape = FitShape {
            count: self.len(),
            harmonics: self.harmonics,
            image: [0, 0],
        };
        let k = 3 * self.harmonics;
        let part = |range: std::ops::Range<usize>| -> Vec<f32> {
            let rows = self.colors.chunks_exact(k.max(1));
            rows.flat_map(|row| row[range.clone()].to_vec()).collect()
        };
        let (base, more) = (part(0..3.min(k)), part(3.min(k)..k));
        let lists = [
            &self.positions,
            &self.log_scales,
            &self.rotations,
            &self.opacities,
            &base,
            &more,
        ];
        let states = shape.states().into_iter().zip(lists);
        let states =
            states.map(|((name, shape), list)| Ok((name, Tensor::from_slice(&shape, list)?)));
        states.collect()
    }

    /// The scene of the states of a fit, in the order of [`FitShape::names`].
    ///
    /// # Errors
    /// [`SplatError::Tensor`] for a state that is not F32.
    pub fn from_fit_states(shape: &FitShape, states: &[Tensor]) -> Result<Scene, SplatError> {
        let names = shape.names();
        let list = |name: &str| -> Result<Vec<f32>, SplatError> {
            let at = names.iter().position(|own| *own == name);
            let tensor = at.and_then(|at| states.get(at));
            let list = tensor.map(|tensor| tensor.as_slice::<f32>()).transpose()?;
            Ok(list.unwrap_or_default().to_vec())
        };
        let (base, k) = (list("base_colors")?, shape.harmonics);
        let colors = match k {
            1 => base,
            _ => {
                let more = list("more_colors")?;
                let rows = base.chunks_exact(3).zip(more.chunks_exact(3 * (k - 1)));
                rows.flat_map(|(base, more)| [base, more].concat())
                    .collect()
            }
        };
        Ok(Scene {
            harmonics: k,
            positions: list("positions")?,
            log_scales: list("log_scales")?,
            rotations: list("rotations")?,
            opacities: list("opacities")?,
            colors,
        })
    }

    /// The Gaussians that show anything: finite, with an opacity of at least 1/255.
    #[must_use]
    pub fn shown(&self) -> Scene {
        let mut shown = Scene {
            harmonics: self.harmonics,
            ..Scene::default()
        };
        let k = 3 * self.harmonics;
        for i in 0..self.len() {
            let (position, scales) = (
                &self.positions[3 * i..][..3],
                &self.log_scales[3 * i..][..3],
            );
            let (rotation, colors) = (&self.rotations[4 * i..][..4], &self.colors[k * i..][..k]);
            let all = [position, scales, rotation, colors];
            let finite = all.iter().all(|list| list.iter().all(|x| x.is_finite()));
            if finite && sigmoid(self.opacities[i]) >= 1.0 / 255.0 {
                shown.positions.extend(position);
                shown.log_scales.extend(scales);
                shown.rotations.extend(rotation);
                shown.colors.extend(colors);
                shown.opacities.push(self.opacities[i]);
            }
        }
        shown
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The logit of a tenth, the opacity with which Gaussians begin.
const BEGIN: f32 = -2.197_224_6;

/// Gaussians at points of these colours.
pub(super) fn of_points(positions: Vec<f32>, colors: &[f32], size: f64) -> Scene {
    let count = positions.len() / 3;
    Scene {
        harmonics: 1,
        positions,
        log_scales: vec![size.ln() as f32; 3 * count],
        rotations: [1.0, 0.0, 0.0, 0.0].repeat(count),
        opacities: vec![BEGIN; count],
        colors: colors.iter().map(|c| (c - 0.5) / DEGREE_0).collect(),
    }
}

/// Moves Gaussians that show almost nothing (an opacity below 1/200) to where others are, chosen by their opacity: both
/// then have the opacity that together makes the one that was, and four fifths of its size; the one that came lies by
/// chance within the other. Gives the numbers of all that changed, whose moments are to be forgotten.
pub fn relocate(scene: &mut Scene, numbers: &mut Numbers) -> Vec<usize> {
    const LEAST: f32 = 0.005;
    let opacities: Vec<f32> = scene.opacities.iter().map(|x| sigmoid(*x)).collect();
    let weight = |o: f32| if o >= LEAST { f64::from(o) } else { 0.0 };
    let mut ends = Vec::with_capacity(opacities.len());
    let mut sum = 0.0;
    for o in &opacities {
        sum += weight(*o);
        ends.push(sum);
    }
    let mut changed = Vec::new();
    if sum <= 0.0 {
        return changed;
    }
    let k = 3 * scene.harmonics;
    let is_clear = |i: &usize| opacities[*i] < LEAST;
    for i in (0..opacities.len()).filter(is_clear) {
        let chance = numbers.unit() * sum;
        let from = ends
            .partition_point(|end| *end <= chance)
            .min(ends.len() - 1);
        // Half of the light each: 1 - (1 - o)^(1/2).
        let own = sigmoid(scene.opacities[from]);
        let half = (1.0 - (1.0 - own).max(0.0).sqrt()).clamp(LEAST, 0.99);
        let logit = (half / (1.0 - half)).ln();
        let mut least = f32::INFINITY;
        for axis in 0..3 {
            let scale = scene.log_scales[3 * from + axis] - 0.223_143_55;
            scene.log_scales[3 * from + axis] = scale;
            scene.log_scales[3 * i + axis] = scale;
            least = least.min(scale.exp());
        }
        for axis in 0..3 {
            let at = scene.positions[3 * from + axis];
            scene.positions[3 * i + axis] = at + least * numbers.normal() as f32;
        }
        scene.rotations.copy_within(4 * from..4 * from + 4, 4 * i);
        scene.colors.copy_within(k * from..k * from + k, k * i);
        scene.opacities[from] = logit;
        scene.opacities[i] = logit;
        changed.extend([from, i]);
    }
    changed.sort_unstable();
    changed.dedup();
    changed
}
