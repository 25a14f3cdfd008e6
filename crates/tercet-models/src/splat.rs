//! Scenes of 3-D Gaussians (Kerbl et al. 2023): their `.ply` files, cameras, the graph that draws them, and the one that
//! fits them to pictures ([`fit`]).

mod camera;
mod error;
pub mod fit;
mod ply;
mod save;
mod views;

pub use camera::{LookAt, SplatCamera};
pub use error::SplatError;
pub use views::{View, looked_at, views};

use std::path::Path;

use tercet::{CompileOptions, DType, Device, Executable, Graph, Shape, Tensor, Type};
use tercet_ir::ops::splat::Scene as Operands;

use crate::mmap::MappedFile;

/// A scene, as the operators of splatting take it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scene {
    /// Spherical harmonics of each channel: 1, 4, 9 or 16.
    pub harmonics: usize,
    /// `[N,3]`
    pub positions: Vec<f32>,
    /// `[N,3]`: logarithms of standard deviations.
    pub log_scales: Vec<f32>,
    /// `[N,4]`: quaternions `w x y z`.
    pub rotations: Vec<f32>,
    /// `[N]`: opacities before the sigmoid.
    pub opacities: Vec<f32>,
    /// `[N, harmonics, 3]`
    pub colors: Vec<f32>,
}

impl Scene {
    /// The scene of a `.ply` file.
    ///
    /// # Errors
    /// [`SplatError`]: it cannot be read, or is no scene of Gaussians.
    pub fn open(path: impl AsRef<Path>) -> Result<Scene, SplatError> {
        Scene::parse(&MappedFile::open(path)?)
    }

    /// The scene of the bytes of a `.ply` file, binary little-endian or ascii, with the properties `x y z
    /// f_dc_0..2 f_rest_* opacity scale_0..2 rot_0..3`; others are passed over.
    ///
    /// # Errors
    /// [`SplatError`] that says what is missing, unknown or too short.
    pub fn parse(bytes: &[u8]) -> Result<Scene, SplatError> {
        ply::parse(bytes)
    }

    /// A scene to begin a fit with: that of a `.ply` file of Gaussians, or of one of points `x y z`, with `red green blue` if it
    /// has them, of which each becomes a Gaussian as wide as `size`, a tenth opaque.
    ///
    /// # Errors
    /// As [`Scene::open`].
    pub fn open_points(path: impl AsRef<Path>, size: f64) -> Result<Scene, SplatError> {
        let bytes = MappedFile::open(path)?;
        if ply::has_splats(&bytes)? {
            return Scene::parse(&bytes);
        }
        let (positions, colors) = ply::points(&bytes)?;
        Ok(fit::of_points(positions, &colors, size))
    }

    /// How many Gaussians it has.
    pub fn len(&self) -> usize {
        self.opacities.len()
    }

    /// True without Gaussians.
    pub fn is_empty(&self) -> bool {
        self.opacities.is_empty()
    }

    /// The graph that draws it: parameters for the scene, an input `camera`, and the outputs `image`
    /// `[height, width, 3]` and `transmittance` `[height, width]`.
    ///
    /// # Errors
    /// [`SplatError::Graph`] when the sizes do not agree or the image is too large.
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
        let len = tercet_ir::ops::splat::CAMERA_LEN;
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

    /// The parameters of its graph.
    ///
    /// # Errors
    /// [`SplatError::Tensor`] when the lists are not as long as the number of Gaussians says.
    pub fn params(&self) -> Result<Vec<(&'static str, Tensor)>, SplatError> {
        let all = self.shapes().into_iter();
        all.map(|(name, shape, data)| Ok((name, Tensor::from_slice(&shape, data)?)))
            .collect()
    }
}

/// A scene on a device, ready to be drawn in one size.
pub struct SplatRenderer {
    exe: Box<dyn Executable>,
    image: [usize; 2],
}

/// An image, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct Frame {
    /// Width and height in pixels.
    pub image: [usize; 2],
    /// Red, green and blue of each pixel, 0 to 1.
    pub colors: Vec<f32>,
    /// How much of the background each pixel lets through.
    pub transmittance: Vec<f32>,
}

impl Frame {
    /// Three bytes for each pixel, rounded; what is not a number is 0.
    pub fn to_rgb8(&self) -> Vec<u8> {
        let byte = |x: &f32| (x.clamp(0.0, 1.0) * 255.0).round() as u8;
        self.colors.iter().map(byte).collect()
    }
}

impl SplatRenderer {
    /// Compiles a scene for images of `[width, height]` pixels and puts it on the device.
    ///
    /// # Errors
    /// [`SplatError`] when the device cannot run it.
    pub fn new(
        device: &Device,
        scene: &Scene,
        image: [usize; 2],
    ) -> Result<SplatRenderer, SplatError> {
        let graph = scene.graph(image)?;
        let mut exe = device.compile(&graph, &CompileOptions::new())?;
        for (name, tensor) in scene.params()? {
            exe.set_param(name, tensor)?;
        }
        Ok(SplatRenderer { exe, image })
    }

    /// Draws a frame. The camera's image must have the size that this was made for.
    ///
    /// # Errors
    /// [`SplatError`] when it has another size, or the run fails.
    pub fn draw(
        &mut self,
        camera: &SplatCamera,
        background: [f32; 3],
    ) -> Result<Frame, SplatError> {
        if camera.image != self.image {
            let ([width, height], [x, y]) = (self.image, camera.image);
            let reason = format!("an image of {x}x{y} pixels where {width}x{height} are drawn");
            return Err(SplatError::Camera { reason });
        }
        let camera = camera.block(background)?;
        let results = self.exe.run(&[("camera", &camera)])?;
        let list = |at: usize| results[at].as_slice::<f32>().map(<[f32]>::to_vec);
        Ok(Frame {
            image: self.image,
            colors: list(0)?,
            transmittance: list(1)?,
        })
    }
}
