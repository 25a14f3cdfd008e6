//! 3D Gaussian splatting scenes and their rendered images.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tercet::{DType, Device, Tensor, TensorType};
use tercet_models::splat::{
    LookAt, SplatCamera, SplatError, SplatFrame, SplatRenderer, SplatScene,
};

use crate::{array, errors, html};

/// A scene on a device.
#[pyclass(name = "Scene", module = "tercet", frozen)]
pub(crate) struct PyScene {
    scene: SplatScene,
    device: Device,
    /// The renderer, compiled for the image size of the last call.
    renderer: Mutex<Option<([usize; 2], SplatRenderer)>>,
}

impl PyScene {
    pub(crate) fn open(path: &Path, device: Device) -> Result<PyScene, SplatError> {
        Ok(PyScene {
            scene: SplatScene::open(path)?,
            device,
            renderer: Mutex::new(None),
        })
    }

    fn draw(&self, camera: &SplatCamera, background: [f32; 3]) -> Result<SplatFrame, SplatError> {
        // A panic while rendering is a bug. The renderer is then in the same state as after a
        // failed run.
        let mut last = self.renderer.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, renderer) = match last.take() {
            Some((size, renderer)) if size == camera.image => last.insert((size, renderer)),
            // Free the memory of the previous size first.
            Some(_) | None => {
                let renderer = SplatRenderer::new(&self.device, &self.scene, camera.image)?;
                last.insert((camera.image, renderer))
            }
        };
        renderer.draw(camera, background)
    }
}

#[pymethods]
impl PyScene {
    /// Renders the scene from `eye` towards `target`; without them, from a camera that shows most
    /// of the scene. `size` is width and height in pixels, `fov` the vertical field of view in
    /// degrees, `background` red, green and blue from 0 to 1.
    #[pyo3(signature = (size=(800, 600), *, eye=None, target=None, up=[0.0, -1.0, 0.0], fov=50.0, background=[0.0; 3]))]
    #[expect(clippy::too_many_arguments, reason = "Python keyword arguments")]
    fn render(
        &self,
        py: Python<'_>,
        size: (usize, usize),
        eye: Option<[f64; 3]>,
        target: Option<[f64; 3]>,
        up: [f64; 3],
        fov: f64,
        background: [f32; 3],
    ) -> PyResult<PyImage> {
        let image = [size.0, size.1];
        if !background.iter().all(|x| (0.0..=1.0).contains(x)) {
            let message = format!("background is {background:?}; expected numbers from 0 to 1");
            return Err(PyValueError::new_err(message));
        }
        let camera = match (eye, target) {
            (Some(eye), Some(target)) => {
                let look = LookAt {
                    eye,
                    target,
                    up,
                    fov,
                };
                SplatCamera::look_at(&look, image)
            }
            (None, None) => SplatCamera::in_front_of(&self.scene, image, fov),
            _ => {
                let message = "eye and target must be passed together";
                return Err(PyValueError::new_err(message));
            }
        };
        let camera = camera.map_err(errors::model)?;
        let frame = py.detach(|| self.draw(&camera, background));
        Ok(PyImage {
            frame: frame.map_err(errors::model)?,
        })
    }

    fn __len__(&self) -> usize {
        self.scene.len()
    }

    fn _repr_html_(&self) -> String {
        let rows = [
            ("splats", self.scene.len().to_string()),
            ("device", self.device.name().to_string()),
        ];
        html::record("tercet.Scene", &rows)
    }

    fn __repr__(&self) -> String {
        let splats = tercet::counted(self.scene.len(), "splat", "splats");
        format!("<tercet.Scene: {splats} on {}>", self.device.name())
    }
}

/// An image; notebooks display it.
#[pyclass(name = "Picture", module = "tercet", frozen)]
pub(crate) struct PyImage {
    frame: SplatFrame,
}

#[pymethods]
impl PyImage {
    /// Red, green and blue: uint8 of shape (height, width, 3).
    #[getter]
    fn array<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let [width, height] = self.frame.image;
        let ty = TensorType::new(DType::U8, &[height, width, 3]);
        let tensor = Tensor::from_bytes(ty, &self.frame.to_rgb8());
        array::to_numpy(py, tensor.map_err(errors::tensor)?)
    }

    /// The image as PNG bytes.
    fn png<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| encoded(&self.frame));
        let bytes = bytes.map_err(|e| errors::raise::<errors::TensorError>(&e))?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn _repr_png_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.png(py)
    }

    fn __repr__(&self) -> String {
        let [width, height] = self.frame.image;
        format!("<tercet.Picture: {width} x {height} pixels>")
    }
}

fn encoded(frame: &SplatFrame) -> Result<Vec<u8>, png::EncodingError> {
    let [width, height] = frame.image.map(|n| n as u32);
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&frame.to_rgb8())?;
    writer.finish()?;
    Ok(bytes)
}
