//! Tests of the promise of [`Executable::kernel_variants`](tercet_ir::Executable::kernel_variants): runs whose
//! kernels are the same give a row the same bits for any number of rows. Servers rely on it when a run has
//! only the rows that are in use.

use std::collections::BTreeMap;

use crate::{SuiteTest, executors};
use tercet_ir::fill::InputFill;
use tercet_ir::{CompileOptions, DType, Dim, Graph, OpError, Scheme, Tensor, TensorType, Type};

/// Numbers of rows, around the limits of the kernels that prepack rows.
const COUNTS: [usize; 12] = [1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100];
const MOST: usize = 100;

/// Names and types of parameters.
type Parameters = Vec<(&'static str, TensorType)>;

/// The shapes of a block's products: `x + down(silu(gate norm(x)) * (up norm(x)))`, with this width and twice this
/// width inside.
fn graph(scheme: Scheme, width: usize) -> Result<(Graph, Parameters), OpError> {
    let inner = 2 * width;
    let mut g = Graph::new();
    let x = g.input("x", Type::new(DType::F32, [Dim::sym("m"), width.into()]))?;
    let gain = g.param("gain", Type::new(DType::F32, [width]))?;
    let mut types = vec![("gain", TensorType::new(DType::F32, &[width]))];
    let mut weights = |g: &mut Graph, name, rows: usize, len: usize| {
        let (dtype, units) = match scheme.storage().is_float() {
            true => (scheme.storage(), len),
            false => (DType::U8, len / scheme.block_len() * scheme.block_bytes()),
        };
        types.push((name, TensorType::new(dtype, &[rows, units])));
        g.param(name, Type::new(dtype, [rows, units]))
    };
    let gate = weights(&mut g, "gate", inner, width)?;
    let up = weights(&mut g, "up", inner, width)?;
    let down = weights(&mut g, "down", width, inner)?;
    let h = g.rms_norm(x, gain, None, 1e-5)?;
    let gate = g.dequant_matmul(h, gate, scheme)?;
    let gate = g.silu(gate)?;
    let up = g.dequant_matmul(h, up, scheme)?;
    let inside = g.mul(gate, up)?;
    let y = g.dequant_matmul(inside, down, scheme)?;
    let y = g.plus(x, y)?;
    g.output("y", y)?;
    Ok((g, types))
}

fn rows_keep_their_bits(scheme: Scheme) {
    let width = 512;
    let (g, types) = graph(scheme, width).expect("the graph is well typed");
    let params: Vec<(&str, Tensor)> = types
        .into_iter()
        .map(|(name, ty)| {
            let fill = match name {
                "gain" => InputFill::Uniform(0.5, 1.5),
                _ => InputFill::Blocks(scheme),
            };
            (name, fill.tensor(name, ty))
        })
        .collect();
    let x = InputFill::Normal.tensor("x", TensorType::new(DType::F32, &[MOST, width]));
    let x = x.as_slice::<f32>().expect("F32");
    for executor in executors() {
        let device = match executor.device() {
            Ok(device) => device,
            Err(reason) if executor.is_required() => panic!("{}: {reason}", executor.name),
            Err(_) => continue,
        };
        let fast = device.fast_quant_matmul_dtypes();
        let precisions = [None, fast.first().copied()];
        for precision in &precisions[..1 + usize::from(precisions[1].is_some())] {
            let mut options = CompileOptions::new().bound("m", MOST);
            options.matmul_precision = *precision;
            let exe = device.compile(&g, &options);
            let mut exe = exe.unwrap_or_else(|e| panic!("{}: {e}", executor.name));
            for (name, tensor) in &params {
                exe.set_param(name, tensor.clone())
                    .expect("the parameter fits");
            }
            // The results of each selection of kernels, by numbers of rows.
            let mut seen: BTreeMap<Vec<u32>, Vec<(usize, Vec<u32>)>> = BTreeMap::new();
            for count in COUNTS {
                let part = Tensor::from_slice(&[count, width], &x[..count * width]);
                let part = part.expect("the list has the number of elements of its shape");
                let inputs = [("x", &part)];
                let variants = exe.kernel_variants(&inputs).expect("the inputs fit");
                let y = exe.run(&inputs);
                let y = y.unwrap_or_else(|e| panic!("{}: {e}", executor.name));
                let bits = y[0].as_slice::<f32>().expect("F32");
                let bits = bits.iter().map(|y| y.to_bits()).collect();
                seen.entry(variants).or_default().push((count, bits));
            }
            for of_kernels in seen.values() {
                let Some(((most, whole), others)) = of_kernels.split_last() else {
                    continue;
                };
                for (count, bits) in others {
                    assert!(
                        bits[..] == whole[..count * width],
                        "{}: {scheme:?} with {precision:?}: {count} and {most} rows differ",
                        executor.name
                    );
                }
            }
        }
    }
}

/// The tests of this suite.
pub(super) fn tests() -> Vec<SuiteTest> {
    macro_rules! of_schemes {
        ($($name:literal $scheme:ident),*) => {
            vec![$(SuiteTest::asserting(
                concat!("counts/rows_keep_their_bits/", $name),
                || rows_keep_their_bits(Scheme::$scheme),
            )),*]
        };
    }
    of_schemes!["f16" F16, "q4_0" Q4_0, "q8_0" Q8_0, "q4_k" Q4K, "q5_k" Q5K, "q6_k" Q6K]
}
