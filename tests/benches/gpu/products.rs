//! Device times of the gradient matmuls of layers.

use tercet::{DType, Graph, Type, fill::InputFill};

use crate::kernels::{measure, stateful};
use crate::{Bench, Result};

/// Measures F32 gradient matmuls: activation gradients (with transposed weights), and weight
/// gradients (with transposed activations).
pub(crate) fn gradients(b: &mut Bench) -> Result<()> {
    let shapes = [
        [4096, 768, 3072, 1],
        [4096, 3072, 768, 1],
        [4096, 768, 768, 1],
        [768, 3072, 4096, 0],
        [3072, 768, 4096, 0],
        [768, 768, 4096, 0],
    ];
    for [m, n, k, turned] in shapes {
        let lies = |operand, rows, columns| match operand == turned {
            true => [columns, rows],
            false => [rows, columns],
        };
        let uniform = || InputFill::Uniform(-1.0, 1.0);
        let operands = [
            ("a", Type::new(DType::F32, lies(0, m, k)), uniform()),
            ("b", Type::new(DType::F32, lies(1, k, n)), uniform()),
        ];
        let (g, tensors) = stateful(&operands, |g, v| {
            let turn = |g: &mut Graph, operand: usize| match operand == turned {
                true => g.transpose(v[operand], &[1, 0]),
                false => Ok(v[operand]),
            };
            let (x, y) = (turn(g, 0)?, turn(g, 1)?);
            g.matmul(x, y)
        })?;
        let which = ["weights", "rows"][turned];
        let name = format!("gemm f32 {m}x{n}x{k}, gradient of {which}");
        match measure(b, &g, &tensors) {
            Ok(measured) => {
                let rate = 2.0 * (m * n * k) as f64 / measured.seconds * 1e-12;
                b.report
                    .row(&name, measured.seconds, Some((rate, "TFLOP/s")));
            }
            Err(e) => b.report.failed(&name, &e.to_string()),
        }
    }
    Ok(())
}
