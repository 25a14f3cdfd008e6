//! Settings of the CPU executor: which instruction set its kernels use.

use tercet_ir::{DeviceSwitches, SwitchError, SwitchableFeature, VariantFamily, VariantName};

use crate::kernels::SimdLevel;

/// The family of the instruction sets.
const FAMILY: &str = "simd";
/// All instruction sets with kernels, best first. A machine or a build may lack some of them.
pub const LEVELS: [&str; 7] = [
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
pub fn level(switches: &DeviceSwitches) -> Result<SimdLevel, SwitchError> {
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
