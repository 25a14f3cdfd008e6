//! Build information: compiler, target, profile.

use std::fmt;

/// Version, compiler and settings of a build.
///
/// ```
/// let build = tercet::BUILD;
/// assert!(build.text.starts_with(build.version));
/// assert_eq!(build.to_string(), format!("tercet {}", build.text));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildInfo {
    /// Version of this crate.
    pub version: &'static str,
    /// Output of `rustc --version`.
    pub compiler: &'static str,
    /// Target triple.
    pub target: &'static str,
    /// `release` or `debug`: the profile, or the built-in profile that it inherits from.
    pub profile: &'static str,
    /// Optimization level: `0` to `3`, `s` or `z`.
    pub opt_level: &'static str,
    /// All fields on one line.
    pub text: &'static str,
}

/// Information about this build.
pub const BUILD: BuildInfo = BuildInfo {
    version: env!("CARGO_PKG_VERSION"),
    compiler: env!("TERCET_COMPILER"),
    target: env!("TERCET_TARGET"),
    profile: env!("TERCET_PROFILE"),
    opt_level: env!("TERCET_OPT_LEVEL"),
    text: concat!(
        env!("CARGO_PKG_VERSION"),
        " (",
        env!("TERCET_COMPILER"),
        ", ",
        env!("TERCET_TARGET"),
        ", ",
        env!("TERCET_PROFILE"),
        " profile, opt-level ",
        env!("TERCET_OPT_LEVEL"),
        ")"
    ),
};

impl fmt::Display for BuildInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tercet {}", self.text)
    }
}
