//! Settings of the CPU executor: which instruction set its kernels use.

use tercet_ir::{DeviceSwitches, SwitchError, SwitchableFeature, VariantFamily, VariantName};

use crate::kernels::SimdLevel;

/// The family of the instruction sets.
const FAMILY: &str = "simd";
/// All instruction sets with kernels, best first. A machine or a build may lack some of them.
const LEVELS: [&str; 7] = [
    "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "portable",
];

/// Returns the kernel families with variants that a switch can force or forbid.
pub(crate) fn families() -> Vec<VariantFamily> {
    vec![VariantFamily {
        name: FAMILY,
        variants: LEVELS.map(str::to_string).to_vec(),
    }]
}

/// The best level of this machine that the switches allow.
///
/// # Errors
/// [`SwitchError`] if a family or variant does not exist, this machine cannot run the forced level,
/// or every level is forbidden.
pub(crate) fn level(switches: &DeviceSwitches) -> Result<SimdLevel, SwitchError> {
    switches.check("cpu", &families())?;
    let is_off = |name: &str| {
        switches.is_forbidden(FAMILY, name)
            || name == "avx512" && switches.is_off(SwitchableFeature::Avx512)
            || name == "avxvnni" && switches.is_off(SwitchableFeature::Vnni)
            || name.starts_with("avx") && switches.is_off(SwitchableFeature::Avx2)
    };
    let names: Vec<&str> = SimdLevel::available().iter().map(|l| l.name()).collect();
    let mut allowed = SimdLevel::available().iter().filter(|l| !is_off(l.name()));
    let forced = switches.forced(FAMILY);
    let found = match forced {
        Some(name) => allowed.find(|l| l.name() == name),
        None => allowed.next(),
    };
    let Some(level) = found.copied() else {
        let name = forced.unwrap_or("portable");
        return Err(SwitchError::Unavailable {
            given: VariantName {
                family: FAMILY.to_string(),
                variant: name.to_string(),
            },
            reason: match forced {
                Some(name) if is_off(name) => "another switch turns it off".to_string(),
                Some(_) => "the processor or this build lacks the instructions".to_string(),
                None => "no other instruction set is allowed".to_string(),
            },
            available: names.join(", "),
        });
    };
    Ok(match switches.is_off(SwitchableFeature::Vnni) {
        true => level.without_dots(),
        false => level,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(!level(&parse("vnni", "")).unwrap().dots);
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
}
