//! Cases of the rasterization gradient, on images that rasterization computes from the same splats.

use super::cases::SplatCaseRng;
use super::flat::{ALL, FlatSplats, GREEN, RED, many, not_finite, plain, spread, tiles_anywhere};
use super::{FOOTPRINT_LEN, GaussianSplatRasterizeGrad, SPLAT_LEN};
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::types::Type;

/// The gradient of a rasterized image for these cotangents, or random ones if none are passed.
fn gradient(
    c: &mut CaseGraph,
    flat: &FlatSplats,
    image: [usize; 2],
    symbolic: bool,
    cotangents: Option<[f64; 4]>,
) -> Result<Value, OpError> {
    let [splats, footprints, background] = flat.inputs(c, symbolic)?;
    let drawn = c
        .graph
        .gaussian_splat_rasterize(splats, footprints, background, image)?;
    let [width, height] = image;
    let mut n = SplatCaseRng(271);
    let (d_image, d_left) = match cotangents {
        Some([r, g, b, left]) => (vec![r, g, b], vec![left]),
        None => (
            n.list(3 * width * height, -1.0, 1.0),
            n.list(width * height, -1.0, 1.0),
        ),
    };
    let d_image = c.input("d_image", [height, width, 3], InputFill::Values(d_image))?;
    let d_left = c.input(
        "d_transmittance",
        [height, width],
        InputFill::Values(d_left),
    )?;
    c.graph.add(
        GaussianSplatRasterizeGrad { width, height },
        &[splats, footprints, drawn, drawn.port(1), d_image, d_left],
    )
}

fn random(name: &str, flat: FlatSplats, image: [usize; 2]) -> OpCase {
    OpCase::new(name, move |c| {
        let y = gradient(c, &flat, image, false, None)?;
        c.output(y)
    })
}

/// A case of one pixel with explicit results.
fn fixed_value_case(
    name: &str,
    splats: &[[f64; SPLAT_LEN]],
    cotangents: [f64; 4],
    expected: &[[f64; SPLAT_LEN]],
) -> OpCase {
    let mut flat = FlatSplats::default();
    splats.iter().for_each(|s| flat.splat(*s, ALL));
    let expected = expected.concat();
    OpCase::new(name, move |c| {
        let y = gradient(c, &flat, [1, 1], false, Some(cotangents))?;
        c.output_expect(y, &expected)
    })
    .only(&[DType::F32])
}

/// A splat that covers all pixels equally; its centre is the corner of the first pixel.
fn flat_one(opacity: f64, color: [f64; 3]) -> [f64; SPLAT_LEN] {
    let mut own = plain(opacity, color, 1.0);
    own[..5].fill(0.0);
    own
}

pub(super) fn rasterize_grad_cases() -> Vec<OpCase> {
    let none = [0.0; SPLAT_LEN];
    let mut colored = none;
    colored[6..9].copy_from_slice(&[0.99, 0.0, -0.99]);
    vec![
        random("spread_40x24", spread(14, 358), [40, 24]),
        random("one_row", spread(9, 263), [37, 1]),
        random("whole_tiles", spread(5, 243), [32, 16]),
        random("many", many(8500), [33, 5]),
        random("no_splats", FlatSplats::default(), [19, 3]),
        random("no_pixels", spread(3, 8), [3, 0]),
        random("tiles_anywhere", tiles_anywhere(), [40, 20]),
        random("not_finite", not_finite(), [2, 2]),
        // In front of a background of 0.5, 0.25, 1: the derivative of red with respect to alpha is
        // 1 - 0.5.
        fixed_value_case(
            "one",
            &[flat_one(0.5, RED)],
            [1.0, 0.0, 0.0, 0.0],
            &[[
                0.0, 0.0, -0.03125, -0.0625, -0.03125, 0.5, 0.5, 0.0, 0.0, 0.0,
            ]],
        ),
        fixed_value_case(
            "what_is_let_through",
            &[flat_one(0.5, RED), flat_one(0.25, GREEN)],
            [0.0, 0.0, 0.0, 1.0],
            &[
                [
                    0.0, 0.0, 0.046875, 0.09375, 0.046875, -0.75, 0.0, 0.0, 0.0, 0.0,
                ],
                [
                    0.0, 0.0, 0.015625, 0.03125, 0.015625, -0.5, 0.0, 0.0, 0.0, 0.0,
                ],
            ],
        ),
        fixed_value_case(
            "none_beyond_the_greatest_alpha",
            &[flat_one(7.0, RED)],
            [1.0, 0.0, -1.0, 1.0],
            &[colored],
        ),
        // The fourth splat would reduce the transmittance below 1e-4.
        fixed_value_case(
            "the_last_is_not_drawn",
            &[0.9375; 4].map(|alpha| flat_one(alpha, [0.0; 3])),
            [0.0, 1.0, 0.0, 0.0],
            &[0.9375, 0.05859375, 0.003662109375, 0.0].map(|weight| {
                let slope = match weight {
                    0.0 => 0.0,
                    _ => -0.25 / 256.0,
                };
                let power = 0.9375 * slope;
                let mut own = none;
                own[2..6].copy_from_slice(&[-power / 8.0, -power / 4.0, -power / 8.0, slope]);
                own[7] = weight;
                own
            }),
        ),
        OpCase::new("symbolic", |c| {
            let y = gradient(c, &spread(7, 30), [18, 18], true, None)?;
            c.output(y)
        }),
    ]
}

pub(super) fn rejects_of_rasterize_grad() -> Vec<RejectCase> {
    fn build(
        g: &mut Graph,
        splats: usize,
        image: [usize; 3],
        left: [usize; 2],
        d_image: DType,
    ) -> Result<Value, OpError> {
        let float = |shape: &[usize]| Type::new(DType::F32, crate::types::Shape::known(shape));
        let splats = g.input("splats", float(&[splats, SPLAT_LEN]))?;
        let footprints = g.input("footprints", Type::new(DType::I32, [4, FOOTPRINT_LEN]))?;
        let drawn = g.input("image", float(&image))?;
        let left = g.input("transmittance", float(&left))?;
        let d_image = g.input("d_image", Type::new(d_image, image))?;
        let op = GaussianSplatRasterizeGrad {
            width: 64,
            height: 32,
        };
        g.add(op, &[splats, footprints, drawn, left, d_image, left])
    }
    vec![
        reject("splats", "axis 0 of footprints: 4 and 5 differ", |g| {
            build(g, 5, [32, 64, 3], [32, 64], DType::F32)
        }),
        reject("image", "axis 0 of image: 64 and 32 differ", |g| {
            build(g, 4, [64, 32, 3], [32, 64], DType::F32)
        }),
        reject(
            "transmittance",
            "axis 1 of transmittance: 63 and 64 differ",
            |g| build(g, 4, [32, 64, 3], [32, 63], DType::F32),
        ),
        reject("dtype", "operand d_image", |g| {
            build(g, 4, [32, 64, 3], [32, 64], DType::F64)
        }),
        reject("operands", "expected 6 operands, got 1", |g| {
            let splats = g.input("splats", Type::new(DType::F32, [4, SPLAT_LEN]))?;
            let (width, height) = (8, 8);
            g.add(GaussianSplatRasterizeGrad { width, height }, &[splats])
        }),
    ]
}
