//! Removes spikes from signals with a running median, on every device of this machine.

mod median;

use std::error::Error;

use median::RunningMedian;
use tercet::attr::Attrs;
use tercet::custom::CustomOps;
use tercet::{
    CompileOptions, DType, Device, Dim, Graph, OpError, Tensor, Type, devices, parse_with, verify,
};

/// The filtered signals, and the maximum change of each.
fn graph(width: usize) -> Result<Graph, OpError> {
    let mut g = Graph::new();
    let shape = [Dim::sym("signals"), Dim::sym("samples")];
    let x = g.input("x", Type::new(DType::F32, shape))?;
    let smooth = g.custom(RunningMedian { width }, &[x])?;
    let spikes = g.sub(x, smooth)?;
    let size = g.abs(spikes)?;
    let most = g.reduce_max(size, &[1], false)?;
    g.output("smooth", smooth)?;
    g.output("most", most)?;
    Ok(g)
}

/// Sine waves with one spike each.
fn signals(count: usize, samples: usize) -> Result<Tensor, Box<dyn Error>> {
    let mut x = Vec::with_capacity(count * samples);
    for signal in 0..count {
        let wave = |t: usize| ((t + 3 * signal) as f32 * 0.2).sin();
        x.extend((0..samples).map(wave));
        let middle = x.len() - samples.div_ceil(2);
        x[middle] += 5.0 + signal as f32;
    }
    Ok(Tensor::from_slice(&[count, samples], &x)?)
}

/// Converts the graph to text form and back. The text contains the name and the attributes of an
/// operator; the registry provides its implementation.
fn through_text(g: &Graph) -> Result<Graph, Box<dyn Error>> {
    let mut ops = CustomOps::new();
    ops.register(RunningMedian::NAME, RunningMedian::from_literals);
    Ok(parse_with(&g.to_string(), &ops)?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let g = graph(5)?;
    println!("{g}\n");
    let g = through_text(&g)?;
    let options = CompileOptions::new()
        .bound("signals", 16)
        .bound("samples", 1024);
    for info in devices().iter().filter(|d| d.usable) {
        let device = Device::by_name(&info.name)?;
        let x = signals(3, 200)?;
        let mut exe = device.compile(&g, &options)?;
        let most = exe.run(&[("x", &x)])?.swap_remove(1);
        println!(
            "{}: removed spikes of {:.2?}",
            info.name,
            most.as_slice::<f32>()?
        );
        let verification = verify(&g, &[("x", &x)], &device)?;
        if let Some(off) = verification.first_divergence() {
            return Err(format!("{} differs from the reference: {off:?}", info.name).into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_keeps_the_graph() {
        let g = graph(7).unwrap();
        assert!(g.to_string().contains("attrs=[width(7)]"));
        assert_eq!(through_text(&g).unwrap(), g);
    }

    #[test]
    fn medians_are_those_of_hand() {
        let mut g = Graph::new();
        let x = g.input("x", Type::new(DType::F32, [1, 5])).unwrap();
        let y = g.custom(RunningMedian { width: 3 }, &[x]).unwrap();
        g.output("y", y).unwrap();
        let x = Tensor::from_slice(&[1, 5], &[1f32, 9.0, 2.0, 3.0, 3.0]).unwrap();
        let mut exe = Device::cpu().compile(&g, &CompileOptions::new()).unwrap();
        let y = exe.run(&[("x", &x)]).unwrap();
        assert_eq!(y[0].as_slice::<f32>().unwrap(), [1.0, 2.0, 3.0, 3.0, 3.0]);
    }

    #[test]
    fn an_even_width_is_refused() {
        let error = graph(4).unwrap_err();
        assert!(tercet::one_line(&error).contains("4 is not an odd number"));
    }

    #[test]
    fn every_device_agrees_with_the_reference() {
        let mut names = Vec::new();
        for info in devices().into_iter().filter(|d| d.usable) {
            let device = Device::by_name(&info.name).unwrap();
            for (width, count, samples) in [(5, 3, 200), (1, 1, 1), (9, 16, 4), (3, 0, 7)] {
                let g = graph(width).unwrap();
                let x = signals(count, samples).unwrap();
                let verification = verify(&g, &[("x", &x)], &device).unwrap();
                let off = verification.first_divergence();
                assert_eq!(off, None, "{} {width} {count} {samples}", info.name);
            }
            names.push(info.name);
        }
        assert!(names.iter().any(|name| name == "cpu"), "{names:?}");
    }
}
