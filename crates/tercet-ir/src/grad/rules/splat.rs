//! Gradients of Gaussian splatting. Rasterization has a separate gradient operator; projection is
//! differentiated through its decomposition.
//!
//! The nodes process all Gaussians at once: `[N,1]`, `[N,3]`, `[N,3,3]`. For visible Gaussians the
//! nodes compute the same as [`Gaussian::project`](crate::ops::splat::Gaussian::project). For
//! culled Gaussians the nodes use harmless substitute values and propagate no gradient.

use tercet_tensor::{Dim, Tensor, TensorType};

use crate::error::OpError;
use crate::grad::{Vjp, VjpResult};
use crate::graph::{Graph, Value};
use crate::ops::splat::{DEPTH_AT, DILATION, FOOTPRINT_LEN, MIN_ROTATION_NORM};
use crate::ops::{GaussianSplatPrepare, GaussianSplatRasterize, GaussianSplatRasterizeGrad};
use crate::scalar::CompareFn;

type SplatGradResult = Result<Value, OpError>;

pub(crate) fn rasterize(op: &GaussianSplatRasterize, v: &mut Vjp<'_>) -> VjpResult {
    let (image, left) = (v.y(0), v.y(1));
    let (d_image, d_left) = (v.dy(0)?, v.dy(1)?);
    if v.needs_cotangent(0) {
        let operands = [v.x(0), v.x(1), image, left, d_image, d_left];
        let grad = GaussianSplatRasterizeGrad::new([op.width, op.height], op.options());
        let d_splats = v.add(grad, &operands)?;
        v.accumulate(0, d_splats)?;
    }
    if v.needs_cotangent(2) {
        let left = v.unsqueeze(left, 2)?;
        let behind = v.mul(d_image, left)?;
        let d_background = v.reduce_sum(behind, &[0, 1], false)?;
        v.accumulate(2, d_background)?;
    }
    Ok(())
}

pub(crate) fn prepare(op: &GaussianSplatPrepare, v: &mut Vjp<'_>) -> VjpResult {
    let footprints = v.y(1);
    let image = [op.width, op.height];
    v.through(|g, operands| {
        let splats = projected(g, operands, footprints, image)?;
        Ok(vec![splats, footprints])
    })
}

/// The projected splats of a scene; `footprints` marks the visible ones.
fn projected(
    g: &mut Graph,
    operands: &[Value],
    footprints: Value,
    image: [usize; 2],
) -> SplatGradResult {
    // The radius is 0 only for culled splats.
    let radius = g.narrow(footprints, 1, FOOTPRINT_LEN - 1, 1)?;
    let drawn = g.is(CompareFn::Gt, radius, 0.0)?;
    let camera = CameraOperands::from_block(g, operands[5])?;
    let positions = g.only_where(drawn, operands[0])?;
    let log_scales = g.only_where(drawn, operands[1])?;
    let rotations = g.only_where(drawn, operands[2])?;
    let own = g.squeeze(drawn, 1)?;
    let opacities = g.only_where(own, operands[3])?;
    let at = camera.camera_point(g, positions)?;
    let depth = g.narrow(at, 1, 2, 1)?;
    let near = replaced(g, drawn, depth, 1.0)?;
    let beside = g.narrow(at, 1, 0, 2)?;
    // The offset from the image centre per unit of depth, `[N,2]`.
    let slopes = g.div(beside, near)?;
    let scaled = g.mul(slopes, camera.focal)?;
    let place = g.plus(scaled, camera.center)?;
    let axes = axes(g, rotations, log_scales)?;
    let rows = camera.rows(g, axes, slopes, near, image)?;
    let conic = conic(g, rows)?;
    let opacities = g.sigmoid(opacities)?;
    let opacities = g.unsqueeze(opacities, 1)?;
    let color = color(g, drawn, positions, operands[4], &camera)?;
    let splats = g.concat(&[place, conic, opacities, color, depth], 1)?;
    debug_assert!(g.shape(splats)[1] == Dim::Known(DEPTH_AT + 1));
    g.only_where(drawn, splats)
}

/// `x` with the elements for which `cond` is true replaced by `number`.
fn replaced(g: &mut Graph, cond: Value, x: Value, number: f64) -> SplatGradResult {
    let number = g.scalar(g.dtype(x), number)?;
    g.where_(cond, x, number)
}

/// A constant matrix in the dtype of a value.
fn matrix(g: &mut Graph, like: Value, shape: [usize; 2], numbers: &[f64]) -> SplatGradResult {
    let ty = TensorType::new(g.dtype(like), &shape);
    let tensor = Tensor::from_f64s(ty, numbers).expect("invariant: as many numbers as elements");
    g.constant(tensor)
}

/// The camera operand, split into its components.
struct CameraOperands {
    /// The rotation from world to camera, `[3,3]`, by rows.
    rotation: Value,
    /// The translation, `[1,3]`.
    shift: Value,
    /// The focal lengths, `[1,2]`.
    focal: Value,
    /// The image centre, `[1,2]`.
    center: Value,
}

impl CameraOperands {
    fn from_block(g: &mut Graph, block: Value) -> Result<CameraOperands, OpError> {
        let view = g.narrow(block, 0, 0, 12)?;
        let view = g.reshape(view, [3, 4])?;
        let shift = g.narrow(view, 1, 3, 1)?;
        let focal = g.narrow(block, 0, 16, 2)?;
        let center = g.narrow(block, 0, 18, 2)?;
        Ok(CameraOperands {
            rotation: g.narrow(view, 1, 0, 3)?,
            shift: g.reshape(shift, [1, 3])?,
            focal: g.reshape(focal, [1, 2])?,
            center: g.reshape(center, [1, 2])?,
        })
    }

    /// Points `[N,3]` in camera coordinates.
    fn camera_point(&self, g: &mut Graph, points: Value) -> SplatGradResult {
        let back = g.swapped(self.rotation)?;
        let turned = g.matmul(points, back)?;
        g.plus(turned, self.shift)
    }

    /// The camera position in the world, `[1,3]`; the inverse of a rotation is its transpose.
    fn eye(&self, g: &mut Graph) -> SplatGradResult {
        let turned = g.matmul(self.shift, self.rotation)?;
        g.neg(turned)
    }

    /// The rows `[N,2,3]` of the maps from the ellipsoids' local axes (columns of `axes`) to
    /// pixels.
    fn rows(
        &self,
        g: &mut Graph,
        axes: Value,
        slopes: Value,
        depth: Value,
        [width, height]: [usize; 2],
    ) -> SplatGradResult {
        let sides = [0.65 * width as f64, 0.65 * height as f64];
        let sides = matrix(g, depth, [1, 2], &sides)?;
        let limits = g.div(sides, self.focal)?;
        let limits = g.abs(limits)?;
        let least = g.neg(limits)?;
        let slopes = g.max(slopes, least)?;
        let slopes = g.min(slopes, limits)?;
        let scales = g.div(self.focal, depth)?;
        let [slopes, scales] = [slopes, scales].map(|x| g.unsqueeze(x, 2));
        let (slopes, scales) = (slopes?, scales?);
        let beside = g.narrow(self.rotation, 0, 0, 2)?;
        let ahead = g.narrow(self.rotation, 0, 2, 1)?;
        let bent = g.mul(slopes, ahead)?;
        let rows = g.sub(beside, bent)?;
        let rows = g.mul(rows, scales)?;
        // With so few factors, a matmul is computed as sums of elementwise products.
        let rows = g.unsqueeze(rows, 3)?;
        let axes = g.unsqueeze(axes, 1)?;
        let products = g.mul(rows, axes)?;
        g.reduce_sum(products, &[2], false)
    }
}

/// The axes `[N,3,3]` of ellipsoids as columns: rotations times scales.
fn axes(g: &mut Graph, rotations: Value, log_scales: Value) -> SplatGradResult {
    let n = g.shape(rotations)[0].clone();
    let sizes = g.abs(rotations)?;
    let most = g.reduce_max(sizes, &[1], true)?;
    // A quaternion's length does not affect the result, so the first normalization is excluded from
    // the gradient.
    let most = g.stop_gradient(most)?;
    let turns = g.is(CompareFn::Ge, most, MIN_ROTATION_NORM)?;
    let most = replaced(g, turns, most, 1.0)?;
    let q = g.div(rotations, most)?;
    let none = matrix(g, rotations, [1, 4], &[1.0, 0.0, 0.0, 0.0])?;
    let q = g.where_(turns, q, none)?;
    let squares = g.mul(q, q)?;
    let square = g.reduce_sum(squares, &[1], true)?;
    let length = g.sqrt(square)?;
    let q = g.div(q, length)?;
    // The rotation matrix is linear in products of two quaternion components.
    let (left, right) = (g.unsqueeze(q, 2)?, g.unsqueeze(q, 1)?);
    let products = g.mul(left, right)?;
    let products = g.reshape(products, vec![n.clone(), 16.into()])?;
    let table = matrix(g, rotations, [16, 9], &turn_of_products())?;
    let turn = g.matmul(products, table)?;
    let one = matrix(g, rotations, [1, 9], &[1., 0., 0., 0., 1., 0., 0., 0., 1.])?;
    let turn = g.plus(turn, one)?;
    let turn = g.reshape(turn, vec![n, 3.into(), 3.into()])?;
    let scales = g.exp(log_scales)?;
    let scales = g.unsqueeze(scales, 1)?;
    g.mul(turn, scales)
}

/// `[16,9]`: the contribution of products of components `w x y z` of a unit quaternion to the
/// rotation matrix, added to the identity matrix.
fn turn_of_products() -> Vec<f64> {
    const W: usize = 0;
    const X: usize = 1;
    const Y: usize = 2;
    const Z: usize = 3;
    // For each matrix element, two products with their signs.
    let of: [[(usize, usize, f64); 2]; 9] = [
        [(Y, Y, -2.0), (Z, Z, -2.0)],
        [(X, Y, 2.0), (W, Z, -2.0)],
        [(X, Z, 2.0), (W, Y, 2.0)],
        [(X, Y, 2.0), (W, Z, 2.0)],
        [(X, X, -2.0), (Z, Z, -2.0)],
        [(Y, Z, 2.0), (W, X, -2.0)],
        [(X, Z, 2.0), (W, Y, -2.0)],
        [(Y, Z, 2.0), (W, X, 2.0)],
        [(X, X, -2.0), (Y, Y, -2.0)],
    ];
    let mut table = vec![0.0; 16 * 9];
    for (column, products) in of.into_iter().enumerate() {
        for (a, b, factor) in products {
            table[(4 * a + b) * 9 + column] = factor;
        }
    }
    table
}

/// Conics `[N,3]` of the variances given by rows `[N,2,3]`.
fn conic(g: &mut Graph, rows: Value) -> SplatGradResult {
    let first = g.narrow(rows, 1, 0, 1)?;
    let second = g.narrow(rows, 1, 1, 1)?;
    let (a, b) = (g.squeeze(first, 1)?, g.squeeze(second, 1)?);
    let dot = |g: &mut Graph, a: Value, b: Value| {
        let products = g.mul(a, b)?;
        g.reduce_sum(products, &[1], true)
    };
    let (own_x, xy, own_y) = (dot(g, a, a)?, dot(g, a, b)?, dot(g, b, b)?);
    // The cross product from components rotated by one and by two positions.
    let [a1, b1, a2, b2] = [(a, -1), (b, -1), (a, -2), (b, -2)].map(|(x, by)| g.roll(x, &[0, by]));
    let (ahead, behind) = (g.mul(a1?, b2?)?, g.mul(a2?, b1?)?);
    let normal = g.sub(ahead, behind)?;
    let square = dot(g, normal, normal)?;
    let (xx, yy) = (g.shifted(own_x, DILATION)?, g.shifted(own_y, DILATION)?);
    let both = g.plus(own_x, own_y)?;
    let both = g.times(both, DILATION)?;
    let det = g.plus(square, both)?;
    let det = g.shifted(det, DILATION * DILATION)?;
    let xy = g.neg(xy)?;
    let conic = g.concat(&[yy, xy, xx], 1)?;
    g.div(conic, det)
}

/// Colours `[N,3]` in the direction of the camera.
fn color(
    g: &mut Graph,
    drawn: Value,
    positions: Value,
    colors: Value,
    camera: &CameraOperands,
) -> SplatGradResult {
    let count = match &g.shape(colors)[..] {
        [_, count, _] => count
            .known()
            .unwrap_or_else(|| unreachable!("invariant: inference rejects unknown counts")),
        _ => return g.only_where(drawn, colors),
    };
    let wide = g.unsqueeze(drawn, 2)?;
    let colors = g.only_where(wide, colors)?;
    let sum = if count == 1 {
        let first = g.squeeze(colors, 1)?;
        g.times(first, DEGREE_0)?
    } else {
        let basis = harmonics(g, drawn, positions, camera, count)?;
        let basis = g.unsqueeze(basis, 2)?;
        let products = g.mul(basis, colors)?;
        g.reduce_sum(products, &[1], false)?
    };
    let half = g.shifted(sum, 0.5)?;
    g.relu(half)
}

/// The spherical harmonic of degree 0.
const DEGREE_0: f64 = 0.28209479177387814;

/// The first spherical harmonics `[N, count]` of the directions from a camera.
fn harmonics(
    g: &mut Graph,
    drawn: Value,
    positions: Value,
    camera: &CameraOperands,
    count: usize,
) -> SplatGradResult {
    let eye = camera.eye(g)?;
    let away = g.sub(positions, eye)?;
    let squares = g.mul(away, away)?;
    let square = g.reduce_sum(squares, &[1], true)?;
    let square = replaced(g, drawn, square, 1.0)?;
    let length = g.sqrt(square)?;
    let direction = g.div(away, length)?;
    let ones = g.filled(&g.ty(square).clone(), 1.0)?;
    // A harmonic of degree d is linear in products of d factors from 1, x, y and z.
    let terms = g.concat(&[ones, direction], 1)?;
    let n = g.shape(positions)[0].clone();
    let degree = count.isqrt() - 1;
    let mut products = terms;
    for power in 2..=degree {
        let (left, right) = (g.unsqueeze(products, 2)?, g.unsqueeze(terms, 1)?);
        products = g.mul(left, right)?;
        products = g.reshape(products, vec![n.clone(), (1usize << (2 * power)).into()])?;
    }
    let rows = 1usize << (2 * degree);
    let table = matrix(g, positions, [rows, count], &harmonics_of_products(degree))?;
    g.matmul(products, table)
}

/// `[4^degree, (degree + 1)^2]`: harmonics from products of `degree` factors out of 1, x, y and z.
fn harmonics_of_products(degree: usize) -> Vec<f64> {
    const X: usize = 1;
    const Y: usize = 2;
    const Z: usize = 3;
    let count = (degree + 1) * (degree + 1);
    let mut table = vec![0.0; count << (2 * degree)];
    let mut put = |harmonic: usize, factors: &[usize], number: f64| {
        if harmonic < count {
            // The remaining factors are 1, which has index 0.
            let row = factors.iter().fold(0, |row, f| 4 * row + f);
            table[row * count + harmonic] += number;
        }
    };
    put(0, &[], DEGREE_0);
    for (harmonic, axis, sign) in [(1, Y, -1.0), (2, Z, 1.0), (3, X, -1.0)] {
        put(harmonic, &[axis], sign * 0.4886025119029199);
    }
    let two = 1.0925484305920792;
    put(4, &[X, Y], two);
    put(5, &[Y, Z], -two);
    for (axis, factor) in [(X, -1.0), (Y, -1.0), (Z, 2.0)] {
        put(6, &[axis, axis], factor * 0.31539156525252005);
    }
    put(7, &[X, Z], -two);
    put(8, &[X, X], 0.5462742152960396);
    put(8, &[Y, Y], -0.5462742152960396);
    let (a, c) = (-0.5900435899266435, -0.4570457994644658);
    put(9, &[X, X, Y], 3.0 * a);
    put(9, &[Y, Y, Y], -a);
    put(10, &[X, Y, Z], 2.890611442640554);
    for (harmonic, axis) in [(11, Y), (13, X)] {
        put(harmonic, &[axis, Z, Z], 4.0 * c);
        put(harmonic, &[axis, X, X], -c);
        put(harmonic, &[axis, Y, Y], -c);
    }
    for (axis, factor) in [(X, -3.0), (Y, -3.0), (Z, 2.0)] {
        put(12, &[Z, axis, axis], factor * 0.3731763325901154);
    }
    put(14, &[X, X, Z], 1.445305721320277);
    put(14, &[Y, Y, Z], -1.445305721320277);
    put(15, &[X, X, X], a);
    put(15, &[X, Y, Y], -3.0 * a);
    table
}
