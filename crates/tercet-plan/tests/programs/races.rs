//! Tests that no program races and that every barrier is necessary.

use tercet_plan::{DeviceCaps, check_races};

use crate::common::for_each_case;

#[test]
fn no_program_races_and_no_barrier_can_go() {
    let mut barriers = 0;
    for caps in [DeviceCaps::h200(), DeviceCaps::browser()] {
        for_each_case(&caps, |p| {
            let Ok(mut program) = p.program else { return };
            check_races(&program).unwrap_or_else(|race| panic!("{}: {race}\n{program}", p.name));
            for at in 0..program.steps.len() {
                if !program.steps[at].barrier {
                    continue;
                }
                barriers += 1;
                program.steps[at].barrier = false;
                let race = check_races(&program);
                assert!(race.is_err(), "{}: barrier {at} is idle\n{program}", p.name);
                program.steps[at].barrier = true;
            }
        });
    }
    assert!(barriers > 100, "barriers: {barriers}");
}
