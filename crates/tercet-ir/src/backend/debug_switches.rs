//! Switches for the diagnosis of GPU runs: more or fewer barriers, no reuse of recorded commands,
//! and no reuse of uploaded inputs.

use std::fmt;
use std::str::FromStr;

use super::switches::SwitchError;

/// The barriers of a run, if not those that the program needs.
///
/// ```
/// use tercet_ir::{BarrierOverride, DebugSwitches};
/// let debug: DebugSwitches = "barriers=all".parse()?;
/// assert_eq!(debug.barriers, Some(BarrierOverride::All));
/// # Ok::<(), tercet_ir::SwitchError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BarrierOverride {
    /// A full barrier before each step, and no dependent launches.
    All,
    /// No barrier between the steps of a run. Results are undefined.
    None,
}

/// Switches for the diagnosis of GPU runs. They do not change the kernels of a program; the CPU
/// executor ignores them.
///
/// ```
/// use tercet_ir::DebugSwitches;
/// let debug: DebugSwitches = "upload,barriers=none".parse()?;
/// assert!(debug.upload && !debug.record);
/// assert_eq!(debug.to_string(), "barriers=none, upload");
/// # Ok::<(), tercet_ir::SwitchError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DebugSwitches {
    /// The barriers of runs; `None` for those that the program needs.
    pub barriers: Option<BarrierOverride>,
    /// Records the commands of each run anew.
    pub record: bool,
    /// Uploads each input again, even if the device has its value.
    pub upload: bool,
}

impl DebugSwitches {
    /// The names of all switches, for errors and help.
    pub const KNOWN: &str = "barriers=all, barriers=none, record, upload";

    /// These switches on top of `below`.
    #[must_use]
    pub fn over(self, below: DebugSwitches) -> DebugSwitches {
        DebugSwitches {
            barriers: self.barriers.or(below.barriers),
            record: self.record || below.record,
            upload: self.upload || below.upload,
        }
    }
}

/// Parses a comma-separated list. Empty items are ignored.
impl FromStr for DebugSwitches {
    type Err = SwitchError;

    fn from_str(text: &str) -> Result<DebugSwitches, SwitchError> {
        let mut debug = DebugSwitches::default();
        let items = text.split(',').map(str::trim);
        for item in items.filter(|item| !item.is_empty()) {
            let barriers = match item {
                "barriers=all" => BarrierOverride::All,
                "barriers=none" => BarrierOverride::None,
                "record" => {
                    debug.record = true;
                    continue;
                }
                "upload" => {
                    debug.upload = true;
                    continue;
                }
                _ => {
                    return Err(SwitchError::UnknownDebug {
                        given: item.to_string(),
                        known: DebugSwitches::KNOWN,
                    });
                }
            };
            if debug.barriers.is_some_and(|known| known != barriers) {
                return Err(SwitchError::Conflict {
                    first: "barriers=all".to_string(),
                    second: "barriers=none".to_string(),
                });
            }
            debug.barriers = Some(barriers);
        }
        Ok(debug)
    }
}

/// Prints the list that [`FromStr`] parses; empty without switches.
impl fmt::Display for DebugSwitches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let barriers = self.barriers.map(|barriers| match barriers {
            BarrierOverride::All => "barriers=all",
            BarrierOverride::None => "barriers=none",
        });
        let record = self.record.then_some("record");
        let upload = self.upload.then_some("upload");
        let all: Vec<&str> = barriers.into_iter().chain(record).chain(upload).collect();
        f.write_str(&all.join(", "))
    }
}
