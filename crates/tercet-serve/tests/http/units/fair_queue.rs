use std::collections::VecDeque;

use tercet_serve::internals::{FairQueue, QueueFull, RequestOrder};

fn order(key: usize, priority: i64) -> RequestOrder {
    let key = Some(key);
    RequestOrder { key, priority }
}

fn queue(items: &[(&'static str, RequestOrder)]) -> FairQueue<&'static str> {
    let mut queue = FairQueue::new();
    for (name, order) in items {
        queue.push(*order, *name);
    }
    queue
}

/// The order in which `workers` workers start the items. The worker that started first ends first.
fn starts(workers: usize, items: &[(&'static str, RequestOrder)]) -> String {
    let mut queue = queue(items);
    let mut running = VecDeque::new();
    let mut started = String::new();
    while let Some(name) = queue.pop() {
        started += name;
        let own = items.iter().find(|(of, _)| *of == name).unwrap();
        running.push_back(own.1.key);
        if running.len() == workers {
            queue.end(running.pop_front().unwrap());
        }
    }
    started
}

#[test]
fn keys_take_turns_and_urgent_items_go_first() {
    let (a, b) = (order(0, 0), order(1, 0));
    let items = [("a", a), ("b", a), ("c", a), ("d", a), ("x", b), ("y", b)];
    for workers in [1, 2, 3] {
        let started = starts(workers, &items);
        assert!(started.starts_with("axb"), "{workers}: {started}");
        assert!(started.ends_with("cd"), "{workers}: {started}");
    }
    assert_eq!(starts(2, &items[..4]), "abcd");
    let urgent = [("a", a), ("b", a), ("u", order(0, -1)), ("z", order(1, 9))];
    assert_eq!(starts(1, &urgent), "uabz");
}

#[test]
fn an_item_starts_once_and_leaves_by_its_id() {
    let mut queue = queue(&[("a", order(0, 0))]);
    let id = queue.push(order(0, 0), "b");
    assert_eq!(queue.peek(), Some(&"a"));
    assert_eq!(queue.remove(id), Some("b"));
    assert_eq!((queue.remove(id), queue.pop()), (None, Some("a")));
    assert_eq!((queue.pop(), queue.len()), (None, 0));
}

#[test]
fn a_full_queue_keeps_places_for_keys_with_fewer_items() {
    let (a, b) = (order(0, 0), order(1, 0));
    let mut full = queue(&[("a", a), ("b", a), ("c", a), ("d", a)]);
    // The key of all waiting items gets no further place, another key gets half of them.
    assert_eq!(full.make_room(a, 1, 4), Err(QueueFull));
    assert_eq!(full.make_room(b, 1, 4), Ok(vec!["d"]));
    full.push(b, "x");
    assert_eq!(full.make_room(b, 1, 4), Ok(vec!["c"]));
    full.push(b, "y");
    assert_eq!(full.make_room(b, 1, 4), Err(QueueFull));
    assert_eq!(full.make_room(order(2, 0), 1, 4), Ok(vec!["y"]));
    full.push(order(2, 0), "z");
    // All places or none.
    assert_eq!(full.make_room(order(3, 0), 3, 4), Err(QueueFull));
    assert_eq!(full.len(), 4);
    assert_eq!(full.make_room(order(3, 0), 9, 4), Err(QueueFull));
    assert_eq!(full.make_room(b, 0, 4), Ok(Vec::new()));
}

#[test]
fn a_full_queue_keeps_urgent_items() {
    let mut full = queue(&[("a", order(0, 0)), ("b", order(1, 5)), ("c", order(1, 7))]);
    assert_eq!(full.make_room(order(0, 1), 2, 3), Ok(vec!["c", "b"]));
    full.push(order(0, 1), "d");
    full.push(order(0, 1), "e");
    assert_eq!(full.make_room(order(2, 2), 1, 3), Err(QueueFull));
    assert_eq!(full.make_room(order(2, 1), 1, 3), Ok(vec!["e"]));
    assert_eq!(full.make_room(order(9, 0), 1, 0), Err(QueueFull));
}
