//! Ctrl-C. Before [`listen`], Ctrl-C ends the process immediately, with exit code 130 in a shell.
//! After [`listen`], the first Ctrl-C sets a flag that loops poll, and the second ends the process.
//! A conversation has other actions ([`InterruptAction`]).

use std::sync::Once;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::output;

/// The number of times that the user pressed Ctrl-C since the last [`set_action`].
static PRESSED: AtomicUsize = AtomicUsize::new(0);
/// The [`InterruptAction`].
static ACTION: AtomicU8 = AtomicU8::new(InterruptAction::Stop as u8);

/// Presses of Ctrl-C that end the process although an answer is about to stop.
const PRESSES_TO_FORCE: usize = 3;

/// The effect of Ctrl-C.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum InterruptAction {
    /// The first sets the flag, the second ends the process.
    Stop,
    /// Sets the flag. A user who presses the key twice to stop an answer keeps the conversation; only
    /// the third ends the process, in case a step takes too long.
    StopAnswer,
    /// Ends the process: it waits for input, and nothing polls the flag.
    Exit,
    /// The first prints a note, the second ends the process.
    Confirm,
    /// Sets the flag: the line editor reads the key itself, and a signal can only come from before it.
    Ignore,
}

impl InterruptAction {
    /// Whether the process ends at this press, counted from 1.
    pub fn ends(self, press: usize) -> bool {
        match self {
            InterruptAction::Stop | InterruptAction::Confirm => press >= 2,
            InterruptAction::StopAnswer => press >= PRESSES_TO_FORCE,
            InterruptAction::Exit => true,
            InterruptAction::Ignore => false,
        }
    }

    fn current() -> InterruptAction {
        let action = ACTION.load(Ordering::SeqCst);
        let all = [
            InterruptAction::StopAnswer,
            InterruptAction::Exit,
            InterruptAction::Confirm,
            InterruptAction::Ignore,
        ];
        let found = all.into_iter().find(|known| *known as u8 == action);
        found.unwrap_or(InterruptAction::Stop)
    }
}

/// Installs the handler, once. Call this at the start of a loop that polls the flag: loading and
/// compiling do not poll it. If the handler cannot be installed, Ctrl-C keeps ending the process
/// immediately.
pub(crate) fn listen() {
    static LISTEN: Once = Once::new();
    LISTEN.call_once(|| {
        let set = ctrlc::set_handler(|| {
            let press = PRESSED.fetch_add(1, Ordering::SeqCst) + 1;
            let action = InterruptAction::current();
            if action.ends(press) {
                std::process::exit(130);
            }
            if action == InterruptAction::Confirm {
                output::print_note(format_args!("\n{LEAVE}"));
            }
        });
        if let Err(e) = set {
            output::print_note(format_args!(
                "note: Ctrl-C will end the process without cleanup ({e})"
            ));
        }
    });
}

/// The note after the first Ctrl-C at an empty prompt.
pub(crate) const LEAVE: &str = "Ctrl-C again or /quit exits";

/// Whether the user pressed Ctrl-C.
pub(crate) fn interrupted() -> bool {
    PRESSED.load(Ordering::SeqCst) > 0
}

/// Sets the effect of Ctrl-C from now on. A pending interruption is cleared.
pub(crate) fn set_action(action: InterruptAction) {
    ACTION.store(action as u8, Ordering::SeqCst);
    PRESSED.store(0, Ordering::SeqCst);
}
