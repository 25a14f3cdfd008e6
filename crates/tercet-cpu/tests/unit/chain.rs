//! Chains of elementwise steps.

use tercet_cpu::kernels::SimdLevel;
use tercet_cpu::kernels::chain::{
    ChainInput, ChainOp, ChainSource, ChainStep, ChainTarget, run, scratch_len, settled,
};

/// The steps of `clamp(round(x / scale) + zero, low, high)`, with the clamp in two steps.
fn quantization(scale: ChainSource, zero: ChainSource, low: f32) -> [ChainStep; 5] {
    let tile = ChainSource::Tile;
    let raised = match low == 0.0 {
        true => ChainOp::Relu(tile(0)),
        false => ChainOp::Max(tile(0), ChainSource::Const(low)),
    };
    let step = |action, to| ChainStep { action, to };
    [
        step(
            ChainOp::Div(ChainSource::Input(0), scale),
            ChainTarget::Tile(0),
        ),
        step(ChainOp::Round(tile(0)), ChainTarget::Tile(1)),
        step(ChainOp::Add(tile(1), zero), ChainTarget::Tile(0)),
        step(raised, ChainTarget::Tile(2)),
        step(
            ChainOp::Min(tile(2), ChainSource::Const(127.0)),
            ChainTarget::Out(0),
        ),
    ]
}

#[test]
fn quantization_is_one_step_with_the_same_bits() {
    let special = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        0.05,
        0.15,
        -0.05,
        1e30,
    ];
    let x: Vec<f32> = (0..1500)
        .map(|i| {
            special
                .get(i)
                .copied()
                .unwrap_or((i as f32 - 700.0) * 0.037)
        })
        .collect();
    let scales: Vec<f32> = (0..1500).map(|i| 0.01 + (i % 7) as f32 * 0.1).collect();
    let constant = [ChainSource::Const(0.1), ChainSource::Const(3.0)];
    let given = [ChainSource::Input(1), ChainSource::Input(2)];
    for ([scale, zero], low) in [(constant, 0.0), (constant, -128.0), (given, -128.0)] {
        let steps = quantization(scale, zero, low);
        for level in SimdLevel::available() {
            let run_steps = |steps: &[ChainStep]| {
                let inputs = [&x, &scales, &scales].map(|x| ChainInput::Slice(x));
                let mut y = vec![0f32; x.len()];
                let mut scratch = vec![0f32; scratch_len(3, 1)];
                run(*level, steps, &inputs, &mut [&mut y], &mut scratch);
                y.iter().map(|y| y.to_bits()).collect::<Vec<u32>>()
            };
            let fused = settled(*level, &steps, &[None; 3], 3);
            assert_eq!(fused.len(), 1);
            assert_eq!(run_steps(&fused), run_steps(&steps), "{}", level.name());
            // With a conversion to an integer.
            let mut whole = steps.to_vec();
            whole[4].to = ChainTarget::Tile(1);
            whole.push(ChainStep {
                action: ChainOp::Truncate(ChainSource::Tile(1)),
                to: ChainTarget::Out(0),
            });
            let fused = settled(*level, &whole, &[None; 3], 3);
            assert_eq!(fused.len(), 1);
            assert_eq!(run_steps(&fused), run_steps(&whole), "{}", level.name());
        }
    }
    // The zero point is an earlier result of the same steps: only the bounds are one step.
    let steps = quantization(ChainSource::Const(0.1), ChainSource::Tile(0), 0.0);
    assert_eq!(settled(SimdLevel::detect(), &steps, &[None; 3], 3).len(), 4);
}

#[test]
fn pairs_of_steps_are_one_step_with_the_same_bits() {
    use ChainSource::{Const, Input, Tile};
    use tercet_cpu::kernels::vmath::VmathComparison;
    let special = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        -0.0,
        0.0,
        0.25,
        1e30,
    ];
    let x: Vec<f32> = (0..1500)
        .map(|i| {
            special
                .get(i)
                .copied()
                .unwrap_or((i as f32 - 700.0) * 0.0037)
        })
        .collect();
    let step = |action, to| ChainStep { action, to };
    let tile = |t| ChainTarget::Tile(t);
    let out = ChainTarget::Out(0);
    let scaled = |to| step(ChainOp::Mul(Const(0.3), Input(0)), to);
    let compared = |op| step(ChainOp::Compare(op, Const(0.25), Input(0)), tile(0));
    let mut chains = vec![
        (
            2,
            vec![
                scaled(tile(0)),
                step(ChainOp::Add(Tile(0), Const(0.5)), tile(1)),
                step(ChainOp::Max(Tile(1), Const(-0.25)), tile(0)),
                step(ChainOp::Min(Const(0.75), Tile(0)), out),
            ],
        ),
        // A tile that is read again, and one that changes before it is read.
        (
            3,
            vec![
                scaled(tile(0)),
                step(ChainOp::Add(Tile(0), Const(0.5)), tile(1)),
                step(ChainOp::Add(Tile(1), Tile(0)), out),
            ],
        ),
        (
            5,
            vec![
                scaled(tile(0)),
                step(ChainOp::Relu(Tile(0)), tile(1)),
                step(ChainOp::Neg(Input(0)), tile(0)),
                step(ChainOp::Min(Tile(1), Const(0.5)), tile(2)),
                step(ChainOp::Add(Tile(2), Tile(0)), out),
            ],
        ),
    ];
    for op in [
        VmathComparison::Lt,
        VmathComparison::Ge,
        VmathComparison::Ne,
    ] {
        chains.push((
            2,
            vec![
                compared(op),
                scaled(tile(1)),
                step(ChainOp::Pick(Tile(0), Tile(1), Input(0)), out),
            ],
        ));
    }
    for (count, steps) in chains {
        for level in SimdLevel::available() {
            let run_steps = |steps: &[ChainStep]| {
                let mut y = vec![0f32; x.len()];
                let mut scratch = vec![0f32; scratch_len(3, 1)];
                let inputs = [ChainInput::Slice(&x)];
                run(*level, steps, &inputs, &mut [&mut y], &mut scratch);
                y.iter().map(|y| y.to_bits()).collect::<Vec<u32>>()
            };
            let fused = settled(*level, &steps, &[None], 3);
            assert_eq!(fused.len(), count, "{steps:?}");
            assert_eq!(run_steps(&fused), run_steps(&steps), "{}", level.name());
        }
    }
}
