//! Every optimizer compared with its formulas in F64; SGD, AdamW and clipping compared with torch.

use tercet::train::{
    AdamW, Lion, Muon, MuonScale, Optimizer, ParamGroup, Sgd, StepOptions, Trainable,
};

use crate::common::{
    IN, OUT, Regression, expect_close, given, inputs, norm, numbers, regression_trainer, torch,
    trainables,
};

const STEPS: usize = 8;
const TOLERANCE: f64 = 2e-6;

/// Both trainables, with the optimizer's weight decay.
fn decayed() -> Vec<Trainable> {
    let all = trainables().into_iter();
    all.map(|t| t.in_group(ParamGroup::decay())).collect()
}

/// Compares an optimizer with an F64 function of the weights, the gradients, the step number from 1
/// and the index of the trainable.
fn check(
    optimizer: &dyn Optimizer,
    trainables: &[Trainable],
    options: &StepOptions,
    rate: f64,
    tolerance: f64,
    mut plain: impl FnMut(usize, usize, &mut [f64], &[f64]),
) {
    let mut trainer = regression_trainer(trainables, optimizer, options, rate);
    let inputs = inputs(1);
    let mut truth = Regression::new();
    for t in 1..=STEPS {
        let report = trainer.step(&given(&inputs)).unwrap();
        let (loss, mut dw, mut db) = truth.gradients();
        let size = norm(&[&dw, &db]);
        if let Some(most) = options.clip_norm {
            let factor = (most / (size + 1e-6)).min(1.0);
            dw.iter_mut().chain(&mut db).for_each(|g| *g *= factor);
        }
        plain(t, 0, &mut truth.w, &dw);
        plain(t, 1, &mut truth.b, &db);
        expect_close("loss", &[report.loss.into()], &[loss], tolerance);
        expect_close("norm", &[report.gradient_norm.into()], &[size], tolerance);
        let found = ["w", "b"].map(|name| trainer.state(name).unwrap().to_f64s());
        expect_close("w", &found[0], &truth.w, tolerance);
        expect_close("b", &found[1], &truth.b, tolerance);
        assert_eq!((report.step, report.skipped), (t as u64, false));
    }
    assert_eq!(
        trainer.unchanged_trainables().unwrap(),
        Vec::<String>::new()
    );
}

#[test]
fn sgd_is_its_formula() {
    for (momentum, nesterov, weight_decay) in
        [(0.0, false, 0.0), (0.9, false, 0.1), (0.9, true, 0.1)]
    {
        let optimizer = Sgd {
            momentum,
            nesterov,
            weight_decay,
        };
        let mut kept = [vec![0.0; IN * OUT], vec![0.0; OUT]];
        let options = StepOptions::default();
        check(
            &optimizer,
            &decayed(),
            &options,
            0.1,
            TOLERANCE,
            |_, which, w, g| {
                for ((w, g), b) in w.iter_mut().zip(g).zip(&mut kept[which]) {
                    let g = g + weight_decay * *w;
                    *b = momentum * *b + g;
                    *w -= 0.1 * if nesterov { g + momentum * *b } else { *b };
                }
            },
        );
    }
}

/// Weight decay and learning rate factor of a trainable.
type Settings = (f64, f64);

/// AdamW as in its paper, for one trainable.
fn adamw(
    o: &AdamW,
    t: usize,
    rate: f64,
    of: Settings,
    moments: &mut [(f64, f64)],
    w: &mut [f64],
    g: &[f64],
) {
    let rate = rate * of.1;
    for ((w, g), (m, v)) in w.iter_mut().zip(g).zip(moments) {
        *m = o.beta1 * *m + (1.0 - o.beta1) * g;
        *v = o.beta2 * *v + (1.0 - o.beta2) * g * g;
        let mean = *m / (1.0 - o.beta1.powi(t as i32));
        let square = *v / (1.0 - o.beta2.powi(t as i32));
        *w -= rate * (mean / (square.sqrt() + o.epsilon) + of.0 * *w);
    }
}

#[test]
fn adamw_is_its_formula() {
    let optimizer = AdamW {
        weight_decay: 0.1,
        ..AdamW::default()
    };
    let slow = ParamGroup {
        name: "slow".to_string(),
        learning_rate: 0.25,
        weight_decay: Some(0.5),
    };
    let in_groups = vec![Trainable::new("w"), Trainable::new("b").in_group(slow)];
    // By default, vectors have no weight decay.
    let cases: [(Vec<Trainable>, [Settings; 2]); 3] = [
        (trainables(), [(0.1, 1.0), (0.0, 1.0)]),
        (decayed(), [(0.1, 1.0), (0.1, 1.0)]),
        (in_groups, [(0.1, 1.0), (0.5, 0.25)]),
    ];
    for (trainables, settings) in cases {
        let mut moments = [vec![(0.0, 0.0); IN * OUT], vec![(0.0, 0.0); OUT]];
        let options = StepOptions::default();
        check(
            &optimizer,
            &trainables,
            &options,
            0.05,
            TOLERANCE,
            |t, which, w, g| {
                adamw(
                    &optimizer,
                    t,
                    0.05,
                    settings[which],
                    &mut moments[which],
                    w,
                    g,
                );
            },
        );
    }
}

#[test]
fn lion_is_its_formula() {
    let optimizer = Lion::default();
    let mut moments = [vec![0.0; IN * OUT], vec![0.0; OUT]];
    let options = StepOptions::default();
    check(
        &optimizer,
        &decayed(),
        &options,
        0.02,
        TOLERANCE,
        |_, which, w, g| {
            for ((w, g), m) in w.iter_mut().zip(g).zip(&mut moments[which]) {
                let direction = (0.9 * *m + (1.0 - 0.9) * g).signum();
                *w -= 0.02 * (direction + 0.1 * *w);
                *m = 0.99 * *m + (1.0 - 0.99) * g;
            }
        },
    );
}

/// The matrix product `a b`, row-major.
fn product(a: &[f64], b: &[f64], rows: usize, inner: usize, columns: usize) -> Vec<f64> {
    let at = |i: usize| (i / columns, i % columns);
    let sum = |(row, column)| {
        (0..inner)
            .map(|k| a[row * inner + k] * b[k * columns + column])
            .sum()
    };
    (0..rows * columns).map(|i| sum(at(i))).collect()
}

fn transposed(a: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..rows * columns)
        .map(|i| a[(i % rows) * columns + i / rows])
        .collect()
}

/// Newton-Schulz iteration, without transposing tall matrices.
fn orthogonal(u: &[f64], rows: usize, columns: usize, iterations: usize) -> Vec<f64> {
    let size = norm(&[u]);
    let mut x: Vec<f64> = u.iter().map(|x| x / size).collect();
    for _ in 0..iterations {
        let gram = product(&x, &transposed(&x, rows, columns), rows, columns, rows);
        let (one, two) = (
            product(&gram, &x, rows, rows, columns),
            product(
                &product(&gram, &gram, rows, rows, rows),
                &x,
                rows,
                rows,
                columns,
            ),
        );
        x = (0..x.len())
            .map(|i| 3.4445 * x[i] - 4.7750 * one[i] + 2.0315 * two[i])
            .collect();
    }
    x
}

#[test]
fn muon_is_its_formula() {
    for (nesterov, scale) in [(true, MuonScale::MatchAdamW), (false, MuonScale::Original)] {
        let optimizer = Muon {
            nesterov,
            scale,
            ..Muon::default()
        };
        let factor = match scale {
            MuonScale::MatchAdamW => 0.2 * (IN as f64).sqrt(),
            MuonScale::Original => (IN as f64 / OUT as f64).sqrt(),
        };
        let mut kept = vec![0.0; IN * OUT];
        let mut moments = vec![(0.0, 0.0); OUT];
        let options = StepOptions::default();
        check(
            &optimizer,
            &trainables(),
            &options,
            0.05,
            5e-5,
            |t, which, w, g| {
                if which == 1 {
                    return adamw(&optimizer.adamw, t, 0.05, (0.0, 1.0), &mut moments, w, g);
                }
                let blend = |b: f64, g: f64| 0.95 * b + (1.0 - 0.95) * g;
                kept.iter_mut().zip(g).for_each(|(b, g)| *b = blend(*b, *g));
                let u = match nesterov {
                    true => kept.iter().zip(g).map(|(b, g)| blend(*b, *g)).collect(),
                    false => kept.clone(),
                };
                let x = orthogonal(&u, IN, OUT, 5);
                for (w, x) in w.iter_mut().zip(x) {
                    *w -= 0.05 * (factor * x + 0.1 * *w);
                }
            },
        );
    }
}

#[test]
fn muon_leaves_what_it_is_told_to_adamw() {
    let optimizer = Muon {
        by_adamw: vec!["w".to_string()],
        ..Muon::default()
    };
    let options = StepOptions::default();
    let trainer = regression_trainer(&trainables(), &optimizer, &options, 0.1);
    let names: Vec<&str> = trainer
        .step_graph()
        .states()
        .iter()
        .map(|s| &*s.name)
        .collect();
    let wanted = [
        "w",
        "b",
        "adamw.step",
        "adamw.m.w",
        "adamw.v.w",
        "adamw.m.b",
        "adamw.v.b",
    ];
    assert_eq!(names, wanted);
}

#[test]
fn gradients_are_clipped_by_their_common_norm() {
    let options = StepOptions {
        clip_norm: Some(0.5),
        ..StepOptions::default()
    };
    check(
        &Sgd::default(),
        &trainables(),
        &options,
        0.1,
        TOLERANCE,
        |_, _, w, g| {
            w.iter_mut().zip(g).for_each(|(w, g)| *w -= 0.1 * g);
        },
    );
}

#[test]
fn steps_are_those_of_torch() {
    let data = torch();
    let runs = data["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 4);
    for run in runs {
        let sgd = Sgd {
            momentum: 0.9,
            nesterov: true,
            weight_decay: 0.01,
        };
        let adamw = AdamW {
            weight_decay: 0.1,
            ..AdamW::default()
        };
        let optimizer: &dyn Optimizer = match run["name"].as_str().unwrap() {
            "sgd" => &sgd,
            _ => &adamw,
        };
        let options = StepOptions {
            clip_norm: run["clip"].as_f64(),
            ..StepOptions::default()
        };
        let mut trainer = regression_trainer(&decayed(), optimizer, &options, 0.05);
        let inputs = inputs(1);
        let mut reports = Vec::new();
        for _ in 0..STEPS {
            reports.push(trainer.step(&given(&inputs)).unwrap());
        }
        let losses: Vec<f64> = reports.iter().map(|r| r.loss.into()).collect();
        let norms: Vec<f64> = reports.iter().map(|r| r.gradient_norm.into()).collect();
        expect_close("loss", &losses, &numbers(&run["loss"]), TOLERANCE);
        expect_close("norm", &norms, &numbers(&run["gradient_norm"]), TOLERANCE);
        for name in ["w", "b"] {
            let found = trainer.state(name).unwrap().to_f64s();
            expect_close(name, &found, &numbers(&run[name]), TOLERANCE);
        }
    }
}

#[test]
fn averages_follow_the_weights() {
    let options = StepOptions {
        ema_decay: Some(0.75),
        ..StepOptions::default()
    };
    let mut trainer = regression_trainer(&trainables(), &Sgd::default(), &options, 0.1);
    let inputs = inputs(1);
    let mut average = Regression::new().w;
    for _ in 0..5 {
        trainer.step(&given(&inputs)).unwrap();
        let w = trainer.state("w").unwrap().to_f64s();
        average
            .iter_mut()
            .zip(w)
            .for_each(|(a, w)| *a = 0.75 * *a + 0.25 * w);
        let found = trainer.state("ema.w").unwrap().to_f64s();
        expect_close("average", &found, &average, TOLERANCE);
    }
}
