//! What graphics drivers print to standard error while devices are listed and opened.
//!
//! It looks like our own errors. While [`labelled`] runs, standard error is a pipe whose lines are passed on
//! at once, each distinct one once and saying whose it is. Lines about a missing window system are left out:
//! nothing here opens windows. On systems other than Unix drivers print as they like.

/// Runs what calls drivers.
pub(crate) fn labelled<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(unix)]
    let _pipe = unix::Redirection::new().ok();
    work()
}

/// What is passed on of a line, if anything: the `seen` ones were.
#[cfg(any(unix, test))]
fn passed_on(line: &str, seen: &mut Vec<String>) -> Option<String> {
    /// What drivers miss without Wayland.
    const WINDOWS: &str = "XDG_RUNTIME_DIR";
    /// A driver that prints different lines forever is not listened to any longer.
    const MOST: usize = 20;
    let line = line.trim();
    let known = line.is_empty() || seen.iter().any(|s| s == line);
    if known || seen.len() >= MOST || line.contains(WINDOWS) {
        return None;
    }
    seen.push(line.to_string());
    Some(format!(
        "note: a graphics driver says: {}",
        crate::output::shown(line)
    ))
}

#[cfg(unix)]
mod unix {
    use std::fs::File;
    use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use nix::unistd::dup2_stderr;

    /// Longer lines are passed on in parts.
    const LONGEST: u64 = 1 << 16;

    /// Standard error of the process is a pipe as long as this lives.
    pub(super) struct Redirection {
        own: OwnedFd,
        /// Closed when the pipe was read to its end.
        read: Receiver<()>,
    }

    impl Redirection {
        /// # Errors
        /// Where standard error is closed, or no pipe or thread can be had: then drivers print as they like.
        pub(super) fn new() -> io::Result<Redirection> {
            let own = io::stderr().as_fd().try_clone_to_owned()?;
            let to = File::from(own.try_clone()?);
            let (reader, writer) = io::pipe()?;
            let (done, read) = channel::<()>();
            let pass_on = move || {
                pass_on(reader, to);
                drop(done);
            };
            std::thread::Builder::new()
                .name("drivers".to_string())
                .spawn(pass_on)?;
            dup2_stderr(writer)?;
            Ok(Redirection { own, read })
        }
    }

    impl Drop for Redirection {
        fn drop(&mut self) {
            // Fails only if standard error could not have been replaced either.
            let _ = dup2_stderr(&self.own);
            // At once, unless a driver started a process that holds the pipe.
            let _ = self.read.recv_timeout(Duration::from_millis(200));
        }
    }

    fn pass_on(reader: PipeReader, mut to: File) {
        let mut seen = Vec::new();
        let (mut reader, mut line) = (BufReader::new(reader), Vec::new());
        let mut next = |line: &mut Vec<u8>| (&mut reader).take(LONGEST).read_until(b'\n', line);
        while next(&mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line);
            if let Some(text) = super::passed_on(&text, &mut seen) {
                // Nobody reads standard error: nobody is told.
                let _ = writeln!(to, "{text}");
            }
            line.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::passed_on;

    #[test]
    fn lines_of_drivers_say_whose_they_are() {
        let mut seen = Vec::new();
        let mut of = |line: &str| passed_on(line, &mut seen);
        let no_windows = "error: XDG_RUNTIME_DIR is invalid or not set in the environment.\n";
        assert_eq!(of(no_windows), None);
        let lost = "MESA: error: no device\u{1b}[0m\n";
        let said = "note: a graphics driver says: MESA: error: no device\\u{1b}[0m";
        assert_eq!(of(lost).as_deref(), Some(said));
        assert_eq!((of(lost), of("\n")), (None, None));
    }
}
