//! Test cases of resizing.

use crate::attr::FloatAttr;
use crate::case::{InputFill, OpCase, RejectCase};
use crate::dim::Dim;
use crate::dtype::DType;
use crate::error::OpError;
use crate::graph::{Graph, Value};
use crate::ops::resize::{Coordinates, NearestRounding, Resize, ResizeMode};
use crate::ops::util::{counted, reject};
use crate::types::{Shape, Type};

fn accepted(mode: ResizeMode) -> &'static [DType] {
    match mode {
        ResizeMode::Nearest => DType::ALL,
        ResizeMode::Linear | ResizeMode::Cubic => DType::FLOATS,
    }
}

/// A case that resizes one operand to these sizes.
fn to_sizes(
    name: String,
    x: &'static [usize],
    sizes: &'static [usize],
    how: Resize,
    only: &'static [DType],
) -> OpCase {
    OpCase::new(name, move |c| {
        let x = c.input("x", x, InputFill::Normal)?;
        let resize = Resize {
            sizes: Shape::known(sizes),
            ..how.clone()
        };
        let y = c.graph.add(resize, &[x])?;
        c.output(y)
    })
    .only(only)
}

fn by_scales(
    name: String,
    x: &'static [usize],
    scales: &'static [f64],
    how: Resize,
    only: &'static [DType],
) -> OpCase {
    OpCase::new(name, move |c| {
        let x = c.input("x", x, InputFill::Normal)?;
        let y = c.graph.resize_by(x, scales, how.clone())?;
        c.output(y)
    })
    .only(only)
}

pub(super) fn all() -> Vec<OpCase> {
    // Long: this function is a table of test cases, one per row.
    let of = |mode| Resize::to_sizes([0usize; 0], mode);
    let mut all = Vec::new();
    for &mode in ResizeMode::ALL {
        let name = |what: &str| format!("{}_{what}", mode.name());
        for &coordinates in Coordinates::ALL {
            let how = Resize {
                coordinates,
                ..of(mode)
            };
            let own = |what: &str| name(&format!("{}_{what}", coordinates.name()));
            let up: (&'static [usize], &'static [usize]) = (&[1, 2, 5, 4], &[1, 2, 7, 10]);
            let down: (&'static [usize], &'static [usize]) = (&[1, 2, 9, 8], &[1, 2, 4, 1]);
            let floats = DType::FLOATS;
            all.push(to_sizes(own("up"), up.0, up.1, how.clone(), floats));
            all.push(to_sizes(own("down"), down.0, down.1, how.clone(), floats));
            let scales = &[1.0, 1.0, 1.3, 0.7];
            all.push(by_scales(own("scales"), &[2, 1, 7, 9], scales, how, floats));
        }
        let shapes: [(&str, &'static [usize], &'static [usize]); 7] = [
            ("line", &[2, 3, 7], &[2, 3, 12]),
            ("rows", &[1, 2, 3, 6], &[1, 2, 8, 6]),
            ("block", &[1, 2, 3, 4, 2], &[1, 2, 5, 3, 5]),
            ("all_axes_of_a_matrix", &[3, 4], &[5, 7]),
            ("same", &[2, 3, 4], &[2, 3, 4]),
            ("no_batch", &[0, 2, 4], &[0, 2, 8]),
            ("to_nothing", &[1, 2, 4], &[1, 2, 0]),
        ];
        // As many planes as one thread processes, plus one.
        all.push(to_sizes(
            name("many_planes"),
            &[37, 30, 16],
            &[37, 60, 32],
            of(mode),
            &[DType::F32, DType::F16],
        ));
        for (what, x, sizes) in shapes {
            all.push(to_sizes(name(what), x, sizes, of(mode), accepted(mode)));
        }
        all.push(
            OpCase::new(name("channels_last"), move |c| {
                let x = c.input("x", [1, 4, 6, 5], InputFill::Normal)?;
                let x = c.graph.transpose(x, &[0, 3, 1, 2])?;
                let y = c.graph.resize(x, [1, 5, 7, 3], mode)?;
                c.output(y)
            })
            .only(DType::FLOATS),
        );
        all.push(
            OpCase::new(name("symbolic_batch"), move |c| {
                let b = c.sym("b", 2, 5);
                let x = c.input("x", [b.clone(), 3.into(), 4.into()], InputFill::Normal)?;
                let y = c.graph.resize(x, [b, 3.into(), 9.into()], mode)?;
                c.output(y)
            })
            .only(DType::FLOATS),
        );
    }
    all.push(by_scales(
        "nearest_2x".to_string(),
        &[2, 3, 4, 5],
        &[1.0, 1.0, 2.0, 2.0],
        of(ResizeMode::Nearest),
        DType::ALL,
    ));
    for &rounding in NearestRounding::ALL {
        let how = Resize {
            rounding,
            coordinates: Coordinates::Asymmetric,
            ..of(ResizeMode::Nearest)
        };
        let name = format!("nearest_{}", rounding.name());
        all.push(by_scales(name, &[3, 8], &[1.0, 2.5], how, DType::FLOATS));
    }
    for exclude_outside in [false, true] {
        for (mode, cubic_a) in [(ResizeMode::Cubic, -0.5), (ResizeMode::Linear, -0.75)] {
            let how = Resize {
                cubic_a: FloatAttr(cubic_a),
                exclude_outside,
                ..of(mode)
            };
            let name = format!("{}_exclude_outside_{exclude_outside}", mode.name());
            let sizes: (&'static [usize], &'static [usize]) = (&[2, 5, 6], &[2, 9, 4]);
            all.push(to_sizes(name, sizes.0, sizes.1, how, DType::FLOATS));
        }
    }
    all.extend(fixed_value_cases());
    all
}

fn fixed_value_cases() -> Vec<OpCase> {
    let line = |name: &str, n: usize, how: Resize, y: &'static [f64]| {
        let only = accepted(how.mode);
        let only = if only == DType::ALL {
            DType::NUMBERS
        } else {
            only
        };
        OpCase::new(name, move |c| {
            let x = c.input("x", [n], counted(&[n]))?;
            let resize = Resize {
                sizes: Shape::known(&[y.len()]),
                ..how.clone()
            };
            let out = c.graph.add(resize, &[x])?;
            c.output_expect(out, y)
        })
        .only(only)
    };
    let of = |mode| Resize::to_sizes([0usize; 0], mode);
    vec![
        line(
            "written_nearest_halves_down",
            2,
            of(ResizeMode::Nearest),
            &[0.0, 0.0, 1.0, 1.0],
        ),
        line(
            "written_nearest_half",
            4,
            of(ResizeMode::Nearest),
            &[0.0, 2.0],
        ),
        line(
            "written_linear",
            2,
            of(ResizeMode::Linear),
            &[0.0, 0.25, 0.75, 1.0],
        ),
        line(
            "written_linear_align_corners",
            3,
            Resize {
                coordinates: Coordinates::AlignCorners,
                ..of(ResizeMode::Linear)
            },
            &[0.0, 0.5, 1.0, 1.5, 2.0],
        ),
        // Elements with weight 0 are not read, so an infinity does not spread.
        OpCase::new("infinity_stays", |c| {
            let x = InputFill::Values(vec![1.0, f64::INFINITY, 2.0]);
            let x = c.input("x", [3], x)?;
            let how = Resize {
                coordinates: Coordinates::AlignCorners,
                ..Resize::to_sizes([5], ResizeMode::Linear)
            };
            let y = c.graph.add(how, &[x])?;
            c.output_expect(y, &[1.0, f64::INFINITY, f64::INFINITY, f64::INFINITY, 2.0])
        })
        .only(DType::FLOATS),
    ]
}

pub(super) fn rejects() -> Vec<RejectCase> {
    fn build(g: &mut Graph, x: &[usize], sizes: &[usize]) -> Result<Value, OpError> {
        let x = g.input("x", Type::new(DType::F32, x))?;
        g.resize(x, sizes, ResizeMode::Linear)
    }
    vec![
        reject("rank", "1 values for 2 axes", |g| build(g, &[2, 3], &[2])),
        reject("of_nothing", "no or too many elements", |g| {
            build(g, &[0], &[2])
        }),
        reject("four_axes", "4 axes change", |g| {
            build(g, &[1, 1, 1, 1], &[2, 2, 2, 2])
        }),
        reject("linear_of_integers", "accepted: f32", |g| {
            let x = g.input("x", Type::new(DType::I32, [3]))?;
            g.resize(x, [4], ResizeMode::Linear)
        }),
        reject("symbol", "both must be known", |g| {
            let x = g.input("x", Type::new(DType::F32, [Dim::sym("s")]))?;
            g.resize(x, [4], ResizeMode::Linear)
        }),
        reject("scale", "is not between", |g| {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            g.resize_by(x, &[-1.0], Resize::to_sizes([3], ResizeMode::Linear))
        }),
        reject("scales", "does not give size 5 from size 3", |g| {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            let resize = Resize {
                scales: vec![FloatAttr(2.0)],
                ..Resize::to_sizes([5], ResizeMode::Linear)
            };
            g.add(resize, &[x])
        }),
        reject("cubic_a", "is not finite", |g| {
            let x = g.input("x", Type::new(DType::F32, [3]))?;
            let resize = Resize {
                cubic_a: FloatAttr(f64::INFINITY),
                ..Resize::to_sizes([5], ResizeMode::Cubic)
            };
            g.add(resize, &[x])
        }),
    ]
}
