//! Names from foreign files in messages, and a boundary around libraries that read foreign files.
//! Some of these libraries panic on damaged input, which must not end the process or a server's
//! thread.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A name from a file for a message: control characters are escaped, long names truncated.
///
/// ```
/// use tercet_files::clip;
/// assert_eq!(clip("a\nb"), "a\\nb");
/// assert_eq!(clip(&"x".repeat(200)).len(), 123);
/// ```
#[must_use]
pub fn clip(name: &str) -> String {
    const MAX_CHARS: usize = 120;
    let mut clipped = String::new();
    for (index, character) in name.chars().enumerate() {
        if index == MAX_CHARS {
            clipped.push_str("...");
            break;
        }
        if character.is_control() {
            clipped.extend(character.escape_default());
        } else {
            clipped.push(character);
        }
    }
    clipped
}

/// Runs `read`, and returns the message of a panic as an error.
///
/// Values that `read` changes may be half changed after a panic, so the caller drops them.
///
/// # Errors
/// The message of the panic.
pub fn contained<T>(read: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(read)).map_err(|payload| message(payload.as_ref()))
}

fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message");
    format!("the reader of this format failed: {}", clip(text))
}
