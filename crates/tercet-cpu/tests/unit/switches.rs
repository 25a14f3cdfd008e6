//! Switches of instruction sets.

use tercet_cpu::internals::{LEVELS, level};
use tercet_cpu::kernels::SimdLevel;
use tercet_ir::{DeviceSwitches, SwitchError};

fn parse(without: &str, force: &str) -> DeviceSwitches {
    DeviceSwitches::parse(without, force).unwrap()
}

#[test]
fn switches_select_the_best_level_that_is_left() {
    assert_eq!(level(&parse("", "")), Ok(SimdLevel::detect()));
    let without = level(&parse("avx2", "")).unwrap();
    assert!(!without.name().starts_with("avx"), "{}", without.name());
    assert_eq!(
        level(&parse("", "simd=portable")),
        Ok(SimdLevel::portable())
    );
    let without = level(&parse("avx512", "")).unwrap();
    assert_ne!(without.name(), "avx512");
    let without = level(&parse("vnni", "")).unwrap();
    assert_eq!(without, without.without_dots());
    let all = SimdLevel::available();
    for (at, own) in all.iter().enumerate() {
        let names: Vec<String> = all[..at]
            .iter()
            .map(|l| format!("simd={}", l.name()))
            .collect();
        assert_eq!(level(&parse(&names.join(","), "")), Ok(*own));
        let forced = level(&parse("", &format!("simd={}", own.name())));
        assert_eq!(forced, Ok(*own));
    }
}

#[test]
fn a_level_that_cannot_run_is_refused_with_those_that_can() {
    let e = level(&parse("avx2", "simd=avx2")).unwrap_err();
    assert!(matches!(e, SwitchError::Unavailable { .. }));
    assert!(e.to_string().contains("another switch") && e.to_string().contains("portable"));
    let all = LEVELS.map(|name| format!("simd={name}")).join(",");
    let e = level(&parse(&all, "")).unwrap_err();
    assert!(matches!(e, SwitchError::Unavailable { .. }), "{e}");
    let missing = LEVELS
        .iter()
        .find(|name| !SimdLevel::available().iter().any(|l| l.name() == **name));
    if let Some(name) = missing {
        let e = level(&parse("", &format!("simd={name}"))).unwrap_err();
        assert!(e.to_string().contains("lacks the instructions"), "{e}");
    }
    let e = level(&parse("", "attention=tiles")).unwrap_err();
    assert!(matches!(e, SwitchError::UnknownFamily { .. }));
}
