//! Cameras for Gaussian splatting: from a position and a target, from a JSON file, or placed to
//! show a whole scene.

use serde_json::{Map, Value};
use tercet::ops::splat::CAMERA_LEN;
use tercet::{Tensor, TensorError};

use crate::{SplatError, SplatScene};

type CameraVec3 = [f64; 3];

/// Near plane in scene units: closer splats are not drawn (Kerbl et al. 2023).
const NEAR: f64 = 0.2;

/// A pinhole camera with x to the right, y down and z forward.
///
/// ```
/// use tercet_splat::{LookAt, SplatCamera};
/// let (eye, target) = ([0.0, 0.0, -2.0], [0.0; 3]);
/// let look = LookAt { eye, target, up: [0.0, -1.0, 0.0], fov: 60.0 };
/// let camera = SplatCamera::look_at(&look, [640, 480])?;
/// assert_eq!((camera.axes[2], camera.center), ([0.0, 0.0, 1.0], [320.0, 240.0]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplatCamera {
    /// Position in world coordinates.
    pub position: [f64; 3],
    /// Right, down and forward directions in world coordinates, orthonormal.
    pub axes: [[f64; 3]; 3],
    /// Width and height of the image in pixels.
    pub image: [usize; 2],
    /// Focal lengths in pixels.
    pub focal: [f64; 2],
    /// Principal point in pixels from the upper left corner.
    pub center: [f64; 2],
}

/// Camera parameters: position, target, up direction and field of view.
///
/// ```
/// use tercet_splat::{LookAt, SplatCamera};
/// let (eye, target) = ([0.0, 0.0, -2.0], [0.0; 3]);
/// let look = LookAt { eye, target, up: [0.0, -1.0, 0.0], fov: 60.0 };
/// assert!(SplatCamera::look_at(&look, [640, 480]).is_ok());
/// assert!(SplatCamera::look_at(&LookAt { target: eye, ..look }, [640, 480]).is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookAt {
    /// Position of the camera.
    pub eye: [f64; 3],
    /// Point at the center of the image.
    pub target: [f64; 3],
    /// Up direction of the image.
    pub up: [f64; 3],
    /// Vertical field of view in degrees.
    pub fov: f64,
}

fn bad(reason: impl Into<String>) -> SplatError {
    SplatError::Camera {
        reason: reason.into(),
    }
}

fn cross(a: CameraVec3, b: CameraVec3) -> CameraVec3 {
    [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ]
}

pub(super) fn dot(a: CameraVec3, b: CameraVec3) -> f64 {
    (0..3).map(|i| a[i] * b[i]).sum()
}

/// Unit vector of this direction; `None` for a zero or non-finite vector.
fn direction(a: CameraVec3) -> Option<CameraVec3> {
    let length = dot(a, a).sqrt();
    (length.is_normal()).then(|| a.map(|x| x / length))
}

/// Focal length in pixels for a field of view over this number of pixels.
fn focal(fov: f64, pixels: usize) -> Result<f64, SplatError> {
    if !(0.1..=179.0).contains(&fov) {
        return Err(bad(format!(
            "field of view {fov} is out of range; expected 0.1 to 179 degrees"
        )));
    }
    Ok(pixels as f64 / 2.0 / (fov.to_radians() / 2.0).tan())
}

/// Center of an image in pixels.
pub(super) fn middle(image: [usize; 2]) -> [f64; 2] {
    image.map(|n| n as f64 / 2.0)
}

impl SplatCamera {
    /// Camera at `eye` that looks at `target`.
    ///
    /// # Errors
    /// [`SplatError::Camera`] if the two points coincide, if `up` is parallel to the viewing
    /// direction, or if the field of view is not between 0.1 and 179 degrees.
    pub fn look_at(look: &LookAt, image: [usize; 2]) -> Result<SplatCamera, SplatError> {
        let LookAt {
            eye,
            target,
            up,
            fov,
        } = *look;
        let way = [0, 1, 2].map(|i| target[i] - eye[i]);
        let ahead = direction(way).ok_or_else(|| bad("eye and target are the same point"))?;
        let up = direction(up)
            .ok_or_else(|| bad("up is not a valid direction; expected a finite nonzero vector"))?;
        let right = cross(ahead, up);
        let right = direction(right).filter(|_| dot(right, right) > 1e-12);
        let right = right.ok_or_else(|| bad("up is parallel to the viewing direction"))?;
        let focal = focal(fov, image[1])?;
        Ok(SplatCamera {
            position: eye,
            axes: [right, cross(ahead, right), ahead],
            image,
            focal: [focal; 2],
            center: middle(image),
        })
    }

    /// Camera in front of a scene, on the side of lower z with y down, as scenes have it. The
    /// camera looks at the median position of the splats and shows at least nine in ten of them.
    ///
    /// # Errors
    /// Same errors as [`SplatCamera::look_at`].
    pub fn in_front_of(
        scene: &SplatScene,
        image: [usize; 2],
        fov: f64,
    ) -> Result<SplatCamera, SplatError> {
        let (target, distance) = bounding_view(scene, image, fov);
        let eye = [target[0], target[1], target[2] - distance];
        let look = LookAt {
            eye,
            target,
            up: [0.0, -1.0, 0.0],
            fov,
        };
        SplatCamera::look_at(&look, image)
    }

    /// `count` cameras around a scene at the distance of [`SplatCamera::in_front_of`]. The cameras
    /// form one full turn with elevations between -30 and 30 degrees.
    ///
    /// # Errors
    /// Same errors as [`SplatCamera::look_at`].
    pub fn around(
        scene: &SplatScene,
        image: [usize; 2],
        fov: f64,
        count: usize,
    ) -> Result<Vec<SplatCamera>, SplatError> {
        let (target, distance) = bounding_view(scene, image, fov);
        let camera = |at: usize| {
            let turn = at as f64 / count as f64 * std::f64::consts::TAU;
            // The golden angle decorrelates elevation and azimuth.
            let height = (2.399_963 * at as f64).sin() * std::f64::consts::FRAC_PI_6;
            let (flat, up) = (height.cos() * distance, height.sin() * distance);
            let away = [flat * turn.sin(), up, -flat * turn.cos()];
            let look = LookAt {
                eye: [0, 1, 2].map(|i| target[i] + away[i]),
                target,
                up: [0.0, -1.0, 0.0],
                fov,
            };
            SplatCamera::look_at(&look, image)
        };
        (0..count).map(camera).collect()
    }

    /// Reads a camera from a JSON document: an object, or element `index` of a list. The document
    /// has the format of `cameras.json` of Kerbl et al. The fields are:
    ///
    /// - `position`: position in world coordinates.
    /// - `rotation`: three rows; the columns are the right, down and forward directions in world
    ///   coordinates.
    /// - `width` and `height`: image size in pixels.
    /// - `fx` and `fy` in pixels, or the vertical field of view `fov` in degrees.
    ///
    /// # Errors
    /// [`SplatError::Camera`] with the missing or invalid field.
    pub fn from_json(text: &str, index: usize) -> Result<SplatCamera, SplatError> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| bad(format!("no JSON document: {e}")))?;
        let value = match &value {
            Value::Array(all) => all.get(index).ok_or_else(|| {
                let count = all.len();
                bad(format!(
                    "index {index} is out of range; the list has {count} cameras, counted from 0"
                ))
            })?,
            one => one,
        };
        let Value::Object(fields) = value else {
            return Err(bad("expected an object, or a list of objects"));
        };
        let position = vector(fields.get("position"), "position")?;
        let rotation = fields.get("rotation").and_then(Value::as_array);
        let rows = rotation.filter(|rows| rows.len() == 3);
        let rows = rows.ok_or_else(|| bad("`rotation` does not have three rows"))?;
        let [a, b, c] = [0, 1, 2].map(|i| vector(rows.get(i), "rotation"));
        let rows = [a?, b?, c?];
        let axes = [0, 1, 2].map(|i| [rows[0][i], rows[1][i], rows[2][i]]);
        let is_turn = (0..3).all(|i| {
            (0..3).all(|j| (dot(axes[i], axes[j]) - f64::from(u8::from(i == j))).abs() < 1e-3)
        });
        if !is_turn {
            return Err(bad(
                "the columns of `rotation` are not three directions at right angles",
            ));
        }
        let image = [side(fields, "width")?, side(fields, "height")?];
        let focal = match (fields.get("fx"), fields.get("fy"), fields.get("fov")) {
            (Some(x), Some(y), _) => [positive(x, "fx")?, positive(y, "fy")?],
            (_, _, Some(fov)) => [focal(positive(fov, "fov")?, image[1])?; 2],
            _ => return Err(bad("neither `fx` and `fy` nor `fov`")),
        };
        Ok(SplatCamera {
            position,
            axes,
            image,
            focal,
            center: middle(image),
        })
    }

    /// The same view at another resolution.
    #[must_use]
    pub fn resized(self, image: [usize; 2]) -> SplatCamera {
        let scale = |i: usize| image[i] as f64 / self.image[i].max(1) as f64;
        SplatCamera {
            focal: [0, 1].map(|i| self.focal[i] * scale(i)),
            center: [0, 1].map(|i| self.center[i] * scale(i)),
            image,
            ..self
        }
    }

    /// Camera block for the splatting operators, F32 `[25]`.
    ///
    /// # Errors
    /// [`TensorError`] is not expected in practice: the number of values matches the shape.
    pub fn block(&self, background: [f32; 3]) -> Result<Tensor, TensorError> {
        let mut block = Vec::with_capacity(CAMERA_LEN);
        for axis in self.axes {
            block.extend(axis.map(|x| x as f32));
            block.push(-dot(axis, self.position) as f32);
        }
        block.extend([0.0, 0.0, 0.0, 1.0]);
        block.extend(self.focal.map(|x| x as f32));
        block.extend(self.center.map(|x| x as f32));
        block.extend([NEAR as f32, f32::INFINITY]);
        block.extend(background);
        Tensor::from_slice(&[CAMERA_LEN], &block)
    }
}

/// Median position of a scene's splats, and the distance at which a camera shows nine in ten of
/// them.
fn bounding_view(scene: &SplatScene, image: [usize; 2], fov: f64) -> (CameraVec3, f64) {
    let finite = |at: &&[f32]| at.iter().all(|x| x.is_finite());
    let at: Vec<&[f32]> = scene.positions.chunks_exact(3).filter(finite).collect();
    // Quantile of a list; 0 for an empty list.
    let share = |mut list: Vec<f64>, part: f64| {
        list.sort_by(f64::total_cmp);
        let last = list.len().saturating_sub(1) as f64;
        list.get((last * part) as usize).copied().unwrap_or(0.0)
    };
    let target = [0, 1, 2].map(|i| {
        let along = at.iter().map(|at| f64::from(at[i]));
        share(along.collect(), 0.5)
    });
    let away = at.iter().map(|at| {
        let d = [0, 1, 2].map(|i| f64::from(at[i]) - target[i]);
        dot(d, d).sqrt()
    });
    let radius = share(away.collect(), 0.9).max(NEAR);
    // The shorter side of the image must show the whole radius.
    let half = (fov.clamp(0.1, 179.0).to_radians() / 2.0).tan();
    let aspect = image[0] as f64 / image[1].max(1) as f64;
    (
        target,
        radius * (1.0 + 1.0 / (half * aspect.clamp(1e-3, 1.0))),
    )
}

fn number(value: &Value, name: &str) -> Result<f64, SplatError> {
    let number = value.as_f64().filter(|x| x.is_finite());
    number.ok_or_else(|| bad(format!("`{name}` is not numeric; expected finite numbers")))
}

fn positive(value: &Value, name: &str) -> Result<f64, SplatError> {
    let number = number(value, name)?;
    match number > 0.0 {
        true => Ok(number),
        false => Err(bad(format!(
            "`{name}` is {number}; expected a number above 0"
        ))),
    }
}

fn vector(value: Option<&Value>, name: &str) -> Result<CameraVec3, SplatError> {
    let list = value.and_then(Value::as_array).map(Vec::as_slice);
    let Some([x, y, z]) = list else {
        return Err(bad(format!("`{name}` does not have three numbers")));
    };
    Ok([number(x, name)?, number(y, name)?, number(z, name)?])
}

fn side(fields: &Map<String, Value>, name: &str) -> Result<usize, SplatError> {
    let value = fields.get(name).and_then(Value::as_u64);
    let side = value.and_then(|n| usize::try_from(n).ok());
    side.filter(|&n| n > 0)
        .ok_or_else(|| bad(format!("`{name}` is not a positive number of pixels")))
}
