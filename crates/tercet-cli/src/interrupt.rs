//! Ctrl-C. Before [`listen`], Ctrl-C ends the process immediately, with exit code 130 in a shell.
//! After [`listen`], the first Ctrl-C sets a flag that loops poll, and the second ends the process.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::output;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Whether no loop polls the flag, for example while a command waits for input.
static IDLE: AtomicBool = AtomicBool::new(false);

/// Installs the handler, once. Call this at the start of a loop that polls the flag: loading and
/// compiling do not poll it. If the handler cannot be installed, Ctrl-C keeps ending the process
/// immediately.
pub(crate) fn listen() {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        let set = ctrlc::set_handler(|| {
            if IDLE.load(Ordering::SeqCst) || INTERRUPTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        });
        if let Err(e) = set {
            output::print_note(format_args!(
                "note: Ctrl-C will end the process without cleanup ({e})"
            ));
        }
    });
}

/// Whether the user pressed Ctrl-C.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Marks the command as waiting for input, or as active again. While it waits, Ctrl-C ends the
/// process. A pending interruption is cleared.
pub(crate) fn set_idle(idle: bool) {
    IDLE.store(idle, Ordering::SeqCst);
    INTERRUPTED.store(false, Ordering::SeqCst);
}
