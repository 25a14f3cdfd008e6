//! Ctrl-C: until [`listen`] it ends the process at once, as the system does (130 to a shell); then the first
//! sets a flag that loops look at, and a second ends the process.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::output;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static WAITING: AtomicBool = AtomicBool::new(false);

/// Starts listening, once. Called where a loop that looks at the flag begins and not before: what loads or
/// compiles does not look. Where no handler can be set, Ctrl-C ends the process as before.
pub(crate) fn listen() {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        let set = ctrlc::set_handler(|| {
            if INTERRUPTED.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
            if WAITING.load(Ordering::SeqCst) {
                output::note(format_args!(
                    "\n/quit or Ctrl-D leaves, and so does Ctrl-C again"
                ));
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

/// Forgets a Ctrl-C: what it stopped has stopped, and what follows goes on.
pub(crate) fn clear() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Runs what waits for a person, where the first Ctrl-C says how to leave.
pub(crate) fn waiting<T>(wait: impl FnOnce() -> T) -> T {
    WAITING.store(true, Ordering::SeqCst);
    let done = wait();
    WAITING.store(false, Ordering::SeqCst);
    done
}
