//! Runs the same async code in blocking or async mode ([`WaitMode`]).

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tercet::{Executable, OutputSelection, RunError, Tensor};

/// Blocking or async wait for the results of a run.
///
/// ```
/// use tercet_networks::maybe_async::{WaitMode, block_on_ready};
/// async fn answer(waits: WaitMode) -> bool {
///     waits == WaitMode::Blocking
/// }
/// assert!(block_on_ready(answer(WaitMode::Blocking)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// Blocks the thread; the future is always ready on its first poll.
    Blocking,
    /// Awaits the device.
    Awaiting,
}

impl WaitMode {
    /// Starts a run. In mode `Awaiting`, also awaits the result, so that [`Executable::wait`] does
    /// not block afterwards.
    ///
    /// # Errors
    /// [`RunError`] of the device.
    pub async fn submit(
        self,
        exe: &mut dyn Executable,
        inputs: &[(&str, &Tensor)],
        wanted: OutputSelection<'_>,
    ) -> Result<(), RunError> {
        match self {
            WaitMode::Blocking => exe.submit(inputs, wanted),
            WaitMode::Awaiting => {
                // Finish an earlier run whose result was not read.
                let _ = exe.finished().await;
                exe.submit(inputs, wanted)?;
                exe.finished().await
            }
        }
    }
}

/// The value of a future that never awaits, which is the case in mode [`WaitMode::Blocking`].
///
/// # Panics
/// If the future awaits.
pub fn block_on_ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("invariant: blocking mode never awaits"),
    }
}
