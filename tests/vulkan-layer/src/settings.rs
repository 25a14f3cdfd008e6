//! The switches of the layer, and its log.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;

use crate::{ENV_LOG, ENV_SWITCHES, VIOLATION};

/// The switches in the environment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerSettings {
    pub(crate) portability: bool,
    /// Hashes of modules whose pipelines are refused.
    pub(crate) refused: Vec<u64>,
    /// Hashes of modules whose matrices multiply wrong.
    pub(crate) spoiled: Vec<u64>,
}

impl LayerSettings {
    /// The switches of a list. Unknown ones are reported: a misspelt switch must not pass a test.
    fn parse(list: &str) -> LayerSettings {
        let mut settings = LayerSettings::default();
        for item in list.split(',').filter(|item| !item.is_empty()) {
            let hash = |text| u64::from_str_radix(text, 16).ok();
            let refused = item.strip_prefix("refuse=").and_then(hash);
            let spoiled = item.strip_prefix("spoil=").and_then(hash);
            match (item, refused, spoiled) {
                ("portability", ..) => settings.portability = true,
                (_, Some(hash), _) => settings.refused.push(hash),
                (_, _, Some(hash)) => settings.spoiled.push(hash),
                _ => violation(&format!("{ENV_SWITCHES} has the unknown switch {item}")),
            }
        }
        settings
    }
}

/// The settings of this process.
pub(crate) fn settings() -> &'static LayerSettings {
    static SETTINGS: OnceLock<LayerSettings> = OnceLock::new();
    SETTINGS.get_or_init(|| LayerSettings::parse(&std::env::var(ENV_SWITCHES).unwrap_or_default()))
}

/// Appends a line to the log.
pub(crate) fn log(line: &str) {
    let Some(path) = std::env::var_os(ENV_LOG) else {
        return;
    };
    let file = OpenOptions::new().create(true).append(true).open(path);
    // One write, so that lines of several threads do not mix.
    let written = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
    if let Err(e) = written {
        eprintln!("the log of the Vulkan layer: {e}");
    }
}

/// Reports a use that the device does not permit.
pub(crate) fn violation(what: &str) {
    eprintln!("{VIOLATION} {what}");
    log(&format!("{VIOLATION} {what}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn switches_are_parsed() {
        let expected = LayerSettings {
            portability: true,
            refused: vec![0x1f],
            spoiled: vec![2],
        };
        let parsed = LayerSettings::parse("portability,refuse=1f,spoil=0000000000000002");
        assert_eq!(parsed, expected);
    }
}
