use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tercet_serve::internals::WriteTimeout;
use tokio::io::AsyncWrite;
use tokio::time::{Sleep, sleep};

/// A client that takes a byte of each write `pause` after the one before.
struct SlowClient {
    pause: Duration,
    waits: Option<Pin<Box<Sleep>>>,
}

impl AsyncWrite for SlowClient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        _: &[u8],
    ) -> Poll<io::Result<usize>> {
        let pause = self.pause;
        let waits = self.waits.get_or_insert_with(|| Box::pin(sleep(pause)));
        std::task::ready!(waits.as_mut().poll(context));
        self.waits = None;
        Poll::Ready(Ok(1))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Writes eight bytes one by one.
fn write(pause: Duration, limit: Duration) -> io::Result<()> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().build().unwrap();
    let mut stream = WriteTimeout::new(SlowClient { pause, waits: None }, limit);
    runtime.block_on(async {
        for _ in 0..8 {
            poll_fn(|context| Pin::new(&mut stream).poll_write(context, &[7])).await?;
        }
        Ok(())
    })
}

#[test]
fn a_client_that_reads_slowly_is_served_and_one_that_stops_is_not() {
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(60));
    let began = Instant::now();
    // All writes together take longer than the limit of one.
    assert!(write(short, Duration::from_millis(300)).is_ok());
    assert!(began.elapsed() >= short * 8);
    let stopped = write(long, short).unwrap_err();
    assert_eq!(stopped.kind(), io::ErrorKind::TimedOut);
    assert!(began.elapsed() < long);
}
