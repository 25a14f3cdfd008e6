//! Progress of a download on standard error.

use std::sync::{Mutex, OnceLock, PoisonError};

use indicatif::ProgressBar;
use tercet_hub::{PullEvent, PullProgress};

use crate::{output, progress};

/// A bar over the bytes of a model, with notes about waits.
pub(super) struct BarProgress<'a> {
    name: &'a str,
    bar: OnceLock<ProgressBar>,
    /// The last reason of a wait, which is printed once.
    noted: Mutex<String>,
}

impl<'a> BarProgress<'a> {
    pub(super) fn new(name: &'a str) -> BarProgress<'a> {
        BarProgress {
            name,
            bar: OnceLock::new(),
            noted: Mutex::default(),
        }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        if let Some(bar) = self.bar.get() {
            bar.finish_and_clear();
        }
    }

    fn note(&self, reason: String) {
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        if *noted == reason {
            return;
        }
        let print = || output::print_note(format_args!("note: {reason}"));
        match self.bar.get() {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
        *noted = reason;
    }
}

impl PullProgress for BarProgress<'_> {
    fn event(&self, event: PullEvent<'_>) {
        let bar = self.bar.get();
        match event {
            PullEvent::Started { files, bytes } => {
                let files = match files {
                    1 => "1 file".to_string(),
                    files => format!("{files} files"),
                };
                let (name, size) = (self.name, output::bytes(bytes));
                self.note(format!("downloading {name}: {files}, {size}"));
                let bar = self
                    .bar
                    .get_or_init(|| progress::bytes_bar("download", bytes));
                bar.set_position(0);
            }
            PullEvent::File { resumed, .. } => {
                if let Some(bar) = bar {
                    bar.inc(resumed);
                }
            }
            PullEvent::Bytes(n) => {
                if let Some(bar) = bar {
                    bar.inc(n);
                }
            }
            PullEvent::Again(n) => {
                if let Some(bar) = bar {
                    bar.set_position(bar.position().saturating_sub(n));
                }
            }
            // Short waits are part of a normal download.
            PullEvent::Retrying { reason, wait } if wait.as_secs() >= 1 => {
                let seconds = wait.as_secs();
                self.note(format!("waiting {seconds} s, then trying again: {reason}"));
            }
            PullEvent::Waiting { lock } => {
                let lock = lock.display();
                self.note(format!(
                    "another process downloads this file; waiting for {lock}"
                ));
            }
            _ => {}
        }
    }
}
