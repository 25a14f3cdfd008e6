//! Switches of a device: features that programs must not use, and kernel variants that are forced
//! or forbidden.

use std::fmt;
use std::str::FromStr;

use super::debug_switches::DebugSwitches;
use crate::graph::NodeId;

/// A feature of devices that can be turned off.
///
/// ```
/// use tercet_ir::SwitchableFeature;
/// assert_eq!(SwitchableFeature::from_name("coop"), Some(SwitchableFeature::Coop));
/// assert_eq!(SwitchableFeature::Avx512.name(), "avx512");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SwitchableFeature {
    /// Cooperative matrices of GPUs, of every scope and type.
    Coop,
    /// Cooperative matrices of a whole workgroup.
    CoopBlocks,
    /// Dependent launches: dispatches that start before an earlier one has finished.
    Chains,
    /// Subgroup operations of GPUs, and cooperative matrices, which need them.
    Subgroups,
    /// Native arithmetic that the probe of a GPU found to be exact.
    Natives,
    /// Instructions of GPUs for the dot product of four signed bytes.
    Dots,
    /// SPIR-V that wgpu passes to the driver unchanged, and cooperative matrices, which need it.
    Passthrough,
    /// The AVX-512 kernels of the CPU executor.
    Avx512,
    /// The AVX2 and AVX-512 kernels of the CPU executor.
    Avx2,
    /// The 8-bit and 16-bit dot products of AVX-512 VNNI in the CPU executor.
    Vnni,
}

impl SwitchableFeature {
    /// All features, in the order of listings.
    pub const ALL: [SwitchableFeature; 10] = [
        SwitchableFeature::Coop,
        SwitchableFeature::CoopBlocks,
        SwitchableFeature::Chains,
        SwitchableFeature::Subgroups,
        SwitchableFeature::Natives,
        SwitchableFeature::Dots,
        SwitchableFeature::Passthrough,
        SwitchableFeature::Avx512,
        SwitchableFeature::Avx2,
        SwitchableFeature::Vnni,
    ];

    /// Name of the switch.
    pub fn name(self) -> &'static str {
        match self {
            SwitchableFeature::Coop => "coop",
            SwitchableFeature::CoopBlocks => "coop_blocks",
            SwitchableFeature::Chains => "chains",
            SwitchableFeature::Subgroups => "subgroups",
            SwitchableFeature::Natives => "natives",
            SwitchableFeature::Dots => "dots",
            SwitchableFeature::Passthrough => "passthrough",
            SwitchableFeature::Avx512 => "avx512",
            SwitchableFeature::Avx2 => "avx2",
            SwitchableFeature::Vnni => "vnni",
        }
    }

    /// The feature with this name.
    pub fn from_name(name: &str) -> Option<SwitchableFeature> {
        SwitchableFeature::ALL
            .into_iter()
            .find(|f| f.name() == name)
    }
}

/// A family of kernel variants: kernels that compute the same from the same operands.
///
/// ```
/// use tercet_ir::VariantFamily;
/// let family = VariantFamily { name: "simd", variants: vec!["avx2".into(), "portable".into()] };
/// assert_eq!(family.to_string(), "simd (avx2, portable)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariantFamily {
    /// Name of the family.
    pub name: &'static str,
    /// Names of the variants, each once.
    pub variants: Vec<String>,
}

impl fmt::Display for VariantFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.variants.join(", "))
    }
}

/// A kernel variant of a family, as the user names it.
///
/// ```
/// use tercet_ir::VariantName;
/// let name: VariantName = "attention=tiles".parse()?;
/// assert_eq!((&*name.family, &*name.variant), ("attention", "tiles"));
/// # Ok::<(), tercet_ir::SwitchError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct VariantName {
    /// Name of the family.
    pub family: String,
    /// Name of the variant.
    pub variant: String,
}

impl VariantName {
    /// True for this variant of this family.
    pub fn is(&self, family: &str, variant: &str) -> bool {
        self.family == family && self.variant == variant
    }
}

impl fmt::Display for VariantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.family, self.variant)
    }
}

impl FromStr for VariantName {
    type Err = SwitchError;

    fn from_str(text: &str) -> Result<VariantName, SwitchError> {
        match text.split_once('=') {
            Some((family, variant)) if !family.is_empty() && !variant.is_empty() => {
                Ok(VariantName {
                    family: family.to_string(),
                    variant: variant.to_string(),
                })
            }
            Some(_) | None => Err(SwitchError::Form {
                given: text.to_string(),
            }),
        }
    }
}

/// Why a switch is refused.
///
/// ```
/// use tercet_ir::{DeviceSwitches, SwitchError};
/// let error = DeviceSwitches::parse("matrices", "").unwrap_err();
/// assert!(matches!(error, SwitchError::UnknownFeature { .. }));
/// assert!(error.to_string().contains("coop, "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SwitchError {
    /// The feature is unknown.
    #[error(
        "no feature `{given}` can be turned off; there are: {known}; or FAMILY=VARIANT forbids a kernel variant"
    )]
    UnknownFeature {
        /// The given name.
        given: String,
        /// The names of all features.
        known: String,
    },
    /// Unknown switch for diagnosis.
    #[error("no switch `{given}` for diagnosis; there are: {known}")]
    UnknownDebug {
        /// The given name.
        given: String,
        /// The names of all switches.
        known: &'static str,
    },
    /// A choice of a variant is not of the form `FAMILY=VARIANT`.
    #[error("`{given}` names no kernel variant; expected FAMILY=VARIANT, such as attention=tiles")]
    Form {
        /// The given text.
        given: String,
    },
    /// The family of kernel variants is unknown.
    #[error("`{given}`: {device} has no family `{}` of kernel variants; there are: {known}", .given.family)]
    UnknownFamily {
        /// The given choice.
        given: VariantName,
        /// Name of the executor.
        device: &'static str,
        /// Names of the kernel families that the device has.
        known: String,
    },
    /// The variant is unknown.
    #[error("`{given}`: `{}` has no variant `{}`; there are: {known}", .given.family, .given.variant)]
    UnknownVariant {
        /// The given choice.
        given: VariantName,
        /// The variants of the family.
        known: String,
    },
    /// The device cannot run the forced variant.
    #[error("`{given}`: this device cannot run it: {reason}; it runs: {available}")]
    Unavailable {
        /// The given choice.
        given: VariantName,
        /// The missing feature, or the switch that turns it off.
        reason: String,
        /// The variants that the device runs.
        available: String,
    },
    /// Two choices contradict each other.
    #[error("`{first}` and `{second}` contradict each other; give one of them")]
    Conflict {
        /// The first choice.
        first: String,
        /// The second choice.
        second: String,
    },
    /// The forced variant supports no problem of its family in the program.
    #[error(
        "`{given}` supports no `{family}` problem of this program: {node} ({op}) needs {reason}; variants for {node}: {available}",
        family = .given.family
    )]
    Unsupported {
        /// The forced variant.
        given: VariantName,
        /// The first node that the variant does not support.
        node: NodeId,
        /// Name of the node's operator.
        op: &'static str,
        /// The unmet requirement.
        reason: String,
        /// The variants that support the node.
        available: String,
    },
    /// All variants that support a node are forbidden.
    #[error(
        "every variant of `{family}` that supports {node} ({op}) is forbidden: {forbidden}; allow one of them"
    )]
    AllForbidden {
        /// Name of the family.
        family: &'static str,
        /// The node.
        node: NodeId,
        /// Name of the node's operator.
        op: &'static str,
        /// The forbidden variants that support the node.
        forbidden: String,
    },
}

/// The switches of a device. The default turns nothing off and forces nothing.
///
/// ```
/// use tercet_ir::{DeviceSwitches, SwitchableFeature};
/// let switches = DeviceSwitches::parse("coop,conv=rows", "attention=tiles")?;
/// assert!(switches.is_off(SwitchableFeature::Coop));
/// assert_eq!(switches.forced("attention"), Some("tiles"));
/// assert!(switches.is_forbidden("conv", "rows"));
/// assert_eq!(switches.to_string(), "without coop, conv=rows; force attention=tiles");
/// # Ok::<(), tercet_ir::SwitchError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSwitches {
    /// Features that programs must not use, sorted, each once.
    without: Vec<SwitchableFeature>,
    /// Variants that programs must not use.
    forbidden: Vec<VariantName>,
    /// Variants that programs must use, at most one of each family.
    forced: Vec<VariantName>,
    /// Switches for diagnosis.
    debug: DebugSwitches,
}

impl DeviceSwitches {
    /// Parses comma-separated lists: `without` has names of features and `FAMILY=VARIANT` for
    /// forbidden variants, `force` has `FAMILY=VARIANT`. Empty items are ignored.
    ///
    /// # Errors
    /// [`SwitchError::UnknownFeature`], [`SwitchError::Form`] or [`SwitchError::Conflict`].
    pub fn parse(without: &str, force: &str) -> Result<DeviceSwitches, SwitchError> {
        let items = |text: &'_ str| -> Vec<String> {
            let items = text
                .split(',')
                .map(str::trim)
                .filter(|item| !item.is_empty());
            items.map(str::to_string).collect()
        };
        let mut switches = DeviceSwitches::default();
        for item in items(without) {
            switches = match SwitchableFeature::from_name(&item) {
                Some(feature) => switches.without(feature),
                None if item.contains('=') => switches.forbid(item.parse()?),
                None => {
                    return Err(SwitchError::UnknownFeature {
                        given: item,
                        known: SwitchableFeature::ALL
                            .map(SwitchableFeature::name)
                            .join(", "),
                    });
                }
            };
        }
        for item in items(force) {
            switches = switches.force(item.parse()?)?;
        }
        switches.check_conflicts()?;
        Ok(switches)
    }

    /// These switches with others for diagnosis.
    #[must_use]
    pub fn with_debug(self, debug: DebugSwitches) -> DeviceSwitches {
        DeviceSwitches { debug, ..self }
    }

    /// The switches for diagnosis.
    pub fn debug(&self) -> DebugSwitches {
        self.debug
    }

    /// These switches with a feature turned off.
    #[must_use]
    pub fn without(mut self, feature: SwitchableFeature) -> DeviceSwitches {
        if let Err(at) = self.without.binary_search(&feature) {
            self.without.insert(at, feature);
        }
        self
    }

    /// These switches with a forbidden variant.
    #[must_use]
    pub fn forbid(mut self, name: VariantName) -> DeviceSwitches {
        if !self.forbidden.contains(&name) {
            self.forbidden.push(name);
        }
        self
    }

    /// These switches with a forced variant.
    ///
    /// # Errors
    /// [`SwitchError::Conflict`] if another variant of the family is forced.
    pub fn force(mut self, name: VariantName) -> Result<DeviceSwitches, SwitchError> {
        match self.forced.iter().find(|f| f.family == name.family) {
            Some(known) if *known == name => {}
            Some(known) => {
                return Err(SwitchError::Conflict {
                    first: known.to_string(),
                    second: name.to_string(),
                });
            }
            None => self.forced.push(name),
        }
        Ok(self)
    }

    /// These switches on top of `below`: a forced family of `self` hides that of `below`, and a
    /// forced variant lifts the same variant's ban in `below`.
    #[must_use]
    pub fn over(mut self, below: &DeviceSwitches) -> DeviceSwitches {
        for feature in &below.without {
            self = self.without(*feature);
        }
        let is_forced = |all: &[VariantName], name: &VariantName| all.contains(name);
        for name in &below.forbidden {
            if !is_forced(&self.forced, name) {
                self = self.forbid(name.clone());
            }
        }
        for name in &below.forced {
            let hidden = self.forced.iter().any(|f| f.family == name.family)
                || self.forbidden.contains(name);
            if !hidden {
                self.forced.push(name.clone());
            }
        }
        self.debug = self.debug.over(below.debug);
        self
    }

    /// The features that are turned off, without the choices of variants.
    #[must_use]
    pub fn features(&self) -> DeviceSwitches {
        DeviceSwitches {
            without: self.without.clone(),
            ..DeviceSwitches::default()
        }
    }

    /// The text of the switches as a list of one line; empty if there are none.
    pub fn lines(&self) -> Vec<String> {
        let text = Some(self.to_string()).filter(|text| !text.is_empty());
        text.into_iter().collect()
    }

    /// True if nothing is turned off, forbidden, forced or diagnosed.
    pub fn is_empty(&self) -> bool {
        *self == DeviceSwitches::default()
    }

    /// True if programs must not use the feature.
    pub fn is_off(&self, feature: SwitchableFeature) -> bool {
        self.without.contains(&feature)
    }

    /// The forced variant of a family.
    pub fn forced(&self, family: &str) -> Option<&str> {
        let mut names = self.forced.iter();
        let name = names.find(|name| name.family == family)?;
        Some(&name.variant)
    }

    /// True if programs must not use the variant.
    pub fn is_forbidden(&self, family: &str, variant: &str) -> bool {
        self.forbidden.iter().any(|name| name.is(family, variant))
    }

    /// The features that are turned off.
    pub fn features_off(&self) -> &[SwitchableFeature] {
        &self.without
    }

    /// The forced variants.
    pub fn forced_variants(&self) -> &[VariantName] {
        &self.forced
    }

    /// The forbidden variants.
    pub fn forbidden_variants(&self) -> &[VariantName] {
        &self.forbidden
    }

    /// Checks that `device` has every named family and variant.
    ///
    /// # Errors
    /// [`SwitchError::UnknownFamily`], [`SwitchError::UnknownVariant`] or
    /// [`SwitchError::Conflict`].
    pub fn check(
        &self,
        device: &'static str,
        families: &[VariantFamily],
    ) -> Result<(), SwitchError> {
        self.check_conflicts()?;
        for name in self.forced.iter().chain(&self.forbidden) {
            let Some(family) = families.iter().find(|f| f.name == name.family) else {
                let known: Vec<&str> = families.iter().map(|f| f.name).collect();
                return Err(SwitchError::UnknownFamily {
                    given: name.clone(),
                    device,
                    known: match known.is_empty() {
                        true => "none".to_string(),
                        false => known.join(", "),
                    },
                });
            };
            if !family.variants.contains(&name.variant) {
                return Err(SwitchError::UnknownVariant {
                    given: name.clone(),
                    known: family.variants.join(", "),
                });
            }
        }
        Ok(())
    }

    fn check_conflicts(&self) -> Result<(), SwitchError> {
        match self
            .forced
            .iter()
            .find(|name| self.forbidden.contains(name))
        {
            Some(name) => Err(SwitchError::Conflict {
                first: format!("--force {name}"),
                second: format!("--without {name}"),
            }),
            None => Ok(()),
        }
    }
}

/// Prints `without coop, conv=rows; force attention=tiles`.
impl fmt::Display for DeviceSwitches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let off = self
            .without
            .iter()
            .map(|feature| feature.name().to_string());
        let off: Vec<String> = off
            .chain(self.forbidden.iter().map(VariantName::to_string))
            .collect();
        let forced: Vec<String> = self.forced.iter().map(VariantName::to_string).collect();
        let debug = self.debug.to_string();
        let debug = Some(debug).filter(|text| !text.is_empty());
        let debug = debug.into_iter().collect();
        let parts = [("without", off), ("force", forced), ("debug", debug)];
        let parts = parts.into_iter().filter(|(_, list)| !list.is_empty());
        let parts: Vec<String> = parts
            .map(|(what, list)| format!("{what} {}", list.join(", ")))
            .collect();
        f.write_str(&parts.join("; "))
    }
}
