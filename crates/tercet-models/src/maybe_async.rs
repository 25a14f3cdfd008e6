//! One way through a model for those who block and those who await: asynchronous functions that are told which.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tercet::{Executable, RunError, Tensor, Wanted};

/// How the results of a run are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waits {
    /// The thread is blocked, and nothing is awaited: the future is ready at once.
    Blocking,
    /// The device is awaited.
    Awaiting,
}

impl Waits {
    /// Starts a run; where it is awaited, [`Executable::wait`] does not block afterwards.
    pub(crate) async fn submit(
        self,
        exe: &mut dyn Executable,
        inputs: &[(&str, &Tensor)],
        wanted: Wanted<'_>,
    ) -> Result<(), RunError> {
        match self {
            Waits::Blocking => exe.submit(inputs, wanted),
            Waits::Awaiting => {
                // A run that nobody waited for.
                let _ = exe.finished().await;
                exe.submit(inputs, wanted)?;
                exe.finished().await
            }
        }
    }
}

/// The value of a future that awaits nothing: one of [`Waits::Blocking`].
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("invariant: who blocks awaits nothing"),
    }
}
