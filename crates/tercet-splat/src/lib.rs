//! 3D Gaussian splatting (Kerbl et al. 2023): `.ply` scene files, cameras, the rendering graph, and
//! the fitting graph ([`fit`]).

mod camera;
mod error;
pub mod fit;
mod ply;
mod save;
mod views;

pub use camera::{LookAt, SplatCamera};
pub use error::SplatError;
pub use views::{SplatView, looked_at, views};

use std::path::Path;

use tercet::ops::splat::SplatSceneOperands as Operands;
use tercet::{CompileOptions, DType, Device, Executable, Graph, Shape, Tensor, Type};

use tercet_files::MappedFile;

/// A Gaussian scene, in the layout of the splatting operators.
///
/// ```
/// use tercet_splat::{SplatScene, fit::SplatFitRng};
/// let scene = SplatScene::random(8, 1, [0.0; 3], 1.0, &mut SplatFitRng::new(0));
/// assert_eq!((scene.len(), scene.positions.len(), scene.rotations.len()), (8, 24, 32));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SplatScene {
    /// Spherical harmonics per channel: 1, 4, 9 or 16.
    pub harmonics: usize,
    /// Centers, `[N,3]`.
    pub positions: Vec<f32>,
    /// Natural logarithms of the standard deviations, `[N,3]`.
    pub log_scales: Vec<f32>,
    /// Quaternions `w x y z`, `[N,4]`.
    pub rotations: Vec<f32>,
    /// Opacities before the sigmoid, `[N]`.
    pub opacities: Vec<f32>,
    /// Spherical harmonics coefficients, `[N, harmonics, 3]`.
    pub colors: Vec<f32>,
}

impl SplatScene {
    /// Reads a scene from a `.ply` file.
    ///
    /// # Errors
    /// [`SplatError`] if the file cannot be read or is not a Gaussian scene.
    pub fn open(path: impl AsRef<Path>) -> Result<SplatScene, SplatError> {
        SplatScene::parse(&MappedFile::open(path)?)
    }

    /// Parses a scene from the bytes of a `.ply` file, binary little-endian or ASCII. Required
    /// properties: `x y z f_dc_0..2 f_rest_* opacity scale_0..2 rot_0..3`; others are ignored.
    ///
    /// # Errors
    /// [`SplatError`] with the missing, unknown or truncated part.
    pub fn parse(bytes: &[u8]) -> Result<SplatScene, SplatError> {
        ply::parse(bytes)
    }

    /// Reads an initial scene for a fit from a `.ply` file. The file contains Gaussians, or points
    /// `x y z` with optional `red green blue`. Each point becomes a Gaussian with the standard
    /// deviation `size` and opacity 0.1.
    ///
    /// # Errors
    /// Same errors as [`SplatScene::open`].
    pub fn open_points(path: impl AsRef<Path>, size: f64) -> Result<SplatScene, SplatError> {
        let bytes = MappedFile::open(path)?;
        if ply::has_splats(&bytes)? {
            return SplatScene::parse(&bytes);
        }
        let (positions, colors) = ply::points(&bytes)?;
        Ok(fit::scene_from_points(positions, &colors, size))
    }

    /// Number of Gaussians.
    pub fn len(&self) -> usize {
        self.opacities.len()
    }

    /// True if the scene has no Gaussians.
    pub fn is_empty(&self) -> bool {
        self.opacities.is_empty()
    }

    /// Rendering graph: parameters of the scene, an input `camera`, and the outputs `image`
    /// `[height, width, 3]` and `transmittance` `[height, width]`.
    ///
    /// # Errors
    /// [`SplatError::Graph`] if the sizes contradict each other or the image is too large.
    pub fn graph(&self, image: [usize; 2]) -> Result<Graph, SplatError> {
        let mut g = Graph::new();
        let scene = self.shapes().map(|(name, shape, _)| (name, shape));
        let [positions, log_scales, rotations, opacities, colors] =
            scene.map(|(name, shape)| g.param(name, Type::new(DType::F32, Shape::known(&shape))));
        let operands = Operands {
            positions: positions?,
            log_scales: log_scales?,
            rotations: rotations?,
            opacities: opacities?,
            colors: colors?,
        };
        let len = tercet::ops::splat::CAMERA_LEN;
        let camera = g.input("camera", Type::new(DType::F32, [len]))?;
        let drawn = g.gaussian_splat_render(&operands, camera, image)?;
        g.output("image", drawn)?;
        g.output("transmittance", drawn.port(1))?;
        Ok(g)
    }

    fn shapes(&self) -> [(&'static str, Vec<usize>, &[f32]); 5] {
        let n = self.len();
        [
            ("positions", vec![n, 3], &self.positions),
            ("log_scales", vec![n, 3], &self.log_scales),
            ("rotations", vec![n, 4], &self.rotations),
            ("opacities", vec![n], &self.opacities),
            ("colors", vec![n, self.harmonics, 3], &self.colors),
        ]
    }

    /// Parameters of the rendering graph by name.
    ///
    /// # Errors
    /// [`SplatError::Tensor`] if a list does not match the number of Gaussians.
    pub fn params(&self) -> Result<Vec<(&'static str, Tensor)>, SplatError> {
        let all = self.shapes().into_iter();
        all.map(|(name, shape, data)| Ok((name, Tensor::from_slice(&shape, data)?)))
            .collect()
    }
}

/// A compiled scene on a device, for one image size.
///
/// ```
/// use tercet::Device;
/// use tercet_splat::{SplatCamera, SplatRenderer, SplatScene, fit::SplatFitRng};
/// let scene = SplatScene::random(8, 1, [0.0; 3], 1.0, &mut SplatFitRng::new(0));
/// let camera = SplatCamera::in_front_of(&scene, [32, 16], 60.0)?;
/// let mut renderer = SplatRenderer::new(&Device::cpu(), &scene, [32, 16])?;
/// let frame = renderer.draw(&camera, [0.0; 3])?;
/// assert_eq!(frame.colors.len(), 32 * 16 * 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SplatRenderer {
    exe: Box<dyn Executable>,
    image: [usize; 2],
}

/// A rendered image, in row-major order.
///
/// ```
/// use tercet_splat::SplatFrame;
/// let (colors, transmittance) = (vec![0.0, 0.5, 1.0], vec![0.0]);
/// let frame = SplatFrame { image: [1, 1], colors, transmittance };
/// assert_eq!(frame.to_rgb8(), [0, 128, 255]);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SplatFrame {
    /// Width and height in pixels.
    pub image: [usize; 2],
    /// Red, green and blue of each pixel, 0 to 1.
    pub colors: Vec<f32>,
    /// Transmittance of each pixel: the visible fraction of the background.
    pub transmittance: Vec<f32>,
}

impl SplatFrame {
    /// RGB8 bytes, rounded; NaN becomes 0.
    pub fn to_rgb8(&self) -> Vec<u8> {
        let byte = |x: &f32| (x.clamp(0.0, 1.0) * 255.0).round() as u8;
        self.colors.iter().map(byte).collect()
    }
}

impl SplatRenderer {
    /// Compiles a scene for images of `[width, height]` pixels and uploads it to the device.
    ///
    /// # Errors
    /// [`SplatError`] if the scene cannot be compiled for the device.
    pub fn new(
        device: &Device,
        scene: &SplatScene,
        image: [usize; 2],
    ) -> Result<SplatRenderer, SplatError> {
        let graph = scene.graph(image)?;
        let mut exe = device.compile(&graph, &CompileOptions::new())?;
        for (name, tensor) in scene.params()? {
            exe.set_param(name, tensor)?;
        }
        Ok(SplatRenderer { exe, image })
    }

    /// Renders a frame. The camera's image size must equal the size of the renderer.
    ///
    /// # Errors
    /// [`SplatError`] if the sizes differ or the run fails.
    pub fn draw(
        &mut self,
        camera: &SplatCamera,
        background: [f32; 3],
    ) -> Result<SplatFrame, SplatError> {
        if camera.image != self.image {
            let ([width, height], [x, y]) = (self.image, camera.image);
            let reason = format!(
                "the camera's image has {x}x{y} pixels; the renderer expects {width}x{height}"
            );
            return Err(SplatError::Camera { reason });
        }
        let camera = camera.block(background)?;
        let results = self.exe.run(&[("camera", &camera)])?;
        let list = |at: usize| results[at].as_slice::<f32>().map(<[f32]>::to_vec);
        Ok(SplatFrame {
            image: self.image,
            colors: list(0)?,
            transmittance: list(1)?,
        })
    }
}
