//! Cameras: from a place and a target, from a file, or one that sees a whole scene.

use serde_json::{Map, Value};
use tercet::{Tensor, TensorError};
use tercet_ir::ops::splat::CAMERA_LEN;

use super::{Scene, SplatError};

type Vec3 = [f64; 3];

/// What is nearer than this, in units of the scene, is not drawn (Kerbl et al. 2023).
const NEAR: f64 = 0.2;

/// A pinhole camera: x right, y down, z ahead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SplatCamera {
    /// Where it is in the world.
    pub position: [f64; 3],
    /// Its right, down and ahead in the world, each of length 1 and at right angles.
    pub axes: [[f64; 3]; 3],
    /// Width and height of the image in pixels.
    pub image: [usize; 2],
    /// Focal lengths in pixels.
    pub focal: [f64; 2],
    /// Where what is straight ahead is in the image, in pixels from its upper left corner.
    pub center: [f64; 2],
}

/// A place, a target, a direction that is up, and an angle.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LookAt {
    /// Where the camera is.
    pub eye: [f64; 3],
    /// What is in the middle of the image.
    pub target: [f64; 3],
    /// What is up in the image.
    pub up: [f64; 3],
    /// The angle between the top and the bottom of the image, in degrees.
    pub fov: f64,
}

fn bad(reason: impl Into<String>) -> SplatError {
    SplatError::Camera {
        reason: reason.into(),
    }
}

fn cross(a: Vec3, b: Vec3) -> Vec3 {
    [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ]
}

pub(super) fn dot(a: Vec3, b: Vec3) -> f64 {
    (0..3).map(|i| a[i] * b[i]).sum()
}

/// A direction of length 1, unless it is none.
fn direction(a: Vec3) -> Option<Vec3> {
    let length = dot(a, a).sqrt();
    (length.is_normal()).then(|| a.map(|x| x / length))
}

/// The focal length in pixels of an angle over so many.
fn focal(fov: f64, pixels: usize) -> Result<f64, SplatError> {
    if !(0.1..=179.0).contains(&fov) {
        return Err(bad(format!("a field of view of {fov} degrees; 0.1 to 179")));
    }
    Ok(pixels as f64 / 2.0 / (fov.to_radians() / 2.0).tan())
}

/// The middle of an image.
pub(super) fn middle(image: [usize; 2]) -> [f64; 2] {
    image.map(|n| n as f64 / 2.0)
}

impl SplatCamera {
    /// The camera at a place that looks at another.
    ///
    /// # Errors
    /// [`SplatError::Camera`] when the places are one, `up` is along the way between them, or the angle is
    /// not between 0.1 and 179 degrees.
    pub fn look_at(look: &LookAt, image: [usize; 2]) -> Result<SplatCamera, SplatError> {
        let LookAt {
            eye,
            target,
            up,
            fov,
        } = *look;
        let way = [0, 1, 2].map(|i| target[i] - eye[i]);
        let ahead = direction(way).ok_or_else(|| bad("the eye is where the target is"))?;
        let up = direction(up).ok_or_else(|| bad("up is no direction"))?;
        let right = cross(ahead, up);
        let right = direction(right).filter(|_| dot(right, right) > 1e-12);
        let right = right.ok_or_else(|| bad("up is the direction in which the camera looks"))?;
        let focal = focal(fov, image[1])?;
        Ok(SplatCamera {
            position: eye,
            axes: [right, cross(ahead, right), ahead],
            image,
            focal: [focal; 2],
            center: middle(image),
        })
    }

    /// A camera before a scene (on the side of lower z, with y down, as scenes have it) that sees most of it:
    /// the middle of its splats in each axis, and nine in ten of them around that.
    ///
    /// # Errors
    /// As [`SplatCamera::look_at`].
    pub fn before(scene: &Scene, image: [usize; 2], fov: f64) -> Result<SplatCamera, SplatError> {
        let (target, distance) = most_of(scene, image, fov);
        let eye = [target[0], target[1], target[2] - distance];
        let look = LookAt {
            eye,
            target,
            up: [0.0, -1.0, 0.0],
            fov,
        };
        SplatCamera::look_at(&look, image)
    }

    /// Cameras around a scene, each at the distance of [`SplatCamera::before`], in one turn that goes a third of a right
    /// angle up and down on its way.
    ///
    /// # Errors
    /// As [`SplatCamera::look_at`].
    pub fn around(
        scene: &Scene,
        image: [usize; 2],
        fov: f64,
        count: usize,
    ) -> Result<Vec<SplatCamera>, SplatError> {
        let (target, distance) = most_of(scene, image, fov);
        let camera = |at: usize| {
            let turn = at as f64 / count as f64 * std::f64::consts::TAU;
            // Not in step with the turn, so that no height belongs to one side.
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

    /// A camera of a JSON document: an object, or the one at `index` of a list, with `position` (where it is),
    /// `rotation` (three rows; its columns are right, down and ahead in the world), `width` and `height`, and
    /// `fx` and `fy` in pixels or `fov` in degrees from top to bottom: what `cameras.json` of Kerbl et al. has.
    ///
    /// # Errors
    /// [`SplatError::Camera`] that says which field is missing or wrong.
    pub fn from_json(text: &str, index: usize) -> Result<SplatCamera, SplatError> {
        let value: Value =
            serde_json::from_str(text).map_err(|e| bad(format!("no JSON document: {e}")))?;
        let value = match &value {
            Value::Array(all) => all.get(index).ok_or_else(|| {
                let count = all.len();
                bad(format!("number {index} of {count}; the first is number 0"))
            })?,
            one => one,
        };
        let Value::Object(fields) = value else {
            return Err(bad("expected an object, or a list of objects"));
        };
        let position = vector(fields.get("position"), "position")?;
        let rotation = fields.get("rotation").and_then(Value::as_array);
        let rows = rotation.filter(|rows| rows.len() == 3);
        let rows = rows.ok_or_else(|| bad("`rotation` is not three rows"))?;
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

    /// The same view in another number of pixels.
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

    /// The block of numbers that the operators of splatting take.
    ///
    /// # Errors
    /// [`TensorError`] never in practice: the numbers are as many as the shape says.
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

/// The middle of a scene's splats in each axis, and from how far nine in ten of them around that are seen.
fn most_of(scene: &Scene, image: [usize; 2], fov: f64) -> (Vec3, f64) {
    let finite = |at: &&[f32]| at.iter().all(|x| x.is_finite());
    let at: Vec<&[f32]> = scene.positions.chunks_exact(3).filter(finite).collect();
    // The number below which a share of a list is; 0 of none.
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
    // The narrower side must hold it.
    let half = (fov.clamp(0.1, 179.0).to_radians() / 2.0).tan();
    let aspect = image[0] as f64 / image[1].max(1) as f64;
    (
        target,
        radius * (1.0 + 1.0 / (half * aspect.clamp(1e-3, 1.0))),
    )
}

fn number(value: &Value, name: &str) -> Result<f64, SplatError> {
    let number = value.as_f64().filter(|x| x.is_finite());
    number.ok_or_else(|| bad(format!("`{name}` is not made of numbers")))
}

fn positive(value: &Value, name: &str) -> Result<f64, SplatError> {
    let number = number(value, name)?;
    match number > 0.0 {
        true => Ok(number),
        false => Err(bad(format!("`{name}` is {number}; above 0"))),
    }
}

fn vector(value: Option<&Value>, name: &str) -> Result<Vec3, SplatError> {
    let list = value.and_then(Value::as_array).map(Vec::as_slice);
    let Some([x, y, z]) = list else {
        return Err(bad(format!("`{name}` is not made of three numbers")));
    };
    Ok([number(x, name)?, number(y, name)?, number(z, name)?])
}

fn side(fields: &Map<String, Value>, name: &str) -> Result<usize, SplatError> {
    let value = fields.get(name).and_then(Value::as_u64);
    let side = value.and_then(|n| usize::try_from(n).ok());
    side.filter(|&n| n > 0)
        .ok_or_else(|| bad(format!("`{name}` is no number of pixels")))
}
