use std::sync::mpsc::channel;
use std::time::Duration;

use tercet_serve::internals::{ApiError, PoolStatus, WorkerThreads};

use super::queue_ticket::ticket;

const LONG: Duration = Duration::from_secs(60);

#[test]
fn jobs_beyond_the_queue_are_refused_and_panics_keep_the_worker() {
    let pool = WorkerThreads::start("test", vec![0u32], 1).unwrap();
    let long = ticket(LONG);
    let (go, wait) = channel::<()>();
    let (send, seen) = channel();
    pool.submit(&long, move |_| wait.recv().unwrap()).unwrap();
    // The first job is running or about to run; the second one is queued.
    pool.submit(&long, |_| panic!("intentional panic of a test job"))
        .unwrap();
    let refused = pool.submit(&long, |_| ()).unwrap_err();
    assert_eq!(refused, ApiError::overloaded());
    assert_eq!(pool.load().waiting, 1);
    go.send(()).unwrap();
    let job = |send: std::sync::mpsc::Sender<u32>| {
        move |n: Option<&mut u32>| {
            let n = n.unwrap();
            *n += 1;
            send.send(*n).unwrap();
        }
    };
    while pool.submit(&long, job(send.clone())).is_err() {
        std::thread::yield_now();
    }
    assert_eq!(seen.recv().unwrap(), 1);
    while pool.load().busy > 0 {
        std::thread::yield_now();
    }
    assert_eq!(
        pool.load(),
        PoolStatus {
            workers: 1,
            busy: 0,
            waiting: 0
        }
    );
}

#[test]
fn a_job_that_waits_too_long_or_for_nobody_leaves_the_queue() {
    let pool = WorkerThreads::start("test", vec![0u32], 2).unwrap();
    let (go, wait) = channel::<()>();
    let first = pool.submit(&ticket(LONG), move |_| wait.recv().unwrap());
    assert!(first.is_ok());
    while pool.load().busy == 0 {
        std::thread::yield_now();
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        let short = ticket(Duration::from_millis(20));
        let late = pool.run_job(&short, |_, _| Ok(1)).await;
        assert_eq!(late, Err(ApiError::deadline_exceeded()));
        let long = ticket(LONG);
        let left = pool.run_job(&long, |_, _| Ok(1));
        let left = tokio::time::timeout(Duration::from_millis(20), left).await;
        assert!(left.is_err());
    });
    assert_eq!(pool.load().waiting, 0);
    go.send(()).unwrap();
}
