//! Comparison of the gradients of training graphs with finite differences of their losses.

use tercet::{CompileOptions, Device, Executable, Tensor, Value};
use tercet_models::training::TrainingGraph;

/// Perturbs the initial trained states, so that no gradient vanishes because another weight is
/// zero.
pub(crate) fn stir(own: &mut TrainingGraph) {
    let mut state = 7u32;
    for (_, tensor) in &mut own.trainables {
        for x in tensor.as_slice_mut::<f32>().unwrap() {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *x += 0.2 * ((state >> 8) as f32 / (1 << 24) as f32 - 0.5);
        }
    }
}

/// The trained states and their gradients, which are appended to the graph.
pub(crate) fn gradients(own: &mut TrainingGraph) -> Vec<(Value, Value)> {
    let leaf = |name: &String| Value {
        node: own.graph.leaf(name).unwrap(),
        port: 0,
    };
    let states: Vec<Value> = own.trainables.iter().map(|(name, _)| leaf(name)).collect();
    let gradients = own.graph.gradients(own.loss, &states).unwrap();
    states.into_iter().zip(gradients).collect()
}

fn loss(exe: &mut dyn Executable, inputs: &[(&str, &Tensor)]) -> f64 {
    let loss = exe.run_outputs(inputs, &["loss"]).unwrap().remove(0);
    f64::from(loss.as_slice::<f32>().unwrap()[0])
}

/// Checks the derivative of each trainable along its gradient, which equals the gradient's norm.
/// The gradients for which `vanish` is true must be zero.
pub(crate) fn agree_with_differences(
    what: &str,
    own: &mut TrainingGraph,
    inputs: &[(&str, &Tensor)],
    vanish: impl Fn(&str) -> bool,
) {
    let found = gradients(own);
    for ((name, _), (_, gradient)) in own.trainables.iter().zip(&found) {
        own.graph.output(&format!("d {name}"), *gradient).unwrap();
    }
    let mut exe = own.compile(&Device::cpu(), &CompileOptions::new()).unwrap();
    for (name, start) in &own.trainables {
        let gradient = exe
            .run_outputs(inputs, &[&format!("d {name}")])
            .unwrap()
            .remove(0);
        let gradient = gradient.as_slice::<f32>().unwrap().to_vec();
        let squares = gradient.iter().map(|x| f64::from(*x) * f64::from(*x));
        let norm = squares.sum::<f64>().sqrt();
        if vanish(name) {
            assert!(norm < 1e-7, "{what} {name}: a gradient of {norm}");
            continue;
        }
        assert!(norm > 1e-6, "{what} {name}: a gradient of {norm}");
        let step = 2e-2 / norm.max(1.0);
        let mut moved = |by: f64| {
            let mut tensor = start.clone();
            let values = tensor.as_slice_mut::<f32>().unwrap();
            let terms = values.iter_mut().zip(&gradient);
            terms.for_each(|(x, g)| *x += (by * f64::from(*g) / norm) as f32);
            exe.write_state(name, &tensor).unwrap();
            loss(&mut *exe, inputs)
        };
        let slope = (moved(step) - moved(-step)) / (2.0 * step);
        exe.write_state(name, start).unwrap();
        // The error of finite differences of an F32 loss of about 4, whose two values are off by up to six units in the
        // last place.
        let slack = 2e-2 * norm + 3e-6 / step;
        assert!(
            (slope - norm).abs() < slack,
            "{what} {name}: {slope}, want {norm}"
        );
    }
}
