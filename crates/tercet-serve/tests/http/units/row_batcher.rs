use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use tercet_serve::internals::{ApiError, MAX_ROWS, RowBatcher};

use super::queue_ticket::ticket;

const LONG: Duration = Duration::from_secs(60);

/// A batcher that reports the rows of each batch and waits for a permission before it computes.
/// A row of 0 fails, a row of 99 panics.
fn batcher(queue: usize) -> (RowBatcher<u32, u32>, Receiver<Vec<u32>>, Sender<()>) {
    let (seen, batches) = channel();
    let (permit, permitted) = channel();
    let compute = move |rows: Vec<u32>, _: &mut dyn FnMut() -> bool| {
        seen.send(rows.clone()).unwrap();
        permitted.recv().unwrap();
        assert!(!rows.contains(&99), "intentional panic of a test row");
        match rows.contains(&0) {
            true => Err(ApiError::bad_request("a zero")),
            false => Ok(rows.iter().map(|row| row * 10).collect()),
        }
    };
    let batcher = RowBatcher::start("test", queue, compute).unwrap();
    (batcher, batches, permit)
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().build().unwrap()
}

type Results = Vec<Result<Vec<u32>, ApiError>>;

/// Results of requests and the batches. The first request runs while the others wait.
fn run_behind_first(requests: &[&[u32]], permits: usize) -> (Results, Vec<Vec<u32>>) {
    let (batcher, batches, permit) = batcher(16);
    let mut seen = Vec::new();
    let results = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (at, rows) in requests.iter().enumerate() {
            let batcher = &batcher;
            threads.push(scope.spawn(move || {
                let long = ticket(LONG);
                runtime().block_on(batcher.run(rows.to_vec(), &long))
            }));
            if at == 0 {
                seen.push(batches.recv().unwrap());
            }
            while batcher.load().waiting < at {
                std::thread::yield_now();
            }
        }
        for _ in 0..permits {
            permit.send(()).unwrap();
        }
        let joined = threads.into_iter().map(|thread| thread.join().unwrap());
        joined.collect()
    });
    seen.extend(batches.try_iter());
    (results, seen)
}

#[test]
fn waiting_requests_are_one_batch_with_the_results_of_each() {
    let (results, batches) = run_behind_first(&[&[1], &[2, 3], &[4], &[5, 6]], 2);
    assert_eq!(batches, [vec![1], vec![2, 3, 4, 5, 6]]);
    let want = [vec![10], vec![20, 30], vec![40], vec![50, 60]];
    assert_eq!(results, want.map(Ok));
}

#[test]
fn a_failing_or_panicking_request_fails_alone() {
    let (results, batches) = run_behind_first(&[&[1], &[2], &[0], &[3]], 5);
    assert_eq!(batches, [vec![1], vec![2, 0, 3], vec![2], vec![0], vec![3]]);
    let zero = Err(ApiError::bad_request("a zero"));
    assert_eq!(results, [Ok(vec![10]), Ok(vec![20]), zero, Ok(vec![30])]);

    let (results, batches) = run_behind_first(&[&[1], &[2], &[99], &[3]], 5);
    assert_eq!(
        batches,
        [vec![1], vec![2, 99, 3], vec![2], vec![99], vec![3]]
    );
    let lost = Err(ApiError::worker_lost());
    assert_eq!(results, [Ok(vec![10]), Ok(vec![20]), lost, Ok(vec![30])]);
}

#[test]
fn a_batch_has_a_maximum_of_rows_and_the_queue_a_maximum_of_requests() {
    let many = vec![7; MAX_ROWS];
    let (results, batches) = run_behind_first(&[&[1], &[2], &many, &[3]], 4);
    let lens: Vec<usize> = batches.iter().map(Vec::len).collect();
    assert_eq!(lens, [1, 1, MAX_ROWS, 1]);
    assert!(results.iter().all(Result::is_ok));

    let (batcher, batches, permit) = batcher(0);
    let (first, refused) = std::thread::scope(|scope| {
        let first = scope.spawn(|| runtime().block_on(batcher.run(vec![1], &ticket(LONG))));
        // The first request runs.
        assert_eq!(batches.recv().unwrap(), [1]);
        let refused = runtime().block_on(batcher.run(vec![1], &ticket(LONG)));
        permit.send(()).unwrap();
        (first.join().unwrap(), refused)
    });
    assert_eq!(first, Ok(vec![10]));
    assert_eq!(refused, Err(ApiError::overloaded()));
}

#[test]
fn a_request_that_nobody_awaits_is_not_computed() {
    let (batcher, batches, permit) = batcher(16);
    runtime().block_on(async {
        let (long, none) = (ticket(LONG), ticket(Duration::ZERO));
        let first = batcher.run(vec![1], &long);
        let others = async {
            while batcher.load().busy == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            let left = batcher.run(vec![2], &long);
            let left = tokio::time::timeout(Duration::from_millis(20), left).await;
            let (late, ()) = tokio::join!(batcher.run(vec![3], &none), async {
                permit.send(()).unwrap();
            });
            (left, late)
        };
        let (first, (left, late)) = tokio::join!(first, others);
        assert_eq!(first, Ok(vec![10]));
        assert!(left.is_err());
        assert_eq!(late, Err(ApiError::deadline_exceeded()));
    });
    drop(batcher);
    assert_eq!(batches.try_iter().collect::<Vec<_>>(), [vec![1]]);
}
