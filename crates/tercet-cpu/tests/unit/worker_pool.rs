//! Tests of the worker pool: every job completes under contention, nesting and panics.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rayon::ThreadPoolBuilder;
use tercet_cpu::internals::{
    CurrentWorkerPool, SpinPolicy, WorkerJobFn, WorkerPool, current, for_each_with_scratch, install,
};
use tercet_cpu::kernels::KernelThreads;
use tercet_cpu::kernels::parallel::{for_each, helpers_called};

const SOON: Duration = Duration::from_secs(20);

/// Runs on a pool, as an executor does.
trait WorkerPoolRuns {
    fn install<R>(&self, f: impl FnOnce() -> R) -> R;
    fn run(&self, most: usize, job: WorkerJobFn<'_>);
}

impl WorkerPoolRuns for WorkerPool {
    fn install<R>(&self, f: impl FnOnce() -> R) -> R {
        install(self.shared(), usize::MAX, f)
    }

    fn run(&self, most: usize, job: WorkerJobFn<'_>) {
        let shared = self.shared();
        let current = CurrentWorkerPool {
            shared,
            max_threads: usize::MAX,
        };
        current.run(most, job);
    }
}

fn team(threads: usize) -> WorkerPool {
    WorkerPool::new(threads).expect("threads")
}

/// Waits until a condition holds.
fn until(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < SOON, "{what}");
        thread::yield_now();
    }
}

/// Number of iterations of a test; fewer under Miri, which is slow.
fn turns(n: usize) -> usize {
    if cfg!(miri) { n.min(5) } else { n }
}

fn all_leave(team: &WorkerPool) {
    until("helpers leave", || team.0.around.load(SeqCst) == 0);
}

/// Runs a job that completes only if `threads` threads take part in it.
fn needs(team: &WorkerPool, threads: usize) {
    let inside = AtomicUsize::new(0);
    team.run(threads, &|_| {
        inside.fetch_add(1, SeqCst);
        until("all threads take part", || inside.load(SeqCst) == threads);
    });
}

#[test]
fn each_task_runs_once_and_scratch_is_not_shared() {
    for threads in [1, 2, 3, turns(20)] {
        let team = team(threads);
        team.install(|| {
            assert_eq!(KernelThreads::Pool.count(), threads);
            for tasks in [0, 1, 2, 7, turns(100), turns(1000)] {
                let ran: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for_each(KernelThreads::Pool, tasks, |i| {
                    ran[i].fetch_add(1, SeqCst);
                });
                let mut scratch = vec![0usize; 3 * threads];
                for_each_with_scratch(KernelThreads::Pool, tasks, &mut scratch, 3, |i, own| {
                    assert_eq!(own.len(), 3);
                    own[0] += 1;
                    ran[i].fetch_add(1, SeqCst);
                });
                assert!(ran.iter().all(|n| n.load(SeqCst) == 2), "{threads} {tasks}");
                assert_eq!(scratch.iter().sum::<usize>(), tasks);
            }
        });
    }
}

#[test]
fn helpers_leave_and_are_called_again() {
    let team = team(4);
    for _ in 0..3 {
        needs(&team, 4);
        all_leave(&team);
    }
}

#[test]
fn helpers_stay_between_jobs_where_nobody_wants_the_cores() {
    // The default policy would let helpers leave after any job if other processes load the machine.
    let patience = SpinPolicy {
        spin_time: Duration::from_secs(1),
        preemption_threshold: SOON,
    };
    let team = WorkerPool::with_patience(2, patience).expect("threads");
    let called = helpers_called();
    team.install(|| {
        for _ in 0..turns(1000) {
            needs(&team, 2);
        }
    });
    // These jobs need a single request for helpers, but other tests of this process may add
    // requests.
    let here = helpers_called() - called;
    assert!(
        10 * here < 9 * turns(1000),
        "{here} helper requests for {} jobs",
        turns(1000)
    );
}

#[test]
fn a_caller_of_a_pool_is_helped_by_its_threads() {
    let named = ThreadPoolBuilder::new().thread_name(|i| format!("own-{i}"));
    let pool = named.num_threads(3).build().expect("threads");
    let names = Mutex::new(std::collections::BTreeSet::new());
    pool.install(|| {
        assert_eq!(KernelThreads::Pool.count(), 3);
        let inside = AtomicUsize::new(0);
        current().run(3, &|_| {
            inside.fetch_add(1, SeqCst);
            until("all threads take part", || inside.load(SeqCst) == 3);
            let name = thread::current().name().map(str::to_string);
            names.lock().unwrap().insert(name.unwrap_or_default());
        });
    });
    let names: Vec<String> = names.lock().unwrap().iter().cloned().collect();
    assert_eq!(names, ["own-0", "own-1", "own-2"]);
}

#[test]
fn where_the_pool_is_busy_the_caller_works_alone() {
    let pool = ThreadPoolBuilder::new().num_threads(2).build();
    let pool = pool.expect("threads");
    let (begun, done) = (AtomicBool::new(false), AtomicBool::new(false));
    pool.in_place_scope(|scope| {
        scope.spawn(|_| {
            begun.store(true, SeqCst);
            until("the other job is done", || done.load(SeqCst));
        });
        until("one thread is busy", || begun.load(SeqCst));
        let count = pool.install(|| {
            let count = AtomicUsize::new(0);
            for_each(KernelThreads::Pool, 100, |_| {
                count.fetch_add(1, SeqCst);
            });
            count.into_inner()
        });
        assert_eq!(count, 100);
        done.store(true, SeqCst);
    });
}

#[test]
fn a_run_counts_on_no_more_threads_than_it_has_memory_for() {
    let team = team(4);
    install(team.shared(), 2, || {
        assert_eq!(KernelThreads::Pool.count(), 2);
        let most = AtomicUsize::new(0);
        current().run(4, &|i| {
            most.fetch_max(i, SeqCst);
            assert_eq!(KernelThreads::Pool.count(), 2);
        });
        assert!(most.load(SeqCst) < 2);
    });
}

#[test]
fn a_crowd_is_noticed_and_forgotten() {
    let alone = team(1);
    let crowd = &alone.0.contention;
    assert!(!crowd.is_contended());
    crowd.until.store(crowd.now_micros() + 20_000, Relaxed);
    assert!(crowd.is_contended());
    until("the contention expires", || !crowd.is_contended());
    // No thread spins in this test: the caller sleeps until the last helper has left.
    let team = team(3);
    for _ in 0..turns(20) {
        let crowd = &team.0.contention;
        crowd.until.store(crowd.now_micros() + 1_000_000, Relaxed);
        let inside = AtomicUsize::new(0);
        team.run(3, &|i| {
            inside.fetch_add(1, SeqCst);
            until("all threads take part", || inside.load(SeqCst) == 3);
            if i > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            inside.fetch_sub(0, SeqCst);
        });
    }
}

#[test]
fn one_thread_is_the_callers() {
    let (team, own) = (team(1), thread::current().id());
    team.run(5, &|i| {
        assert_eq!((i, thread::current().id()), (0, own));
    });
}

#[test]
fn jobs_within_jobs_end() {
    let team = team(3);
    let count = AtomicUsize::new(0);
    team.install(|| {
        for _ in 0..turns(50) {
            for_each(KernelThreads::Pool, 6, |_| {
                for_each(KernelThreads::Pool, 5, |_| {
                    for_each(KernelThreads::Pool, 4, |_| {
                        count.fetch_add(1, SeqCst);
                    });
                });
            });
        }
    });
    assert_eq!(count.load(SeqCst), turns(50) * 6 * 5 * 4);
}

#[test]
fn a_panic_reaches_the_caller_and_nobody_else() {
    let team = team(3);
    for culprit in [0, 1, 2] {
        let inside = AtomicUsize::new(0);
        let job = |i: usize| {
            inside.fetch_add(1, SeqCst);
            until("all threads take part", || inside.load(SeqCst) == 3);
            if i == culprit {
                resume_unwind(Box::new(i));
            }
        };
        let done = catch_unwind(AssertUnwindSafe(|| team.run(3, &job)));
        let payload = done.expect_err("the job panics");
        assert_eq!(payload.downcast_ref(), Some(&culprit));
        needs(&team, 3);
    }
    let all = catch_unwind(AssertUnwindSafe(|| {
        team.run(3, &|i| resume_unwind(Box::new(i)));
    }));
    assert!(all.is_err());
    needs(&team, 3);
}

#[test]
fn many_callers_share_a_team() {
    let team = team(4);
    thread::scope(|scope| {
        for caller in 0..turns(16) {
            let team = &team;
            scope.spawn(move || {
                team.install(|| {
                    for round in 0..turns(100) {
                        let sum = AtomicUsize::new(0);
                        for_each(KernelThreads::Pool, 10, |i| {
                            sum.fetch_add(i + caller * round, SeqCst);
                        });
                        assert_eq!(sum.load(SeqCst), 45 + 10 * caller * round);
                    }
                });
            });
        }
    });
    needs(&team, 4);
}

#[test]
fn threads_end_with_their_team() {
    let check = |is_idle: bool| {
        let team = team(3);
        needs(&team, 3);
        if is_idle {
            all_leave(&team);
        }
        let left = Arc::downgrade(&team.0);
        drop(team);
        until("threads end", || left.strong_count() == 0);
    };
    check(true);
    check(false);
    // The pool is dropped while its job runs.
    let own = team(2);
    let shared = own.shared();
    drop(own);
    shared.run(2, usize::MAX, &|_| ());
}
