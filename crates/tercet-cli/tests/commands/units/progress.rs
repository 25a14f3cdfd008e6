use std::fs::File;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};
use tercet_cli::internals::progress::{WatchedWork, line};

#[test]
fn lines_name_the_work_and_its_progress() {
    let of = |done| line("index", done, Duration::from_millis(40_900));
    assert_eq!(
        of(Some((3, Some(12), "files"))),
        "index: 3 of 12 files, 40 s"
    );
    assert_eq!(of(Some((3, None, "files"))), "index: 3 files, 40 s");
    assert_eq!(of(None), "index: 40 s");
}

#[cfg(unix)]
#[test]
fn work_prints_lines_until_it_is_finished() {
    let bar = ProgressBar::with_draw_target(Some(9), ProgressDrawTarget::hidden());
    let (mut reader, writer) = std::io::pipe().unwrap();
    let mut work = WatchedWork {
        bar: bar.downgrade(),
        what: "index",
        unit: Some("files"),
        started: Instant::now(),
        next: Duration::ZERO,
        out: File::from(std::os::fd::OwnedFd::from(writer)),
    };
    bar.set_position(4);
    // The second line is not due yet.
    assert!(work.poll() && work.poll());
    bar.finish_and_clear();
    assert!(!work.poll());
    drop(work);
    let lines = std::io::read_to_string(&mut reader).unwrap();
    assert_eq!(lines, "index: 4 of 9 files, 0 s\n");

    let bar = ProgressBar::hidden();
    let weak = bar.downgrade();
    drop(bar);
    assert!(weak.upgrade().is_none());
}
