//! What a team promises: every job ends, whatever happens to it.

use super::*;
use crate::kernels::parallel::{Threads, for_each, for_each_with_scratch};

const SOON: Duration = Duration::from_secs(20);

fn team(threads: usize) -> Team {
    Team::new(threads).expect("threads")
}

/// Waits until something is so.
fn until(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < SOON, "{what}");
        thread::yield_now();
    }
}

fn all_asleep(team: &Team) {
    let workers = team.threads() - 1;
    until("workers sleep", || team.0.sleepers.load(SeqCst) == workers);
}

/// Runs a job that ends only when `threads` take part in it.
fn needs(team: &Team, threads: usize) {
    let inside = AtomicUsize::new(0);
    team.0.run(threads, &|_| {
        inside.fetch_add(1, SeqCst);
        until("all come", || inside.load(SeqCst) == threads);
    });
}

#[test]
fn each_task_runs_once_and_scratch_is_not_shared() {
    for threads in [1, 2, 3, 20] {
        let team = team(threads);
        team.install(|| {
            assert_eq!(Threads::Pool.count(), threads);
            for tasks in [0, 1, 2, 7, 100, 1000] {
                let ran: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                for_each(Threads::Pool, tasks, |i| {
                    ran[i].fetch_add(1, SeqCst);
                });
                let mut scratch = vec![0usize; 3 * threads];
                for_each_with_scratch(Threads::Pool, tasks, &mut scratch, 3, |i, own| {
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
fn sleeping_workers_wake_and_sleep_again() {
    let team = team(4);
    for _ in 0..3 {
        all_asleep(&team);
        needs(&team, 4);
    }
}

#[test]
fn one_thread_is_the_callers() {
    let (team, own) = (team(1), thread::current().id());
    team.0.run(5, &|i| {
        assert_eq!((i, thread::current().id()), (0, own));
    });
}

#[test]
fn jobs_within_jobs_end() {
    let team = team(3);
    let count = AtomicUsize::new(0);
    team.install(|| {
        for _ in 0..50 {
            for_each(Threads::Pool, 6, |_| {
                for_each(Threads::Pool, 5, |_| {
                    for_each(Threads::Pool, 4, |_| {
                        count.fetch_add(1, SeqCst);
                    });
                });
            });
        }
    });
    assert_eq!(count.load(SeqCst), 50 * 6 * 5 * 4);
}

#[test]
fn a_panic_reaches_the_caller_and_nobody_else() {
    let team = team(3);
    for culprit in [0, 1, 2] {
        let inside = AtomicUsize::new(0);
        let job = |i: usize| {
            inside.fetch_add(1, SeqCst);
            until("all come", || inside.load(SeqCst) == 3);
            if i == culprit {
                resume_unwind(Box::new(i));
            }
        };
        let done = catch_unwind(AssertUnwindSafe(|| team.0.run(3, &job)));
        let payload = done.expect_err("the job panics");
        assert_eq!(payload.downcast_ref(), Some(&culprit));
        needs(&team, 3);
    }
    let all = catch_unwind(AssertUnwindSafe(|| {
        team.0.run(3, &|i| resume_unwind(Box::new(i)));
    }));
    assert!(all.is_err());
    needs(&team, 3);
}

#[test]
fn many_callers_share_a_team() {
    let team = team(4);
    thread::scope(|scope| {
        for caller in 0..16 {
            let team = &team;
            scope.spawn(move || {
                team.install(|| {
                    for round in 0..100 {
                        let sum = AtomicUsize::new(0);
                        for_each(Threads::Pool, 10, |i| {
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
    let check = |asleep: bool| {
        let team = team(3);
        if asleep {
            all_asleep(&team);
        } else {
            needs(&team, 3);
        }
        let left = Arc::downgrade(&team.0);
        drop(team);
        until("threads end", || left.strong_count() == 0);
    };
    check(true);
    check(false);
    // A job outlives its team: its caller goes on alone.
    let own = team(2);
    let shared = own.0.clone();
    drop(own);
    shared.run(2, &|_| ());
}
