//! Free memory of the host.

#[test]
#[cfg(target_os = "linux")]
fn free_memory_is_positive_and_below_the_machine_total() {
    let free = tercet_cpu::internals::free_bytes().expect("Linux reports its memory");
    let text = std::fs::read_to_string("/proc/meminfo").expect("Linux has meminfo");
    let total = text
        .split_ascii_whitespace()
        .nth(1)
        .and_then(|n| n.parse::<u64>().ok());
    let total = total.expect("the first line of meminfo is the total") * 1024;
    assert!(free > 0 && free < total, "{free} of {total}");
}
