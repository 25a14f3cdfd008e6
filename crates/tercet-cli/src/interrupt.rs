//! Ctrl-C: until [`listen`] it ends the process at once, as the system does (130 to a shell); then the first
//! sets a flag that loops look at, and a second ends the process.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::output;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// Whether nothing looks at the flag, as while a command waits for its user.
static IDLE: AtomicBool = AtomicBool::new(false);

/// Starts listening, once. Called where a loop that looks at the flag begins and not before: what loads or
/// compiles does not look. Where no handler can be set, Ctrl-C ends the process as before.
pub(crate) fn listen() {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        let set = ctrlc::set_handler(|| {
            if IDLE.load(Ordering::SeqCst) || INTERRUPTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        });
        if let Err(e) = set {
            output::note(format_args!("note: Ctrl-C will not stop cleanly ({e})"));
        }
    });
}

/// True after Ctrl-C.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// A command waits for its user, or goes on: waiting, Ctrl-C ends the process; an interruption before is over.
pub(crate) fn set_idle(idle: bool) {
    IDLE.store(idle, Ordering::SeqCst);
    INTERRUPTED.store(false, Ordering::SeqCst);
}
