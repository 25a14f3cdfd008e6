//! Groups over rows: what becomes one kernel, and that its text is valid.

use tercet_ir::{CompileOptions, DType, Graph, OpError, Type, Value};

use super::tests::validate;
use crate::caps::Caps;
use crate::program::{Program, Work};

/// The program of gradients of `build`'s result with respect to the first `wanted` inputs.
fn backward(
    caps: &Caps,
    inputs: &[Type],
    wanted: usize,
    build: impl FnOnce(&mut Graph, &[Value]) -> Result<Value, OpError>,
) -> Program {
    let mut g = Graph::new();
    let mut values = Vec::new();
    for (i, ty) in inputs.iter().enumerate() {
        values.push(g.input(&format!("x{i}"), ty.clone()).unwrap());
    }
    let y = build(&mut g, &values).unwrap();
    let dy = g.input("dy", g.ty(y).clone()).unwrap();
    let gradients = g.vjp(&[(y, dy)], &values[..wanted]).unwrap();
    for (i, gradient) in gradients.into_iter().flatten().enumerate() {
        g.output(&format!("d{i}"), gradient).unwrap();
    }
    let program = crate::compile(&g, &CompileOptions::new(), caps).unwrap();
    program.kernels.iter().for_each(validate);
    program
}

/// The names of its dispatches in order.
fn names(program: &Program) -> Vec<String> {
    let dispatches = program.steps.iter().filter_map(|step| match &step.work {
        Work::Dispatch(d) => Some(program.kernels[d.kernel.0 as usize].name.clone()),
        Work::Copy { .. } | Work::Fill { .. } => None,
    });
    dispatches.collect()
}

#[test]
fn shown() {
    for caps in [Caps::browser()] {
        for dtype in [DType::F32, DType::F16] {
            let x = || Type::new(dtype, [256, 512]);
            let gain = || Type::new(dtype, [512]);
            let p = backward(&caps, &[x(), gain(), gain()], 3, |g, v| {
                g.layer_norm(v[0], v[1], Some(v[2]), 1, 1e-5)
            });
            eprintln!("{:#?}", names(&p));
            let p = backward(&caps, &[x(), gain()], 2, |g, v| {
                g.rms_norm(v[0], v[1], None, 1e-5)
            });
            eprintln!("{:#?}", names(&p));
            let p = backward(&caps, &[x()], 1, |g, v| g.softmax(v[0], 1));
            eprintln!("{:#?}", names(&p));
            let p = backward(&caps, &[x()], 1, |g, v| g.log_softmax(v[0], 1));
            eprintln!("{:#?}", names(&p));
            for k in &p.kernels {
                if k.name.starts_with("rows") {
                    if let crate::kernel::Source::Wgsl(t) = &k.source {
                        eprintln!("{}", &t[t.find("struct Params").unwrap()..]);
                    }
                }
            }
        }
    }
}
