use std::sync::Arc;
use std::time::Duration;

use tercet_serve::ServeOptions;
use tercet_serve::internals::{QueueTicket, RequestOrder, RequestRecord, RequestTerms};

/// A ticket without a limit in the queue.
pub(crate) fn ticket(deadline: Duration) -> QueueTicket {
    let options = ServeOptions {
        deadline,
        ..ServeOptions::default()
    };
    QueueTicket::new(&RequestRecord::default(), &options, &Arc::default())
}

#[test]
fn the_shorter_limits_hold_and_keys_have_scopes() {
    let of = |terms: RequestTerms, options: &ServeOptions| {
        let record = RequestRecord::default();
        record.set_terms(terms);
        QueueTicket::new(&record, options, &Arc::default())
    };
    let seconds = Duration::from_secs;
    let options = ServeOptions {
        deadline: seconds(100),
        queue_time: Some(seconds(10)),
        isolate: true,
        ..ServeOptions::default()
    };
    for (own, want) in [(None, 10), (Some(5), 5), (Some(20), 10)] {
        let terms = RequestTerms {
            queue_time: own.map(seconds),
            ..RequestTerms::default()
        };
        let limit = of(terms, &options).queue_end.map(|(_, limit)| limit);
        assert_eq!(limit, Some(seconds(want)));
    }
    let terms = RequestTerms {
        deadline: Some(seconds(0)),
        ..RequestTerms::default()
    };
    let late = of(terms, &options).overdue().map(|e| e.code);
    assert_eq!(late, Some("deadline_exceeded"));
    let scope = |key, salt: &str, isolate| {
        let terms = RequestTerms {
            order: RequestOrder { key, priority: 0 },
            cache_salt: salt.to_string(),
            ..RequestTerms::default()
        };
        let options = ServeOptions {
            isolate,
            ..options.clone()
        };
        of(terms, &options).cache_scope
    };
    assert_eq!(scope(Some(1), "", false), scope(Some(2), "", false));
    assert_ne!(scope(Some(1), "", true), scope(Some(2), "", true));
    assert_ne!(scope(Some(1), "2/", true), scope(Some(1), "", true));
    assert_ne!(scope(Some(1), "1/", true), scope(Some(11), "/", true));
    assert_eq!(scope(None, "a", true), "a");
}

#[test]
fn a_time_without_end_is_no_overflow() {
    let ticket = ticket(Duration::MAX);
    assert!(ticket.overdue().is_none());
}
