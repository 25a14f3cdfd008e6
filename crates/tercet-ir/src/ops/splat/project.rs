//! The projection of one Gaussian to its splat and the tiles that it covers.
//!
//! The code is generic over F64 (the reference) and F32 (the fast CPU executor); shaders have a
//! separate implementation.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::RADIUS_SCALE;

/// The side of a tile in pixels, unless an option sets another one.
pub const TILE: usize = 16;
/// Length of a camera block: the view matrix, the focal lengths and principal point in pixels, the
/// near and far depth, and the background. The view matrix maps world to camera coordinates (x
/// right, y down, z forward). The view matrix has four rows, of which the last is not read. Pixel
/// `i` is centred at `i + 0.5`.
pub const CAMERA_LEN: usize = 25;
/// Offset of the background in a camera block.
pub const BACKGROUND_AT: usize = 22;
/// Length of a projected splat: position in pixels, conic `xx xy yy`, opacity, colour, depth.
pub const SPLAT_LEN: usize = 10;
/// Offset of the depth in a projected splat.
pub const DEPTH_AT: usize = 9;
/// Length of a footprint: first tile in x and y, tile after the last in x and y, radius in pixels.
pub const FOOTPRINT_LEN: usize = 5;
/// Added to the variance of a splat in x and y, in square pixels, so that no splat is thinner than
/// about a pixel.
pub const DILATION: f64 = 0.3;
/// Minimum depth that is drawn, even if `near` is smaller.
pub const MIN_DEPTH: f64 = 1e-6;
/// Coordinates in pixels and variances in square pixels from this value on count as infinite,
/// because F32 cannot represent them usefully.
pub const FAR_OUT: f64 = (1u64 << 40) as f64;
/// A quaternion whose largest component is below this counts as no rotation.
pub const MIN_ROTATION_NORM: f64 = 1e-12;

/// The float type of the projection.
///
/// ```
/// use tercet_ir::ops::splat::ProjectionFloat;
/// /// `1 / (1 + e^-x)` in F32 or F64.
/// fn sigmoid<T: ProjectionFloat>(x: T) -> T {
///     let one = T::from_f64(1.0);
///     one / (one + (-x).exp())
/// }
/// assert_eq!((sigmoid(0f32), sigmoid(0f64)), (0.5, 0.5));
/// ```
pub trait ProjectionFloat:
    Copy
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
{
    /// Converts to the nearest number of this type.
    fn from_f64(x: f64) -> Self;
    /// `e^x`
    fn exp(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// The largest integer that is not greater.
    fn floor(self) -> Self;
    /// True if neither NaN nor infinite.
    fn is_finite(self) -> bool;
    /// The integer part; NaN is 0.
    fn to_i32(self) -> i32;
}

macro_rules! floats {
    ($($t:ident),*) => {$(impl ProjectionFloat for $t {
        fn from_f64(x: f64) -> $t { x as $t }
        fn exp(self) -> $t { self.exp() }
        fn sqrt(self) -> $t { self.sqrt() }
        fn floor(self) -> $t { self.floor() }
        fn is_finite(self) -> bool { self.is_finite() }
        fn to_i32(self) -> i32 { self as i32 }
    })*};
}
floats!(f32, f64);

type Vec3<T> = [T; 3];

fn dot<T: ProjectionFloat>(a: Vec3<T>, b: Vec3<T>) -> T {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn cross<T: ProjectionFloat>(a: Vec3<T>, b: Vec3<T>) -> Vec3<T> {
    [
        a[1] * b[2] - a[2] * b[1],
        a[2] * b[0] - a[0] * b[2],
        a[0] * b[1] - a[1] * b[0],
    ]
}

fn greater<T: ProjectionFloat>(a: T, b: T) -> T {
    if a > b { a } else { b }
}

fn within<T: ProjectionFloat>(x: T, least: T, most: T) -> T {
    match (x < least, x > most) {
        (true, _) => least,
        (_, true) => most,
        (false, false) => x,
    }
}

/// The image that Gaussians are projected to: its sizes in pixels, its tiles, and the radius of
/// splats.
///
/// ```
/// use tercet_ir::ops::splat::ProjectionImage;
/// let image = ProjectionImage::new([40, 24]);
/// assert_eq!((image.tile_size, image.radius_scale), (16, 3.0));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProjectionImage {
    /// Width and height in pixels.
    pub size: [usize; 2],
    /// Side of a tile in pixels.
    pub tile_size: usize,
    /// Radius of a splat in standard deviations.
    pub radius_scale: f64,
}

impl ProjectionImage {
    /// An image of these sizes, without options.
    pub fn new(size: [usize; 2]) -> ProjectionImage {
        ProjectionImage {
            size,
            tile_size: TILE,
            radius_scale: RADIUS_SCALE,
        }
    }
}

/// A camera, decoded from its block.
///
/// ```
/// use tercet_ir::ops::splat::{CAMERA_LEN, Gaussian, PinholeCamera, ProjectionImage};
/// let mut block = [0.0; CAMERA_LEN];
/// // No rotation, at the origin.
/// (block[0], block[5], block[10]) = (1.0, 1.0, 1.0);
/// // Focal lengths, principal point, near and far depth.
/// block[16..22].copy_from_slice(&[50.0, 50.0, 32.0, 24.0, 0.1, 100.0]);
/// let camera = PinholeCamera::from_block(&block);
/// # let gaussian = Gaussian {
/// #     position: [0.0, 0.0, 5.0],
/// #     log_scales: [-2.0; 3],
/// #     rotation: [1.0, 0.0, 0.0, 0.0],
/// #     opacity: 0.0,
/// #     colors: &[1.0, 0.0, 0.0],
/// #     harmonics: false,
/// # };
/// let image = ProjectionImage::new([64, 48]);
/// let projected = gaussian.project(&camera, &image).expect("the Gaussian is visible");
/// // The point on the optical axis is at the principal point.
/// assert_eq!(projected.splat[..2], [32.0, 24.0]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PinholeCamera<T> {
    /// Rows of the rotation from world to camera.
    rotation: [Vec3<T>; 3],
    shift: Vec3<T>,
    focal: [T; 2],
    center: [T; 2],
    near: T,
    far: T,
    /// The camera position in world coordinates.
    position: Vec3<T>,
}

impl<T: ProjectionFloat> PinholeCamera<T> {
    /// Decodes a camera from a block of [`CAMERA_LEN`] numbers.
    pub fn from_block(block: &[T]) -> PinholeCamera<T> {
        let row = |i: usize| [block[4 * i], block[4 * i + 1], block[4 * i + 2]];
        let turn = [row(0), row(1), row(2)];
        let shift = [block[3], block[7], block[11]];
        // The rotated translation: the inverse of a rotation is its transpose.
        let back = |i: usize| -dot([turn[0][i], turn[1][i], turn[2][i]], shift);
        PinholeCamera {
            rotation: turn,
            shift,
            focal: [block[16], block[17]],
            center: [block[18], block[19]],
            near: block[20],
            far: block[21],
            position: [back(0), back(1), back(2)],
        }
    }

    /// A point in camera coordinates.
    fn camera_point(&self, x: Vec3<T>) -> Vec3<T> {
        [0, 1, 2].map(|i| dot(self.rotation[i], x) + self.shift[i])
    }

    fn draws_depth(&self, z: T) -> bool {
        z > self.near && z > T::from_f64(MIN_DEPTH) && z < self.far
    }

    /// The two rows of the linear map from an ellipsoid's local axes (columns of `axes`) to pixels,
    /// near the camera-space point `at`. Points far outside the image are clamped to 1.3 times its
    /// half width, so that the linear map remains useful.
    fn rows(&self, at: Vec3<T>, axes: &[Vec3<T>; 3], image: [usize; 2]) -> [Vec3<T>; 2] {
        [0, 1].map(|i| {
            let scale = self.focal[i] / at[2];
            let limit = T::from_f64(0.65 * image[i] as f64) / self.focal[i];
            let limit = greater(limit, -limit);
            let slope = within(at[i] / at[2], -limit, limit);
            let row =
                [0, 1, 2].map(|j| scale * (self.rotation[i][j] - slope * self.rotation[2][j]));
            [0, 1, 2].map(|j| dot(row, [axes[0][j], axes[1][j], axes[2][j]]))
        })
    }
}

/// A Gaussian of a scene.
///
/// ```
/// use tercet_ir::ops::splat::{CAMERA_LEN, Gaussian, PinholeCamera, ProjectionImage};
/// # let mut block = [0.0; CAMERA_LEN];
/// # // No rotation, at the origin.
/// # (block[0], block[5], block[10]) = (1.0, 1.0, 1.0);
/// # // Focal lengths, principal point, near and far depth.
/// # block[16..22].copy_from_slice(&[50.0, 50.0, 32.0, 24.0, 0.1, 100.0]);
/// # let camera = PinholeCamera::from_block(&block);
/// let gaussian = Gaussian {
///     position: [0.0, 0.0, 5.0],
///     log_scales: [-2.0; 3],
///     rotation: [1.0, 0.0, 0.0, 0.0],
///     opacity: 0.0,
///     colors: &[1.0, 0.0, 0.0],
///     harmonics: false,
/// };
/// let image = ProjectionImage::new([64, 48]);
/// assert!(gaussian.project(&camera, &image).is_some());
/// let behind = Gaussian { position: [0.0, 0.0, -5.0], ..gaussian };
/// assert_eq!(behind.project(&camera, &image), None);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Gaussian<'a, T> {
    /// Position of the centre.
    pub position: [T; 3],
    /// Logarithms of the standard deviations along the Gaussian's axes.
    pub log_scales: [T; 3],
    /// Quaternion `w x y z` of any length that rotates the axes.
    pub rotation: [T; 4],
    /// Opacity before the sigmoid.
    pub opacity: T,
    /// A colour, or with `harmonics` three coefficients per basis function.
    pub colors: &'a [T],
    /// True if `colors` are coefficients of spherical harmonics.
    pub harmonics: bool,
}

/// A Gaussian projected to an image.
///
/// ```
/// use tercet_ir::ops::splat::{DEPTH_AT, ProjectedGaussian};
/// let culled = ProjectedGaussian::<f32>::culled();
/// assert_eq!(culled.splat[DEPTH_AT], f32::INFINITY);
/// assert_eq!(culled.footprint, [0; 5]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProjectedGaussian<T> {
    /// The splat, described at [`SPLAT_LEN`].
    pub splat: [T; SPLAT_LEN],
    /// The footprint, described at [`FOOTPRINT_LEN`].
    pub footprint: [i32; FOOTPRINT_LEN],
}

impl<T: ProjectionFloat> ProjectedGaussian<T> {
    /// The placeholder for a culled Gaussian: zeros, infinitely deep, in no tile.
    pub fn culled() -> ProjectedGaussian<T> {
        let mut splat = [T::from_f64(0.0); SPLAT_LEN];
        splat[DEPTH_AT] = T::from_f64(f64::INFINITY);
        ProjectedGaussian {
            splat,
            footprint: [0; FOOTPRINT_LEN],
        }
    }
}

/// The rotation matrix of a quaternion, row by row.
fn turn_of<T: ProjectionFloat>(rotation: [T; 4]) -> [Vec3<T>; 3] {
    let (zero, one, two) = (T::from_f64(0.0), T::from_f64(1.0), T::from_f64(2.0));
    let most = rotation
        .iter()
        .fold(zero, |m, &q| greater(m, greater(q, -q)));
    let [w, x, y, z] = match most < T::from_f64(MIN_ROTATION_NORM) {
        true => [one, zero, zero, zero],
        false => {
            let q = rotation.map(|q| q / most);
            let length = (q[0] * q[0] + q[1] * q[1] + q[2] * q[2] + q[3] * q[3]).sqrt();
            q.map(|q| q / length)
        }
    };
    [
        [
            one - two * (y * y + z * z),
            two * (x * y - w * z),
            two * (x * z + w * y),
        ],
        [
            two * (x * y + w * z),
            one - two * (x * x + z * z),
            two * (y * z - w * x),
        ],
        [
            two * (x * z - w * y),
            two * (y * z + w * x),
            one - two * (x * x + y * y),
        ],
    ]
}

/// The first `count` real spherical harmonics of a unit direction, with the signs of Kerbl et al.
pub fn harmonics<T: ProjectionFloat>([x, y, z]: Vec3<T>, count: usize) -> [T; 16] {
    let (xx, yy, zz) = (x * x, y * y, z * z);
    let n = T::from_f64;
    let mut basis = [n(0.0); 16];
    basis[0] = n(0.28209479177387814);
    if count > 1 {
        let c = n(0.4886025119029199);
        basis[1..4].copy_from_slice(&[-c * y, c * z, -c * x]);
    }
    if count > 4 {
        let c = n(1.0925484305920792);
        basis[4..9].copy_from_slice(&[
            c * x * y,
            -c * y * z,
            n(0.31539156525252005) * (n(2.0) * zz - xx - yy),
            -c * x * z,
            n(0.5462742152960396) * (xx - yy),
        ]);
    }
    if count > 9 {
        let (a, c) = (n(-0.5900435899266435), n(-0.4570457994644658));
        let ring = n(4.0) * zz - xx - yy;
        basis[9..16].copy_from_slice(&[
            a * y * (n(3.0) * xx - yy),
            n(2.890611442640554) * x * y * z,
            c * y * ring,
            n(0.3731763325901154) * z * (n(2.0) * zz - n(3.0) * xx - n(3.0) * yy),
            c * x * ring,
            n(1.445305721320277) * z * (xx - yy),
            a * x * (xx - n(3.0) * yy),
        ]);
    }
    basis
}

impl<T: ProjectionFloat> Gaussian<'_, T> {
    fn is_finite(&self) -> bool {
        let own = self.position.iter().chain(&self.log_scales);
        let own = own.chain(&self.rotation).chain([&self.opacity]);
        own.chain(self.colors).all(|x| x.is_finite())
    }

    /// The colour towards a camera at `eye`. For harmonics, adds 0.5 and clamps to at least 0.
    fn color(&self, eye: Vec3<T>) -> Vec3<T> {
        if !self.harmonics {
            return [0, 1, 2].map(|c| self.colors[c]);
        }
        let away = [0, 1, 2].map(|i| self.position[i] - eye[i]);
        let length = dot(away, away).sqrt();
        let count = self.colors.len() / 3;
        let basis = harmonics(away.map(|x| x / length), count);
        [0, 1, 2].map(|c| {
            let mut sum = T::from_f64(0.0);
            for (k, own) in basis.iter().enumerate().take(count) {
                sum = sum + *own * self.colors[3 * k + c];
            }
            greater(sum + T::from_f64(0.5), T::from_f64(0.0))
        })
    }

    /// Projects the Gaussian to a camera's image of these sizes. `None` if the Gaussian is not
    /// finite, not between the near and far depth, or in no tile.
    pub fn project(
        &self,
        camera: &PinholeCamera<T>,
        image: &ProjectionImage,
    ) -> Option<ProjectedGaussian<T>> {
        let n = T::from_f64;
        let at = camera.camera_point(self.position);
        if !self.is_finite() || !camera.draws_depth(at[2]) {
            return None;
        }
        let turn = turn_of(self.rotation);
        let scales = self.log_scales.map(ProjectionFloat::exp);
        let axes = turn.map(|row| [0, 1, 2].map(|j| row[j] * scales[j]));
        let [a, b] = camera.rows(at, &axes, image.size);
        // The determinant is computed as a sum of squares: no digits cancel, even for thin splats.
        let (own_x, own_y, normal) = (dot(a, a), dot(b, b), cross(a, b));
        let dilation = n(DILATION);
        let (xx, xy, yy) = (own_x + dilation, dot(a, b), own_y + dilation);
        let det = dot(normal, normal) + dilation * (own_x + own_y) + dilation * dilation;
        let half = n(0.5) * (xx - yy);
        let spread = n(0.5) * (xx + yy) + greater(half * half + xy * xy, n(0.1)).sqrt();
        let place = [0, 1].map(|i| camera.focal[i] * (at[i] / at[2]) + camera.center[i]);
        let far_out = n(FAR_OUT);
        let is_near = |x: T| x < far_out && x > -far_out;
        if !(is_near(spread) && is_near(place[0]) && is_near(place[1])) {
            return None;
        }
        let radius = -(-(n(image.radius_scale) * spread.sqrt())).floor();
        let [[left, right], [top, bottom]] =
            [0, 1].map(|i| tiles(place[i] - n(0.5), radius, image.size[i], image.tile_size));
        if left >= right || top >= bottom {
            return None;
        }
        let color = self.color(camera.position);
        let opacity = n(1.0) / (n(1.0) + (-self.opacity).exp());
        Some(ProjectedGaussian {
            splat: [
                place[0],
                place[1],
                yy / det,
                -xy / det,
                xx / det,
                opacity,
                color[0],
                color[1],
                color[2],
                at[2],
            ],
            footprint: [left, top, right, bottom, radius.to_i32()],
        })
    }
}

/// The first tile that a splat reaches along an axis, and the tile after the last (the rule of
/// Kerbl et al.).
fn tiles<T: ProjectionFloat>(place: T, radius: T, pixels: usize, tile: usize) -> [i32; 2] {
    let most = T::from_f64(pixels.div_ceil(tile) as f64);
    let side = T::from_f64(tile as f64);
    let first = ((place - radius) / side).floor();
    let end = ((place + radius + T::from_f64(tile as f64 - 1.0)) / side).floor();
    [first, end].map(|x| within(x, T::from_f64(0.0), most).to_i32())
}
