//! Images with their camera poses in the NeRF format (Mildenhall et al. 2020; `transforms.json`).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::camera::{dot, middle};
use crate::{SplatCamera, SplatError};

/// An image with its camera pose and lens.
///
/// ```
/// use std::path::Path;
/// use tercet_splat::views;
/// let json = r#"{"camera_angle_x": 0.7, "frames": [{
///     "file_path": "cat", "transform_matrix": [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 2]]
/// }]}"#;
/// let views = views(json, Path::new("photos"))?;
/// assert_eq!(views[0].image, Path::new("photos/cat.png"));
/// assert_eq!(views[0].camera([64, 48])?.position, [0.0, 0.0, 2.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct SplatView {
    /// Path of the image file.
    pub image: PathBuf,
    /// Camera position in world coordinates.
    position: [f64; 3],
    /// Right, down and forward directions of the camera.
    axes: [[f64; 3]; 3],
    lens: CameraLens,
}

/// Lens parameters of the document; all are optional.
#[derive(Clone, Copy, Debug, PartialEq)]
struct CameraLens {
    /// Width and height of the image that the other parameters refer to.
    image: [Option<f64>; 2],
    focal: [Option<f64>; 2],
    /// Horizontal and vertical field of view in radians.
    angles: [Option<f64>; 2],
    center: [Option<f64>; 2],
}

/// Names of lens distortion parameters, which a pinhole camera does not support.
const DISTORTION: [&str; 8] = ["k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2"];

fn bad(reason: impl Into<String>) -> SplatError {
    SplatError::Views {
        reason: reason.into(),
    }
}

/// Reads the views of a document with `frames`, each with `file_path` and `transform_matrix`
/// (camera to world; x right, y up, z backward).
///
/// Either `camera_angle_x` in radians or `fl_x` in pixels is required, per document or per frame.
/// `camera_angle_y`, `fl_y`, `cx`, `cy`, `w` and `h` are optional. Paths are relative to `folder`;
/// a path without an extension gets `.png`.
///
/// # Errors
/// [`SplatError::Views`] with the frame and the number that is missing, not finite or out of range.
pub fn views(text: &str, folder: &Path) -> Result<Vec<SplatView>, SplatError> {
    let value: Value =
        serde_json::from_str(text).map_err(|e| bad(format!("no JSON document: {e}")))?;
    let Value::Object(all) = &value else {
        return Err(bad("expected an object with `frames`"));
    };
    let frames = all.get("frames").and_then(Value::as_array);
    let frames = frames.ok_or_else(|| bad("`frames` is not a list"))?;
    let views = frames.iter().enumerate().map(|(at, frame)| {
        let Value::Object(frame) = frame else {
            return Err(bad(format!("frame {at} is not an object")));
        };
        view(all, frame, folder).map_err(|reason| bad(format!("frame {at}: {reason}")))
    });
    views.collect()
}

fn view(
    all: &Map<String, Value>,
    frame: &Map<String, Value>,
    folder: &Path,
) -> Result<SplatView, String> {
    let name = frame.get("file_path").and_then(Value::as_str);
    let name = name.filter(|name| !name.is_empty());
    let mut picture = folder.join(name.ok_or("`file_path` is not a path")?);
    if picture.extension().is_none() {
        picture.set_extension("png");
    }
    let number = |name: &str| -> Result<Option<f64>, String> {
        let Some(value) = frame.get(name).or_else(|| all.get(name)) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|x| x.is_finite());
        number.map(Some).ok_or(format!("`{name}` is not a number"))
    };
    let above_zero = |name: &str| -> Result<Option<f64>, String> {
        match number(name)? {
            Some(x) if x <= 0.0 => Err(format!("`{name}` is {x}; above 0")),
            x => Ok(x),
        }
    };
    for name in DISTORTION {
        if number(name)?.is_some_and(|x| x != 0.0) {
            return Err(format!("`{name}` is not 0; undistort the images first"));
        }
    }
    let lens = CameraLens {
        image: [above_zero("w")?, above_zero("h")?],
        focal: [above_zero("fl_x")?, above_zero("fl_y")?],
        angles: [above_zero("camera_angle_x")?, above_zero("camera_angle_y")?],
        center: [number("cx")?, number("cy")?],
    };
    if lens.focal[0].is_none() && lens.angles[0].is_none() {
        return Err("neither `camera_angle_x` nor `fl_x`".to_string());
    }
    if lens.angles.iter().flatten().any(|a| *a >= 3.13) {
        return Err("the camera angle is pi or more; expected an angle in radians".to_string());
    }
    let columns = columns(frame.get("transform_matrix"))?;
    let [right, up, behind, position] = columns;
    Ok(SplatView {
        image: picture,
        position,
        axes: [right, up.map(|x| -x), behind.map(|x| -x)],
        lens,
    })
}

/// The first three rows of a matrix with three or four rows, by column.
fn columns(value: Option<&Value>) -> Result<[[f64; 3]; 4], String> {
    let rows = value
        .and_then(Value::as_array)
        .filter(|rows| matches!(rows.len(), 3 | 4));
    let rows = rows.ok_or("`transform_matrix` does not have three or four rows")?;
    let mut columns = [[0.0; 3]; 4];
    for (i, row) in rows.iter().take(3).enumerate() {
        let row = row.as_array().filter(|row| row.len() == 4);
        let row = row.ok_or("a row of `transform_matrix` does not have four numbers")?;
        for (column, value) in columns.iter_mut().zip(row) {
            let number = value.as_f64().filter(|x| x.is_finite());
            column[i] = number.ok_or("`transform_matrix` is not made of finite numbers")?;
        }
    }
    let is_turn = (0..3).all(|i| {
        (0..3).all(|j| {
            let want = f64::from(u8::from(i == j));
            (dot(columns[i], columns[j]) - want).abs() < 1e-2
        })
    });
    match is_turn {
        true => Ok(columns),
        false => Err("`transform_matrix` is not a rotation and translation".to_string()),
    }
}

impl SplatView {
    /// Camera for an image of `[width, height]` pixels.
    ///
    /// # Errors
    /// [`SplatError::Views`] if the document declares another image size.
    pub fn camera(&self, image: [usize; 2]) -> Result<SplatCamera, SplatError> {
        let CameraLens {
            image: said,
            focal,
            angles,
            center,
        } = self.lens;
        for (said, own) in said.into_iter().zip(image) {
            if said.is_some_and(|n| n != own as f64) {
                let ([width, height], path) = (image, self.image.display());
                return Err(bad(format!(
                    "{path} has {width}x{height} pixels, which differs from `w` and `h`"
                )));
            }
        }
        let of_angle = |i: usize| Some(image[i] as f64 / 2.0 / (angles[i]? / 2.0).tan());
        let x = focal[0].or_else(|| of_angle(0));
        let x = x.ok_or_else(|| bad("neither `camera_angle_x` nor `fl_x`"))?;
        let y = focal[1].or_else(|| of_angle(1)).unwrap_or(x);
        let middle = middle(image);
        Ok(SplatCamera {
            position: self.position,
            axes: self.axes,
            image,
            focal: [x, y],
            center: [0, 1].map(|i| center[i].unwrap_or(middle[i])),
        })
    }
}

/// Point that the cameras look at, and the mean distance of the cameras from it. The point
/// minimizes the squared distance to the viewing rays. `None` if all cameras look in the same
/// direction.
pub fn looked_at(cameras: &[SplatCamera]) -> Option<([f64; 3], f64)> {
    // Normal equations: sum over the cameras of (1 - a a^T) x = (1 - a a^T) p.
    let (mut m, mut r) = ([[0.0; 3]; 3], [0.0; 3]);
    for camera in cameras {
        let (a, p) = (camera.axes[2], camera.position);
        let along = dot(a, p);
        for (i, (row, r)) in m.iter_mut().zip(&mut r).enumerate() {
            for (j, x) in row.iter_mut().enumerate() {
                *x += f64::from(u8::from(i == j)) - a[i] * a[j];
            }
            *r += p[i] - a[i] * along;
        }
    }
    // Cramer's rule.
    let det = |m: [[f64; 3]; 3]| {
        let minor = |a: usize, b: usize| m[1][a] * m[2][b] - m[1][b] * m[2][a];
        m[0][0] * minor(1, 2) - m[0][1] * minor(0, 2) + m[0][2] * minor(0, 1)
    };
    let whole = det(m);
    let count = cameras.len() as f64;
    let agree = whole.abs() > 1e-6 * count.powi(3);
    if !agree {
        return None;
    }
    let point = [0, 1, 2].map(|column| {
        let mut m = m;
        m.iter_mut().zip(r).for_each(|(row, r)| row[column] = r);
        det(m) / whole
    });
    let away = cameras.iter().map(|camera| {
        let d = [0, 1, 2].map(|i| camera.position[i] - point[i]);
        dot(d, d).sqrt()
    });
    Some((point, away.sum::<f64>() / count))
}
