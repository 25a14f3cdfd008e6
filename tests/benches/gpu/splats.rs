//! Device times of Gaussian splatting on generated scenes that fill an image.

use tercet::fill::InputFill;
use tercet::ops::splat::{CAMERA_LEN, SplatSceneOperands};
use tercet::{DType, Tensor, Type};

use crate::kernels::{measure, stateful};
use crate::profile::show;
use crate::{Bench, Result};

const IMAGE: [usize; 2] = [1280, 720];

/// A camera at the origin that looks along z.
fn camera() -> [f32; CAMERA_LEN] {
    let [width, height] = IMAGE.map(|n| n as f32);
    let mut all = [0.0; CAMERA_LEN];
    for axis in 0..4 {
        all[5 * axis] = 1.0;
    }
    let lens = [width, width, width / 2.0, height / 2.0, 0.25, 100.0];
    all[16..22].copy_from_slice(&lens);
    all
}

pub(crate) fn splats(b: &mut Bench) -> Result<()> {
    let counts: &[usize] = if b.quick { &[1000] } else { &[10_000, 100_000] };
    for &count in counts {
        let ty = |shape: &[usize]| Type::new(DType::F32, shape);
        let operands = [
            ("across", ty(&[count, 2]), InputFill::Uniform(-2.0, 2.0)),
            ("ahead", ty(&[count, 1]), InputFill::Uniform(3.0, 6.0)),
            (
                "log_scales",
                ty(&[count, 3]),
                InputFill::Uniform(-5.0, -3.5),
            ),
            ("rotations", ty(&[count, 4]), InputFill::Uniform(-1.0, 1.0)),
            ("opacities", ty(&[count]), InputFill::Uniform(-1.0, 3.0)),
            ("colors", ty(&[count, 16, 3]), InputFill::Uniform(-0.5, 0.5)),
        ];
        let camera = Tensor::from_slice(&[CAMERA_LEN], &camera())?;
        let (g, tensors) = stateful(&operands, |g, v| {
            let camera = g.constant(camera)?;
            let scene = SplatSceneOperands {
                positions: g.concat(&[v[0], v[1]], 1)?,
                log_scales: v[2],
                rotations: v[3],
                opacities: v[4],
                colors: v[5],
            };
            g.gaussian_splat_render(&scene, camera, IMAGE)
        })?;
        let mut m = measure(b, &g, &tensors)?;
        let name = format!("render {count} splats, 1280x720");
        let steps = m.exe.timings();
        b.report.row(&name, m.seconds, None);
        let middle = m.exe.read_output_rows("y", 360..361)?.to_f64s();
        let drawn = middle.iter().filter(|v| **v > 0.0).count();
        if drawn == 0 || middle.iter().any(|v| !v.is_finite()) {
            b.report
                .failed(&name, "the middle row is empty or not finite");
        }
        show(b, &name, &steps);
    }
    Ok(())
}
