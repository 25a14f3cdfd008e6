//! Pictures with the cameras that took them, as NeRF keeps them (Mildenhall et al. 2020; `transforms.json`).

use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::camera::{dot, middle};
use super::{SplatCamera, SplatError};

/// A picture and how it was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// The picture's file.
    pub picture: PathBuf,
    /// Where the camera was.
    position: [f64; 3],
    /// Its right, down and ahead.
    axes: [[f64; 3]; 3],
    lens: Lens,
}

/// What the document says of the lens, as far as it does.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Lens {
    /// Width and height of the picture that the other numbers are of.
    image: [Option<f64>; 2],
    focal: [Option<f64>; 2],
    /// Angles from left to right and from top to bottom, in radians.
    angles: [Option<f64>; 2],
    center: [Option<f64>; 2],
}

/// Names of numbers that bend lines, which pinhole cameras do not.
const DISTORTION: [&str; 8] = ["k1", "k2", "k3", "k4", "k5", "k6", "p1", "p2"];

fn bad(reason: impl Into<String>) -> SplatError {
    SplatError::Views {
        reason: reason.into(),
    }
}

/// The views of a document: `frames` with `file_path` and `transform_matrix` (from the camera to the world; x right, y up,
/// z behind) each, and, for all or for each, `camera_angle_x` in radians or `fl_x` in pixels, and as far as they are
/// known `camera_angle_y`, `fl_y`, `cx`, `cy`, `w`, `h`. Paths are those of `folder`; one without an ending is a `.png`.
///
/// # Errors
/// [`SplatError::Views`] that says which number of which frame is missing, not finite or not as it should be.
pub fn views(text: &str, folder: &Path) -> Result<Vec<View>, SplatError> {
    let value: Value =
        serde_json::from_str(text).map_err(|e| bad(format!("no JSON document: {e}")))?;
    let Value::Object(all) = &value else {
        return Err(bad("expected an object with `frames`"));
    };
    let frames = all.get("frames").and_then(Value::as_array);
    let frames = frames.ok_or_else(|| bad("`frames` is no list"))?;
    let views = frames.iter().enumerate().map(|(at, frame)| {
        let Value::Object(frame) = frame else {
            return Err(bad(format!("frame {at} is no object")));
        };
        view(all, frame, folder).map_err(|reason| bad(format!("frame {at}: {reason}")))
    });
    views.collect()
}

fn view(
    all: &Map<String, Value>,
    frame: &Map<String, Value>,
    folder: &Path,
) -> Result<View, String> {
    let name = frame.get("file_path").and_then(Value::as_str);
    let name = name.filter(|name| !name.is_empty());
    let mut picture = folder.join(name.ok_or("`file_path` is no path")?);
    if picture.extension().is_none() {
        picture.set_extension("png");
    }
    let number = |name: &str| -> Result<Option<f64>, String> {
        let Some(value) = frame.get(name).or_else(|| all.get(name)) else {
            return Ok(None);
        };
        let number = value.as_f64().filter(|x| x.is_finite());
        number.map(Some).ok_or(format!("`{name}` is no number"))
    };
    let above_zero = |name: &str| -> Result<Option<f64>, String> {
        match number(name)? {
            Some(x) if x <= 0.0 => Err(format!("`{name}` is {x}; above 0")),
            x => Ok(x),
        }
    };
    for name in DISTORTION {
        if number(name)?.is_some_and(|x| x != 0.0) {
            return Err(format!("`{name}` is not 0; undistort the pictures first"));
        }
    }
    let lens = Lens {
        image: [above_zero("w")?, above_zero("h")?],
        focal: [above_zero("fl_x")?, above_zero("fl_y")?],
        angles: [above_zero("camera_angle_x")?, above_zero("camera_angle_y")?],
        center: [number("cx")?, number("cy")?],
    };
    if lens.focal[0].is_none() && lens.angles[0].is_none() {
        return Err("neither `camera_angle_x` nor `fl_x`".to_string());
    }
    if lens.angles.iter().flatten().any(|a| *a >= 3.13) {
        return Err("an angle of half a turn or more; they are in radians".to_string());
    }
    let columns = columns(frame.get("transform_matrix"))?;
    let [right, up, behind, position] = columns;
    Ok(View {
        picture,
        position,
        axes: [right, up.map(|x| -x), behind.map(|x| -x)],
        lens,
    })
}

/// The first three numbers of the columns of a matrix of three or four rows.
fn columns(value: Option<&Value>) -> Result<[[f64; 3]; 4], String> {
    let rows = value
        .and_then(Value::as_array)
        .filter(|rows| matches!(rows.len(), 3 | 4));
    let rows = rows.ok_or("`transform_matrix` is not three or four rows")?;
    let mut columns = [[0.0; 3]; 4];
    for (i, row) in rows.iter().take(3).enumerate() {
        let row = row.as_array().filter(|row| row.len() == 4);
        let row = row.ok_or("a row of `transform_matrix` is not four numbers")?;
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
        false => Err("`transform_matrix` is no rotation and shift".to_string()),
    }
}

impl View {
    /// The camera for a picture of `[width, height]` pixels.
    ///
    /// # Errors
    /// [`SplatError::Views`] when the document says that the picture has another size.
    pub fn camera(&self, image: [usize; 2]) -> Result<SplatCamera, SplatError> {
        let Lens {
            image: said,
            focal,
            angles,
            center,
        } = self.lens;
        for (said, own) in said.into_iter().zip(image) {
            if said.is_some_and(|n| n != own as f64) {
                let ([width, height], path) = (image, self.picture.display());
                return Err(bad(format!(
                    "{path} has {width}x{height} pixels, which is not what `w` and `h` say"
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

/// The point that cameras look at, as far as they agree: that of the least squared distance to their ways ahead. With it
/// the mean distance of the cameras. Nothing of cameras that all look the same way.
pub fn looked_at(cameras: &[SplatCamera]) -> Option<([f64; 3], f64)> {
    // Sum over cameras of (1 - a a^T) x = (1 - a a^T) p.
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
