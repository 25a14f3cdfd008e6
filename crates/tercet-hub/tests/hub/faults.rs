//! Connections that break, servers that lie, disks that are full, processes that compete.

use std::time::{Duration, Instant};

use tercet_hub::{Hub, HubError, HubSettings};

use crate::server::LocalHub;
use crate::{Scratch, bytes, folder, hub, is_absent, names, pull, settings, watched};

const MODEL: &str = "org/m";
const FILE: &str = "m-Q8_0.gguf";

fn serving(len: usize) -> (LocalHub, Scratch, Vec<u8>) {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let weights = bytes(len as u64, len);
    server.add(MODEL, &[(FILE, &weights)]);
    (server, scratch, weights)
}

fn partial(server: &LocalHub, scratch: &Scratch) -> std::path::PathBuf {
    let digest = server.digest(MODEL, FILE);
    let blobs = folder(scratch, MODEL).join("blobs");
    blobs.join(format!("{digest}.incomplete"))
}

#[test]
fn cut_connections_are_continued() {
    let (server, scratch, weights) = serving(60_000);
    let hub = hub(&server, &scratch);
    server.state().faults.cuts = 7;
    server.state().faults.cut_after = 4_000;
    let (model, events) = watched(&hub, MODEL);
    assert_eq!(std::fs::read(model.unwrap().path).unwrap(), weights);
    assert!(
        events.iter().any(|event| event.starts_with("Retrying")),
        "{events:?}"
    );
    // Nothing is sent twice.
    assert_eq!(server.sent(), weights.len());
}

#[test]
fn an_interrupted_download_is_continued_by_another_process() {
    let (server, scratch, weights) = serving(100_000);
    server.state().faults.cuts = usize::MAX;
    server.state().faults.cut_after = 0;
    let first = hub(&server, &scratch);
    let error = pull(&first, MODEL).unwrap_err();
    assert!(
        matches!(error, HubError::Network { .. }) && error.is_of_network(),
        "{error}"
    );
    assert!(is_absent(&first, &scratch, MODEL));

    // Ten answers are complete; then the network is gone.
    let one = Hub::new(HubSettings {
        connections: 1,
        ..settings(&server, &scratch.0)
    });
    server.state().faults.cuts = 0;
    let count = std::sync::atomic::AtomicUsize::new(0);
    let stop = |event: tercet_hub::PullEvent<'_>| {
        if matches!(event, tercet_hub::PullEvent::Bytes(_))
            && count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 3
        {
            let mut state = server.state();
            state.faults.cuts = usize::MAX;
            state.faults.cut_after = 500;
        }
    };
    server.sent();
    let name = MODEL.parse().unwrap();
    let settings_of_one = HubSettings {
        attempts: 1,
        ..one.settings().clone()
    };
    let one = Hub::new(settings_of_one);
    let error = one.pull(&name, &Default::default(), &stop).unwrap_err();
    assert!(error.to_string().contains("continues there"), "{error}");
    assert!(is_absent(&one, &scratch, MODEL));
    let part = std::fs::read(partial(&server, &scratch)).unwrap();
    assert!((40_000..100_000).contains(&part.len()), "{}", part.len());
    // It is a prefix, so that every tool can continue it.
    assert_eq!(part, weights[..part.len()]);

    server.state().faults.cuts = 0;
    server.sent();
    let second = hub(&server, &scratch);
    let (model, events) = watched(&second, MODEL);
    assert_eq!(std::fs::read(model.unwrap().path).unwrap(), weights);
    assert_eq!(server.sent(), weights.len() - part.len());
    let resumed = format!("resumed: {}", part.len());
    assert!(
        events.iter().any(|event| event.contains(&resumed)),
        "{events:?}"
    );
    assert!(!partial(&server, &scratch).exists());
}

#[test]
fn a_wrong_or_too_long_beginning_is_loaded_again() {
    for start in [bytes(99, 25_000), bytes(98, 70_000)] {
        let (server, scratch, weights) = serving(60_000);
        let path = partial(&server, &scratch);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, start).unwrap();
        let model = pull(&hub(&server, &scratch), MODEL).unwrap();
        assert_eq!(std::fs::read(model.path).unwrap(), weights);
    }
}

#[test]
fn servers_without_ranges_work_too() {
    let (server, scratch, weights) = serving(60_000);
    {
        let mut state = server.state();
        state.faults.no_ranges = true;
        state.faults.cuts = 2;
        state.faults.cut_after = 20_000;
    }
    let path = partial(&server, &scratch);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, &weights[..5_000]).unwrap();
    let model = pull(&hub(&server, &scratch), MODEL);
    assert_eq!(std::fs::read(model.unwrap().path).unwrap(), weights);
}

#[test]
fn expired_addresses_are_asked_for_again() {
    let (server, scratch, weights) = serving(60_000);
    server.state().faults.expired = 2;
    let model = pull(&hub(&server, &scratch), MODEL).unwrap();
    assert_eq!(std::fs::read(model.path).unwrap(), weights);
}

#[test]
fn a_mirror_that_lies_leaves_nothing() {
    let (server, scratch, weights) = serving(60_000);
    let hub = hub(&server, &scratch);
    server.state().faults.lies = true;
    let error = pull(&hub, MODEL).unwrap_err();
    let digest = server.digest(MODEL, FILE);
    let is_digest = matches!(&error, HubError::Digest { expected, .. } if *expected == digest);
    assert!(
        is_digest && error.to_string().contains("SHA-256"),
        "{error}"
    );
    assert!(is_absent(&hub, &scratch, MODEL));
    assert_eq!(names(&folder(&scratch, MODEL).join("blobs")), [""; 0]);

    // A lie in the headers is found before the data arrive.
    server.state().faults.lies = false;
    server.state().faults.lies_in_headers = true;
    server.sent();
    let error = pull(&hub, MODEL).unwrap_err();
    assert!(error.to_string().contains("announced digest"), "{error}");
    assert!(server.sent() <= 10_000 && is_absent(&hub, &scratch, MODEL));

    server.state().faults.lies_in_headers = false;
    let model = pull(&hub, MODEL).unwrap();
    assert_eq!(std::fs::read(model.path).unwrap(), weights);

    // Another size than the list has.
    server.state().faults.listed_size = Some(50_000);
    let other = Scratch::new();
    let error = pull(&crate::hub(&server, &other), MODEL).unwrap_err();
    assert!(
        error.to_string().contains("the size is 60000, not 50000"),
        "{error}"
    );
}

#[test]
fn small_files_are_checked_too_and_a_folder_appears_as_a_whole() {
    let (server, scratch) = (LocalHub::start(), Scratch::new());
    let hub = hub(&server, &scratch);
    let files: [(&str, &[u8]); 2] = [
        ("model.safetensors", b"weights"),
        ("config.json", b"{\"a\":1}"),
    ];
    server.add(MODEL, &files);
    server.state().faults.lies_small = true;
    let error = pull(&hub, MODEL).unwrap_err();
    assert!(
        matches!(&error, HubError::Digest { file, .. } if file == "config.json"),
        "{error}"
    );
    // The weights have arrived, but the model is not there yet.
    assert!(is_absent(&hub, &scratch, MODEL));
    assert_eq!(names(&folder(&scratch, MODEL).join("blobs")).len(), 1);
}

#[test]
fn damaged_contents_are_found_on_request() {
    let (server, scratch, weights) = serving(30_000);
    let hub = hub(&server, &scratch);
    let path = pull(&hub, MODEL).unwrap().path;
    let mut damaged = weights.clone();
    damaged[9] ^= 1;
    std::fs::write(&path, damaged).unwrap();
    pull(&hub, MODEL).unwrap();
    assert_ne!(std::fs::read(&path).unwrap(), weights);
    let options = tercet_hub::PullOptions {
        rehashes: true,
        ..Default::default()
    };
    hub.pull(&MODEL.parse().unwrap(), &options, &crate::quiet)
        .unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), weights);
    // Contents that were cut by a full disk have another size.
    std::fs::write(&path, &weights[..9]).unwrap();
    pull(&hub, MODEL).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), weights);
}

#[test]
fn limits_of_the_rate_are_waited_for_or_reported() {
    let (server, scratch, weights) = serving(1_000);
    let hub = hub(&server, &scratch);
    let limit = |count, after: &str| {
        let mut state = server.state();
        state.faults.limited = count;
        state.faults.retry_after = Some(after.to_string());
    };
    limit(1, "1");
    let began = Instant::now();
    let (model, events) = watched(&hub, MODEL);
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(std::fs::read(model.unwrap().path).unwrap(), weights);
    assert!(
        events.iter().any(|event| event.contains("wait: 1s")),
        "{events:?}"
    );
    limit(1, "999");
    let error = pull(&hub, MODEL).unwrap_err();
    let is_limit = matches!(error, HubError::RateLimited { seconds: 999, .. });
    assert!(
        is_limit && error.to_string().contains("HF_TOKEN"),
        "{error}"
    );
    server.state().faults.limited = 0;
    server.state().faults.unavailable = 2;
    pull(&hub, MODEL).unwrap();
    server.state().faults.unavailable = 9;
    let error = pull(&hub, MODEL).unwrap_err();
    assert!(error.to_string().contains("503: maintenance"), "{error}");
}

#[test]
fn two_downloads_of_one_model_load_it_once() {
    let (server, scratch, weights) = serving(80_000);
    server.state().faults.delay = Duration::from_millis(150);
    let results: Vec<_> = std::thread::scope(|scope| {
        let one = || watched(&hub(&server, &scratch), MODEL);
        let all = [scope.spawn(one), scope.spawn(one), scope.spawn(one)];
        all.map(|thread| thread.join().unwrap())
            .into_iter()
            .collect()
    });
    let mut waited = 0;
    for (model, events) in results {
        assert_eq!(std::fs::read(model.unwrap().path).unwrap(), weights);
        waited += usize::from(events.iter().any(|event| event.starts_with("Waiting")));
    }
    assert_eq!((server.sent(), waited), (weights.len(), 2));
}

#[test]
fn a_disk_without_room_is_reported_before_the_download() {
    let (server, scratch, _) = serving(1_000);
    let hub = hub(&server, &scratch);
    server.state().faults.listed_size = Some(1 << 60);
    let error = pull(&hub, MODEL).unwrap_err();
    assert!(
        matches!(error, HubError::DiskFull { needed, .. } if needed == 1 << 60),
        "{error}"
    );
    assert!(error.to_string().contains("are free"), "{error}");
    assert!(is_absent(&hub, &scratch, MODEL));
}

/// Every write to `/dev/full` fails as on a full disk.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_that_fills_up_leaves_no_model() {
    let (server, scratch, _) = serving(60_000);
    let hub = hub(&server, &scratch);
    let path = partial(&server, &scratch);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", &path).unwrap();
    let error = pull(&hub, MODEL).unwrap_err();
    assert!(matches!(error, HubError::DiskFull { .. }), "{error}");
    assert!(
        error.to_string().contains("58.6 KiB more are needed"),
        "{error}"
    );
    assert!(is_absent(&hub, &scratch, MODEL));
}
