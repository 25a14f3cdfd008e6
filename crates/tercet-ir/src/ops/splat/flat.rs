//! Cases of rasterization with explicit splats and footprints.

use super::cases::SplatCaseRng;
use super::{FOOTPRINT_LEN, SPLAT_LEN};
use crate::case::{CaseGraph, InputFill, OpCase, RejectCase};
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::util::reject;
use crate::types::{Shape, Type};

const NAN: f64 = f64::NAN;

/// Explicit splats and footprints.
#[derive(Clone, Debug, Default)]
pub(super) struct FlatSplats {
    splats: Vec<f64>,
    footprints: Vec<f64>,
}

impl FlatSplats {
    /// Adds a splat with its conic, opacity, colour, depth and tiles.
    pub(super) fn splat(&mut self, numbers: [f64; SPLAT_LEN], tiles: [f64; 4]) {
        self.splats.extend(numbers);
        self.footprints.extend(tiles);
        self.footprints.push(0.0);
    }

    fn case(self, name: &str, image: [usize; 2]) -> OpCase {
        OpCase::new(name, move |c| {
            let y = self.build(c, image, false)?;
            c.output(y)?;
            c.output(y.port(1))
        })
    }

    fn build(
        &self,
        c: &mut CaseGraph,
        image: [usize; 2],
        symbolic: bool,
    ) -> Result<Value, OpError> {
        let [splats, footprints, background] = self.inputs(c, symbolic)?;
        c.graph
            .gaussian_splat_rasterize(splats, footprints, background, image)
    }

    /// Splats, footprints and a background as inputs.
    pub(super) fn inputs(&self, c: &mut CaseGraph, symbolic: bool) -> Result<[Value; 3], OpError> {
        let count = self.footprints.len() / FOOTPRINT_LEN;
        let n = match symbolic {
            true => c.sym("n", count, 1200),
            false => count.into(),
        };
        let rows = |width: usize| -> Shape { vec![n.clone(), width.into()].into() };
        let splats = InputFill::Values(self.splats.clone());
        let splats = c.input("splats", rows(SPLAT_LEN), splats)?;
        let ty = Type::new(DType::I32, rows(FOOTPRINT_LEN));
        let footprints = InputFill::Values(self.footprints.clone());
        let footprints = c.input_of("footprints", ty, footprints)?;
        let background = InputFill::Values(vec![0.5, 0.25, 1.0]);
        let background = c.input("background", [3], background)?;
        Ok([splats, footprints, background])
    }
}

/// Every tile of a small image.
pub(super) const ALL: [f64; 4] = [0.0, 0.0, 9.0, 9.0];

/// Splats all over an image of 40 x 24 pixels, with different and with equal depths.
pub(super) fn spread(count: usize, seed: u64) -> FlatSplats {
    let mut n = SplatCaseRng(seed);
    let mut flat = FlatSplats::default();
    for _ in 0..count {
        let (place, color) = (n.list(2, -4.0, 28.0), n.list(3, 0.0, 1.0));
        let (conic, rest) = (n.list(2, 0.0625, 0.375), n.list(2, 0.25, 1.0));
        let depth = (rest[0] * 4.0).round();
        let numbers = [
            place[0] * 1.5,
            place[1],
            conic[0],
            -0.046875,
            conic[1],
            rest[1],
            color[0],
            color[1],
            color[2],
            depth,
        ];
        flat.splat(numbers, ALL);
    }
    flat
}

/// Many faint splats, each in one tile or in none: enough for several passes over the depth order
/// and several batches.
pub(super) fn many(count: usize) -> FlatSplats {
    let mut flat = FlatSplats::default();
    for i in 0..count {
        let part = |k: usize, n: usize| (i * k % n) as f64;
        let numbers = [
            part(37, 33),
            part(23, 5),
            0.0,
            0.0,
            0.0,
            0.005,
            part(5, 8) / 8.0,
            part(3, 4) / 4.0,
            part(7, 16) / 16.0,
            1.0 + part(7919, 4096) / 16.0,
        ];
        let x = part(1, 9);
        flat.splat(numbers, [x, 0.0, x + 1.0, 1.0]);
    }
    flat
}

/// A splat with opacity one half in the middle of the first pixel, with this colour and depth.
pub(super) fn plain(opacity: f64, color: [f64; 3], depth: f64) -> [f64; SPLAT_LEN] {
    let [r, g, b] = color;
    [0.5, 0.5, 1.0, 0.0, 1.0, opacity, r, g, b, depth]
}

pub(super) const RED: [f64; 3] = [1.0, 0.0, 0.0];
pub(super) const GREEN: [f64; 3] = [0.0, 1.0, 0.0];

/// A splat whose conic is not the inverse of a variance.
const BAD: [f64; SPLAT_LEN] = [0.0, 0.0, -1.0, 0.0, -1.0, 0.5, 1.0, 1.0, 1.0, 1.0];

/// A case of one pixel with explicit results.
fn fixed_value_case(name: &str, splats: &[[f64; SPLAT_LEN]], image: [f64; 3], left: f64) -> OpCase {
    let mut flat = FlatSplats::default();
    splats.iter().for_each(|s| flat.splat(*s, ALL));
    OpCase::new(name, move |c| {
        let y = flat.build(c, [1, 1], false)?;
        c.output_expect(y, &image)?;
        c.output_expect(y.port(1), &[left])
    })
    .only(&[DType::F32])
}

/// Footprints that no projection produces.
pub(super) fn tiles_anywhere() -> FlatSplats {
    let mut flat = FlatSplats::default();
    let far = [-2147483648.0, 2147483647.0];
    let all = [
        [far[0], far[0], far[1], far[1]],
        [1.0, 0.0, far[1], 1.0],
        [far[0], 1.0, 1.0, 2.0],
        [2.0, 2.0, 1.0, 1.0],
        [70000.0, 0.0, 140000.0, 9.0],
    ];
    for (i, tiles) in all.into_iter().enumerate() {
        let mut own = plain(0.5, RED, i as f64);
        own[..5].copy_from_slice(&[17.0, 15.0, 0.0, 0.0, 0.0]);
        flat.splat(own, tiles);
    }
    flat
}

/// Test splats with NaN and infinite values. Those with such a position or size are not drawn;
/// infinite depths sort first or last.
pub(super) fn not_finite() -> FlatSplats {
    let mut flat = FlatSplats::default();
    let values = [NAN, f64::INFINITY, f64::NEG_INFINITY];
    for (at, value) in (0..6).map(|at| (at, values[at % 3])) {
        let mut own = plain(0.5, RED, 1.0);
        own[at] = value;
        flat.splat(own, ALL);
    }
    flat.splat(plain(0.5, GREEN, NAN), ALL);
    flat.splat(plain(0.25, RED, f64::INFINITY), ALL);
    flat.splat(plain(0.75, RED, f64::NEG_INFINITY), ALL);
    flat
}

pub(super) fn rasterize_cases() -> Vec<OpCase> {
    let mut cases = vec![
        spread(14, 358).case("spread_40x24", [40, 24]),
        spread(9, 263).case("one_row", [37, 1]),
        spread(5, 243).case("whole_tiles", [32, 16]),
        many(8500).case("many", [33, 5]),
        FlatSplats::default().case("no_splats", [19, 3]),
        spread(3, 8).case("no_pixels", [3, 0]),
        tiles_anywhere().case("tiles_anywhere", [40, 20]),
        not_finite().case("not_finite", [2, 2]),
        fixed_value_case(
            "two",
            &[plain(0.25, GREEN, 2.0), plain(0.5, RED, 1.0)],
            [0.5 + 0.375 * 0.5, 0.125 + 0.375 * 0.25, 0.375],
            0.375,
        ),
        fixed_value_case(
            "ties_by_index",
            &[plain(0.5, RED, 1.0), plain(0.5, GREEN, 1.0)],
            [0.5 + 0.125, 0.25 + 0.0625, 0.25],
            0.25,
        ),
        fixed_value_case(
            "faint_ones_are_left_out",
            &[plain(0.00375, RED, 1.0), plain(0.5, GREEN, 2.0)],
            [0.25, 0.625, 0.5],
            0.5,
        ),
        // 1/16, 1/256, 1/4096; a further splat would reduce the transmittance below 1e-4.
        fixed_value_case(
            "the_last_is_not_drawn",
            &[1.0, 2.0, 3.0, 4.0].map(|depth| plain(0.9375, RED, depth)),
            [4095.5 / 4096.0, 0.25 / 4096.0, 1.0 / 4096.0],
            1.0 / 4096.0,
        ),
        fixed_value_case(
            "none_is_opaque",
            &[plain(7.0, RED, 1.0)],
            [0.995, 0.0025, 0.01],
            0.01,
        ),
        // The exponents are positive, which is impossible for the conic of a variance.
        fixed_value_case("bad_conics", &[BAD], [0.5, 0.25, 1.0], 1.0),
    ];
    cases.push(OpCase::new("symbolic", |c| {
        let y = spread(7, 30).build(c, [18, 18], true)?;
        c.output(y)?;
        c.output(y.port(1))
    }));
    cases
}

pub(super) fn rejects_of_rasterize() -> Vec<RejectCase> {
    fn build(
        g: &mut Graph,
        splats: [usize; 2],
        footprints: Type,
        background: usize,
    ) -> Result<Value, OpError> {
        let splats = g.input("splats", Type::new(DType::F32, splats))?;
        let footprints = g.input("footprints", footprints)?;
        let background = g.input("background", Type::new(DType::F32, [background]))?;
        g.gaussian_splat_rasterize(splats, footprints, background, [64, 32])
    }
    vec![
        reject("splats", "axis 1 of splats: 9 and 10 differ", |g| {
            build(g, [4, 9], Type::new(DType::I32, [4, 5]), 3)
        }),
        reject("footprints", "axis 0 of footprints: 3 and 4 differ", |g| {
            build(g, [4, 10], Type::new(DType::I32, [3, 5]), 3)
        }),
        reject("float_footprints", "operand footprints is f32", |g| {
            build(g, [4, 10], Type::new(DType::F32, [4, 5]), 3)
        }),
        reject("background", "axis 0 of background: 4 and 3 differ", |g| {
            build(g, [4, 10], Type::new(DType::I32, [4, 5]), 4)
        }),
    ]
}
