//! Learning rate schedules.

use tercet::train::LearningRateSchedule;

#[test]
fn schedules_rise_and_fall() {
    let check = |what: &str, schedule: LearningRateSchedule, rates: &[(u64, f64)]| {
        for &(step, rate) in rates {
            let found = schedule.rate(step);
            assert!((found - rate).abs() < 1e-12, "{what} at {step}: {found}");
        }
    };
    let far = u64::MAX;
    check(
        "constant",
        LearningRateSchedule::constant(0.5),
        &[(0, 0.5), (far, 0.5)],
    );
    let warm = LearningRateSchedule::warmup(1.0, 4);
    check(
        "warm-up",
        warm,
        &[(0, 0.25), (3, 1.0), (4, 1.0), (far, 1.0)],
    );
    let linear = LearningRateSchedule::linear(1.0, 2, 6);
    let rates = [
        (0, 0.5),
        (1, 1.0),
        (2, 1.0),
        (3, 0.75),
        (5, 0.25),
        (6, 0.0),
        (far, 0.0),
    ];
    check("linear", linear, &rates);
    let cosine = LearningRateSchedule::cosine(2.0, 0, 4).ending_at(1.0);
    let quarter = 1.5 + 0.5 * (std::f64::consts::PI / 4.0).cos();
    check(
        "cosine",
        cosine,
        &[(0, 2.0), (1, quarter), (2, 1.5), (4, 1.0), (far, 1.0)],
    );
    let stable = LearningRateSchedule::warmup_stable_decay(1.0, 2, 3, 4);
    let rates = [
        (0, 0.5),
        (2, 1.0),
        (5, 1.0),
        (6, 0.75),
        (8, 0.25),
        (9, 0.0),
        (far, 0.0),
    ];
    check("warm-up, stable, decay", stable, &rates);
    // No decay steps, and fewer total steps than warm-up steps.
    check(
        "no steps",
        LearningRateSchedule::linear(1.0, 0, 0),
        &[(0, 0.0)],
    );
    check(
        "short",
        LearningRateSchedule::cosine(1.0, 4, 2),
        &[(3, 1.0), (4, 0.0)],
    );
    check(
        "no decay",
        LearningRateSchedule::warmup_stable_decay(1.0, 0, 1, 0),
        &[(0, 1.0), (1, 0.0)],
    );
}
