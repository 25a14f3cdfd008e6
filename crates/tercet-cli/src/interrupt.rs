//! Ctrl-C: the first sets a flag that loops look at, a second ends the process at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::output;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Starts listening. Where no handler can be set, Ctrl-C ends the process as usual.
pub(crate) fn listen() {
    let set = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
    if let Err(e) = set {
        output::note(format_args!("note: Ctrl-C will not stop cleanly ({e})"));
    }
}

/// True after Ctrl-C.
pub(crate) fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}
