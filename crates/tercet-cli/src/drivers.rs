//! Filters messages that graphics drivers print to standard error while devices are listed and
//! opened.
//!
//! Without a label such messages look like errors of this program. While [`labelled`] runs,
//! standard error is a pipe. Each distinct line is forwarded immediately, once, with the label of a
//! driver message. Lines about a missing window system are dropped, because this program opens no
//! windows. On systems other than Unix, driver messages are not filtered.

/// Runs `work`, which calls graphics drivers, and labels the messages that they print.
pub(crate) fn labelled<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(unix)]
    let _pipe = unix::StderrRedirect::new().ok();
    work()
}

/// The start of the notes that this program prints.
const OWN_NOTE: &str = "note: the trial of ";

/// The labelled form of a driver message, or `None` if the line is dropped. `seen` contains the
/// lines forwarded so far.
pub fn filter_line(line: &str, seen: &mut Vec<String>) -> Option<String> {
    /// Variable that drivers report as missing if there is no Wayland session.
    const WINDOWS: &str = "XDG_RUNTIME_DIR";
    /// Maximum number of forwarded lines, in case a driver prints different lines forever.
    const MAX_DISTINCT_LINES: usize = 20;
    let line = line.trim();
    let known = line.is_empty() || seen.iter().any(|s| s == line);
    if known || seen.len() >= MAX_DISTINCT_LINES || line.contains(WINDOWS) {
        return None;
    }
    seen.push(line.to_string());
    let text = crate::output::escape_line(line);
    // Opening a device tries kernels, and a failed trial prints a note of this program.
    let label = match line.starts_with(OWN_NOTE) {
        true => "",
        false => "note: message from a graphics driver: ",
    };
    Some(format!("{label}{text}"))
}

#[cfg(unix)]
mod unix {
    use std::fs::File;
    use std::io::{self, BufRead, BufReader, PipeReader, Read, Write};
    use std::os::fd::{AsFd, OwnedFd};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use nix::unistd::dup2_stderr;

    /// Maximum line length in bytes; longer lines are forwarded in parts.
    const LONGEST: u64 = 1 << 16;

    /// Redirects the standard error of the process to a pipe until it is dropped.
    pub(super) struct StderrRedirect {
        own: OwnedFd,
        /// Closed when the reader thread has reached the end of the pipe.
        read: Receiver<()>,
    }

    impl StderrRedirect {
        /// # Errors
        /// Returns an error if standard error is closed, or if no pipe or thread can be created.
        /// Driver messages are then not filtered.
        pub(super) fn new() -> io::Result<StderrRedirect> {
            let own = io::stderr().as_fd().try_clone_to_owned()?;
            let to = File::from(own.try_clone()?);
            let (reader, writer) = io::pipe()?;
            let (done, read) = channel::<()>();
            let pass_on = move || {
                forward_stderr(reader, to);
                drop(done);
            };
            std::thread::Builder::new()
                .name("drivers".to_string())
                .spawn(pass_on)?;
            dup2_stderr(writer)?;
            Ok(StderrRedirect { own, read })
        }
    }

    impl Drop for StderrRedirect {
        fn drop(&mut self) {
            // This call fails only if `dup2` had failed in `new` too.
            let _ = dup2_stderr(&self.own);
            // Returns immediately, unless a driver started a process that still has the pipe open.
            let _ = self.read.recv_timeout(Duration::from_millis(200));
        }
    }

    fn forward_stderr(reader: PipeReader, mut to: File) {
        let mut seen = Vec::new();
        let (mut reader, mut line) = (BufReader::new(reader), Vec::new());
        let mut next = |line: &mut Vec<u8>| (&mut reader).take(LONGEST).read_until(b'\n', line);
        while next(&mut line).is_ok_and(|n| n > 0) {
            let text = String::from_utf8_lossy(&line);
            if let Some(text) = super::filter_line(&text, &mut seen) {
                // If standard error is closed, the message is lost.
                let _ = writeln!(to, "{text}");
            }
            line.clear();
        }
    }
}
