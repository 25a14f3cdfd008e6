//! Fitting of Gaussian scenes to images: the loss graph, learning rates, initial scenes and
//! relocation of transparent Gaussians.
//!
//! The number of Gaussians is constant, so one compiled step serves a whole fit. Kerbl et al. add
//! and remove Gaussians; here a transparent Gaussian moves to an opaque one ([`relocate`];
//! Kheradmand et al. 2024, "3D Gaussian Splatting as Markov Chain Monte Carlo").

use tercet::ops::splat::{BACKGROUND_AT, CAMERA_LEN, SplatSceneOperands as Operands};
use tercet::ops::{ReduceFn, Window};
use tercet::random::PhiloxStream;
use tercet::scalar::{BinaryFn, CompareFn};
use tercet::{DType, Graph, OpError, Shape, Tensor, Type, Value};

use crate::{SplatError, SplatScene};

type SplatFitResult = Result<Value, OpError>;

/// Input name of a fitting graph: the camera block, F32 `[25]`.
pub const CAMERA: &str = "camera";
/// Input name of a fitting graph: the target image, `[height, width, 3]`, 0 to 1; see [`CAMERA`].
pub const PICTURE: &str = "picture";
/// Input name of a fitting graph whose degree grows: the active degree of the spherical harmonics,
/// F32 `[]`.
pub const DEGREE: &str = "degree";
/// Output name of the rendered image, `[height, width, 3]`.
pub const IMAGE: &str = "image";

/// Sizes of a fit.
///
/// ```
/// use tercet_splat::fit::FitShape;
/// let shape = FitShape::new(100, 4, [32, 32]);
/// assert_eq!(shape.names().last(), Some(&"more_colors"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FitShape {
    /// Number of Gaussians.
    pub count: usize,
    /// Spherical harmonics per channel: 1, 4, 9 or 16.
    pub harmonics: usize,
    /// Width and height of the target images in pixels.
    pub image: [usize; 2],
    /// Maximum ratio of the largest and the smallest standard deviation of a Gaussian, at least 1.
    pub max_anisotropy: Option<f64>,
    /// Whether graphs have the input [`DEGREE`], above which spherical harmonics are 0 and get no
    /// gradient.
    pub degree_grows: bool,
}

impl FitShape {
    /// A fit of all degrees from the first step on, without a limit of anisotropy.
    pub fn new(count: usize, harmonics: usize, image: [usize; 2]) -> FitShape {
        FitShape {
            count,
            harmonics,
            image,
            max_anisotropy: None,
            degree_grows: false,
        }
    }

    /// Limits the ratio of the largest and the smallest standard deviation: smaller ones are
    /// raised.
    pub fn with_max_anisotropy(mut self, ratio: Option<f64>) -> FitShape {
        self.max_anisotropy = ratio;
        self
    }

    /// Adds the input [`DEGREE`] to the graphs.
    pub fn with_growing_degree(mut self, grows: bool) -> FitShape {
        self.degree_grows = grows;
        self
    }

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

    /// Names of the states.
    pub fn names(&self) -> Vec<&'static str> {
        self.states().into_iter().map(|(name, _)| name).collect()
    }

    /// Adds the states and the image rendered from them for the input [`CAMERA`].
    fn image(&self, g: &mut Graph) -> SplatFitResult {
        let mut values = Vec::new();
        for (name, shape) in self.states() {
            values.push(g.state(name, Type::new(DType::F32, Shape::known(&shape)))?);
        }
        let colors = match values[4..] {
            [base, more] if self.degree_grows => {
                let more = self.active(g, more)?;
                g.concat(&[base, more], 1)?
            }
            [base, more] => g.concat(&[base, more], 1)?,
            _ => values[4],
        };
        values[1] = self.limited(g, values[1])?;
        let scene = Operands {
            positions: values[0],
            log_scales: values[1],
            rotations: values[2],
            opacities: values[3],
            colors,
        };
        let camera = g.input(CAMERA, Type::new(DType::F32, [CAMERA_LEN]))?;
        // Separate prepare and rasterize nodes instead of `gaussian_splat_render`, so that backward
        // reuses the forward results.
        let splats = g.gaussian_splat_prepare(&scene, camera, self.image)?;
        let background = g.narrow(camera, 0, BACKGROUND_AT, 3)?;
        g.gaussian_splat_rasterize(splats, splats.port(1), background, self.image)
    }

    /// The coefficients up to the degree of the input [`DEGREE`]; the others are 0.
    fn active(&self, g: &mut Graph, more: Value) -> SplatFitResult {
        let degree = g.input(DEGREE, Type::new(DType::F32, [0usize; 0]))?;
        let above: Vec<f32> = (1..self.harmonics)
            .map(|i| i.isqrt() as f32 - 0.5)
            .collect();
        let shape = [1, above.len(), 1];
        let above = Tensor::from_slice(&shape, &above).expect("invariant: as many as coefficients");
        let above = g.constant(above)?;
        let is_active = g.compare(CompareFn::Gt, degree, above)?;
        let zero = g.scalar(DType::F32, 0.0)?;
        g.where_(is_active, more, zero)
    }

    /// The logarithms of standard deviations, with small ones raised to the limit of anisotropy.
    fn limited(&self, g: &mut Graph, log_scales: Value) -> SplatFitResult {
        let Some(ratio) = self.max_anisotropy else {
            return Ok(log_scales);
        };
        let largest = g.reduce(ReduceFn::Max, log_scales, &[1], true)?;
        let range = g.scalar(DType::F32, ratio.max(1.0).ln())?;
        let least = g.sub(largest, range)?;
        g.binary(BinaryFn::Max, log_scales, least)
    }

    /// Graph that renders the states for a camera, with the input [`CAMERA`] and the output
    /// [`IMAGE`].
    ///
    /// # Errors
    /// [`SplatError::Graph`] if the sizes are invalid.
    pub fn drawing(&self) -> Result<Graph, SplatError> {
        let mut g = Graph::new();
        let image = self.image(&mut g)?;
        g.output(IMAGE, image)?;
        Ok(g)
    }

    /// Loss graph of a fit: `(1 - part) mean |image - picture| + part (1 - SSIM)` with `part` from
    /// 0 to 1 (Kerbl et al. use 0.2). The inputs are [`CAMERA`] and [`PICTURE`]; the scene is in
    /// states.
    ///
    /// # Errors
    /// [`SplatError::Graph`] if the sizes are invalid.
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

/// Structural similarity (SSIM) of two images, 1 for equal ones. Local means use 11 x 11 Gaussian
/// windows with sigma 1.5 and zero padding (Wang et al. 2004).
fn ssim(g: &mut Graph, x: Value, y: Value, [width, height]: [usize; 2]) -> SplatFitResult {
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

/// Learning rates of the states by name, for a scene at this camera distance. The rates are 2 to 8
/// times those of Kerbl et al., because fits take some thousand steps instead of 30,000.
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

/// Spherical harmonic of degree 0: a color is its coefficient times this constant, plus 0.5.
const DEGREE_0: f32 = 0.282_094_79;

/// Seeded random number generator of a fit.
///
/// ```
/// use tercet_splat::fit::SplatFitRng;
/// let (mut a, mut b) = (SplatFitRng::new(7), SplatFitRng::new(7));
/// assert_eq!(a.unit(), b.unit());
/// assert!(a.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct SplatFitRng {
    stream: PhiloxStream,
    next: u64,
}

impl SplatFitRng {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> SplatFitRng {
        let stream = PhiloxStream {
            seed,
            stream: 0,
            step: 0,
        };
        SplatFitRng { stream, next: 0 }
    }

    fn turn(&mut self) -> u64 {
        let turn = self.next;
        self.next += 1;
        turn
    }

    /// Uniform random number in `[0, 1)`.
    pub fn unit(&mut self) -> f64 {
        let turn = self.turn();
        self.stream.unit(DType::F64, turn)
    }

    /// Uniform random index below `count`, which is at least 1.
    pub fn below(&mut self, count: usize) -> usize {
        ((self.unit() * count as f64) as usize).min(count.saturating_sub(1))
    }

    /// Standard normal random number.
    fn normal(&mut self) -> f64 {
        let turn = self.turn();
        self.stream.normal(DType::F64, turn)
    }
}

impl SplatScene {
    /// Gray Gaussians at random positions in a cube with half side `half` around `center`.
    pub fn random(
        count: usize,
        harmonics: usize,
        center: [f64; 3],
        half: f64,
        numbers: &mut SplatFitRng,
    ) -> SplatScene {
        let mut positions = Vec::with_capacity(3 * count);
        for _ in 0..count {
            positions.extend(center.map(|c| (c + half * (2.0 * numbers.unit() - 1.0)) as f32));
        }
        // Standard deviation of half the mean spacing of the Gaussians.
        let scale = (2.0 * half / (count.max(1) as f64).cbrt() / 2.0).ln();
        SplatScene {
            harmonics,
            positions,
            log_scales: vec![scale as f32; 3 * count],
            rotations: [1.0, 0.0, 0.0, 0.0].repeat(count),
            opacities: vec![INITIAL_OPACITY_LOGIT; count],
            colors: vec![0.0; 3 * harmonics * count],
        }
    }

    /// The same scene with another number of spherical harmonics; added coefficients are 0.
    #[must_use]
    pub fn with_harmonics(&self, harmonics: usize) -> SplatScene {
        let own = self.harmonics.max(1);
        let mut colors = Vec::with_capacity(3 * harmonics * self.len());
        for each in self.colors.chunks_exact(3 * own) {
            let kept = 3 * own.min(harmonics);
            colors.extend(&each[..kept]);
            colors.resize(colors.len() + 3 * harmonics - kept, 0.0);
        }
        SplatScene {
            harmonics,
            colors,
            ..self.clone()
        }
    }

    /// Initial states of a fit, with the names of [`FitShape`].
    ///
    /// # Errors
    /// [`SplatError::Tensor`] if a list does not match the number of Gaussians.
    pub fn fit_states(&self) -> Result<Vec<(&'static str, Tensor)>, SplatError> {
        let shape = FitShape::new(self.len(), self.harmonics, [0, 0]);
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

    /// Scene from the states of a fit, in the order of [`FitShape::names`], with the limit of
    /// anisotropy applied.
    ///
    /// # Errors
    /// [`SplatError::Tensor`] for a state that is not F32.
    pub fn from_fit_states(shape: &FitShape, states: &[Tensor]) -> Result<SplatScene, SplatError> {
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
        let mut log_scales = list("log_scales")?;
        if let Some(ratio) = shape.max_anisotropy {
            for own in log_scales.chunks_exact_mut(3) {
                let largest = own.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let least = largest - ratio.max(1.0).ln() as f32;
                own.iter_mut().for_each(|x| *x = x.max(least));
            }
        }
        Ok(SplatScene {
            harmonics: k,
            positions: list("positions")?,
            log_scales,
            rotations: list("rotations")?,
            opacities: list("opacities")?,
            colors,
        })
    }

    /// The visible Gaussians: finite, with an opacity of at least 1/255.
    #[must_use]
    pub fn visible(&self) -> SplatScene {
        let mut shown = SplatScene {
            harmonics: self.harmonics,
            ..SplatScene::default()
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

/// Logit of the initial opacity 0.1.
const INITIAL_OPACITY_LOGIT: f32 = -2.197_224_6;

/// Gaussians at points with these colors and the standard deviation `size`.
pub(super) fn scene_from_points(positions: Vec<f32>, colors: &[f32], size: f64) -> SplatScene {
    let count = positions.len() / 3;
    SplatScene {
        harmonics: 1,
        positions,
        log_scales: vec![size.ln() as f32; 3 * count],
        rotations: [1.0, 0.0, 0.0, 0.0].repeat(count),
        opacities: vec![INITIAL_OPACITY_LOGIT; count],
        colors: colors.iter().map(|c| (c - 0.5) / DEGREE_0).collect(),
    }
}

/// Moves nearly transparent Gaussians (opacity below 1/200) to other Gaussians, which are sampled
/// by opacity. Both Gaussians then have the opacity that composes to the original one, and 0.8 of
/// its size. The moved Gaussian gets a random offset within the other. Returns the indices of all
/// changed Gaussians; their optimizer moments should be reset.
pub fn relocate(scene: &mut SplatScene, numbers: &mut SplatFitRng) -> Vec<usize> {
    const MIN_OPACITY: f32 = 0.005;
    let opacities: Vec<f32> = scene.opacities.iter().map(|x| sigmoid(*x)).collect();
    let weight = |o: f32| if o >= MIN_OPACITY { f64::from(o) } else { 0.0 };
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
    let is_clear = |i: &usize| opacities[*i] < MIN_OPACITY;
    for i in (0..opacities.len()).filter(is_clear) {
        let chance = numbers.unit() * sum;
        let from = ends
            .partition_point(|end| *end <= chance)
            .min(ends.len() - 1);
        // The moved and the target Gaussian get the opacity 1 - (1 - o)^(1/2), so that both
        // together have opacity o.
        let own = sigmoid(scene.opacities[from]);
        let half = (1.0 - (1.0 - own).max(0.0).sqrt()).clamp(MIN_OPACITY, 0.99);
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
